"""How the clients of a round wait for one another. By default they do not: each session is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from edgefl.records import ClientRecord, Expected, Observed
from edgefl.server.assignment import ClassPlan
from edgefl.server.sessions import Session


class Closing(NamedTuple):
    """The end of a round: its records, its seconds, and figures for its record by name."""

    records: tuple[ClientRecord, ...]
    round_s: float
    figures: Observed


class Quota(Protocol):
    """Which answers a round waits for.

    Attributes:
        wanted: how many.
    """

    wanted: int

    def takes(self, session: Expected) -> bool:
        """Whether the round waits for this client, which then counts."""

    def missed(self, session: Expected) -> None:
        """Count that a client that was taken has not answered."""


class Meeting(Protocol):
    """How the clients of a round wait for one another; a stage of the chain may bring one (:attr:`edgefl.client.stage.Stage.meeting`)."""

    def sessions(self, turn: int, asked: Sequence[Session]) -> list[Expected]:
        """Return what is expected of clients that are asked at one moment, in their order."""

    def quota(self, expected: Iterable[Expected], over_selection: float, wanted: int) -> Quota:
        """Return which answers a round waits for, of the clients ``expected``, so many of which are ``wanted``."""

    def closed(self, turn: int, plan_of: Callable[[int], ClassPlan], records: Sequence[ClientRecord], round_s: float) -> Closing:
        """Return the end of a round whose last answer arrived after ``round_s``; ``plan_of``: client → the plan of its class."""


class Anyone:
    """The quota of a round that waits for any clients."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def takes(self, session: Expected) -> bool:
        """Return true: who answers first, counts."""
        return True

    def missed(self, session: Expected) -> None:
        """Nothing depends on who has not answered."""


class Apart:
    """No client waits for another."""

    def sessions(self, turn: int, asked: Sequence[Session]) -> list[Expected]:
        """Return the sessions until their ends."""
        return [session.ended() for session in asked]

    def quota(self, expected: Iterable[Expected], over_selection: float, wanted: int) -> Anyone:
        """Return that any ``wanted`` answers do."""
        return Anyone(wanted)

    def closed(self, turn: int, plan_of: Callable[[int], ClassPlan], records: Sequence[ClientRecord], round_s: float) -> Closing:
        """Return the round as it is."""
        return Closing(tuple(records), round_s, {})


APART = Apart()
"""The one object of this class that is needed."""
