"""When clients are asked, when they answer, and when the server stops waiting: what synchronous rounds and buffered steps differ in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgefl.records import ClientRecord, Expected, Outcome
from edgefl.server.forecast import Forecast
from edgefl.server.state import FleetMemory, OpenSession


@dataclass(frozen=True)
class Closed:
    """The end of a round.

    Attributes:
        clients: how every session ended.
        round_s: how long the round lasted on the simulated clock, after the wait.
        waited_s: how long the server waited for eligible clients.
        clock_s: the simulated clock at the end.
        fleet: what the server remembers of its clients.
    """

    clients: tuple[ClientRecord, ...]
    round_s: float
    waited_s: float
    clock_s: float
    fleet: FleetMemory


class Schedule(Protocol):
    """The sessions of one round, in the order in which clients answer."""

    def arrive(self, most: int) -> list[OpenSession]:
        """Return the next sessions that answer in time, at most ``most``; none if no more will."""

    def end(self, session: OpenSession, record: ClientRecord) -> None:
        """Record how a session ended that :meth:`arrive` returned."""

    def close(self) -> Closed:
        """Return how the round ended, after the last session that the server waits for."""


def fleet_at(forecast: Forecast, fleet: FleetMemory, clock_s: float) -> FleetMemory:
    """Return what the server remembers of its clients at a later time."""
    return fleet.at(clock_s, forecast.conditions.day(clock_s))


def low_battery(expected: Expected) -> bool:
    """Whether a client was refused because of its battery."""
    return any(short.budget == "battery_j" for short in expected.refusal)


def simulated(expected: Expected) -> ClientRecord:
    """Return the record of a client that answers, in a run without training."""
    return ClientRecord(expected, Outcome(expected.client, "trained"))
