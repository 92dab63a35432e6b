"""Conditions of sessions: links that vary, sessions that are lost, devices that change, hours of the day."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import numpy as np

from edgefl.fleet.availability import DAY_S, Always, Availability
from edgefl.fleet.calendar import Calendar
from edgefl.fleet.profile import State
from edgefl.rng import normals, shuffled, uniforms

BATTERY_FLOOR = 0.2
"""A client refuses a session that would leave less than this share of its battery."""
LEAST_FULL = 0.3
"""The charge that an owner leaves differs from client to client, uniformly from this share to all of it."""

PATIENCE_S = 3600.0
"""How long a server waits for enough eligible clients, before it starts with fewer."""

WAIT_STEP_S = 600.0
"""After so long a server checks again whether a client is eligible."""

LEAST_SHARE = 1e-6
"""The smallest share of a link's rate, and factor on computing time, that a session draws: the smallest number of six decimals."""

Choose = Callable[[np.ndarray, int], np.ndarray]
"""(clients in random order, how many to ask) → those that are asked."""

_SELECT_FIRST, _SELECT_AT_ONCE = 256, 4096
_LONGEST_WAIT_S = 7 * 24 * 3600.0

UNDISTURBED = State(
    name="undisturbed", chance=1.0, memory_share=1.0, speed_share=1.0, mark="derived", source="a device that does nothing else"
)
"""The one state of devices that do not change."""


@dataclass(frozen=True)
class LeftOut:
    """The clients that the server never asks.

    Attributes:
        classes: numbers of clients → the numbers of their classes.
        numbers: the classes that are left out.
        clients: how many clients they have.
    """

    classes: Callable[[np.ndarray], np.ndarray]
    numbers: tuple[int, ...]
    clients: int

    def has(self, clients: np.ndarray) -> np.ndarray:
        """Return whether each client is left out."""
        return np.isin(self.classes(clients), self.numbers)


@dataclass(frozen=True)
class Conditions:
    """How sessions vary and fail; by default, none does.

    Attributes:
        over_selection: clients that are asked for each one that is wanted.
        drop_out: share of sessions lost to errors or the network, at any moment of them.
        interrupted: share of sessions that their owners or chargers end in mid-training.
        response_sigma: of the log-normal factor on a session's computing time.
        links_vary: whether links differ between clients and between sessions.
        states: what a device may be in during a round; one state where devices do not change.
        availability: who is eligible when.
        battery: whether what a session draws empties a battery; not where eligible clients are charging.
        start_hour: local hour at clock 0; batteries are charged at midnight.
        calendar: when rounds may begin; None: one after the other.
        left_out: the clients that are never asked; None: all may be.
    """

    over_selection: float = 1.0
    drop_out: float = 0.0
    interrupted: float = 0.0
    response_sigma: float = 0.0
    links_vary: bool = False
    states: tuple[State, ...] = (UNDISTURBED,)
    availability: Availability = field(default_factory=Always)
    battery: bool = False
    start_hour: float = 0.0
    calendar: Calendar | None = None
    left_out: LeftOut | None = None

    def day(self, clock_s: float) -> int:
        """Return the number of the local day, from 0."""
        return int((clock_s + 3600 * self.start_hour) // DAY_S)

    def night_s(self, clock_s: float) -> float:
        """Return the clock at the next local midnight, when batteries are full again."""
        return (self.day(clock_s) + 1) * DAY_S - 3600 * self.start_hour

    def asked(self, wanted: int, clients: int) -> int:
        """Return how many clients are asked so that ``wanted`` answer, of a population of ``clients``."""
        return min(self._reachable(clients), ceil(round(wanted * self.over_selection, 6)))

    def share_left_out(self, clients: int) -> float:
        """Return the share of a population of ``clients`` that is never asked."""
        return 0.0 if self.left_out is None else self.left_out.clients / clients

    def _reachable(self, clients: int) -> int:
        return clients - (0 if self.left_out is None else self.left_out.clients)

    def link_shares(self, seed: int, clients: np.ndarray, sigmas: tuple[np.ndarray, np.ndarray], round_: int) -> np.ndarray:
        """Return each client's share of its link's typical rate in a round: log-normal across clients and across sessions."""
        if not self.links_vary:
            return np.ones(len(clients))
        spread, session = sigmas
        exponent = spread * normals(seed, clients, "link") + session * normals(seed, clients, round_, "link")
        return np.maximum(np.round(np.exp(exponent), 6), LEAST_SHARE)

    def responses(self, seed: int, clients: np.ndarray, round_: int) -> np.ndarray:
        """Return each client's factor on its computing time in a round."""
        if not self.response_sigma:
            return np.ones(len(clients))
        factors = np.exp(self.response_sigma * normals(seed, clients, round_, "response"))
        return np.maximum(np.round(factors, 6), LEAST_SHARE)

    def battery_levels(self, seed: int, clients: np.ndarray) -> np.ndarray:
        """Return the share of its battery that each client spends in a day, above the floor; infinite if batteries do not drain."""
        if not self.battery:
            return np.full(len(clients), np.inf)
        return LEAST_FULL + (1 - LEAST_FULL) * uniforms(seed, clients, "battery") - BATTERY_FLOOR

    def fates(self, seed: int, clients: np.ndarray, round_: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which clients are interrupted, which drop out, and at which share of training or of the whole session."""
        fate, moment = uniforms(seed, clients, round_, "fate"), uniforms(seed, clients, round_, "moment")
        interrupted = fate < self.interrupted
        return interrupted, ~interrupted & (fate < self.interrupted + self.drop_out), moment

    def select(
        self,
        seed: int,
        clients: int,
        wanted: int,
        round_: int,
        clock_s: float,
        busy: Mapping[int, float],
        choose: Choose | None = None,
    ) -> tuple[np.ndarray, float]:
        """Return the clients that are asked, ascending, and the clock when they are.

        The server waits until ``wanted`` clients are eligible and not busy. After an hour it asks those that are; if there are none, the
        first that are eligible within a week. It asks within the days and hours of the calendar only. The work grows with the clients
        asked, unless ``choose`` has to see all that are eligible.
        """
        asked, clock_s = self.asked(wanted, clients), self._open_s(clock_s)
        began_s = clock_s
        while True:
            chosen = self.eligible(seed, clients, asked, round_, clock_s, busy, choose)
            patient = clock_s < began_s + PATIENCE_S
            if (
                len(chosen) >= min(wanted, self._reachable(clients))
                or (len(chosen) and not patient)
                or clock_s >= began_s + _LONGEST_WAIT_S
            ):
                return np.sort(chosen), clock_s
            # The next moment to check: when the next busy client ends its session, or ten minutes later.
            later_s = clock_s + WAIT_STEP_S
            clock_s = self._open_s(min((until_s for until_s in busy.values() if clock_s < until_s < later_s), default=later_s))

    def _open_s(self, clock_s: float) -> float:
        return clock_s if self.calendar is None else self.calendar.open_s(clock_s)

    def eligible(
        self,
        seed: int,
        clients: int,
        asked: int,
        round_: int,
        clock_s: float,
        busy: Mapping[int, float],
        choose: Choose | None = None,
    ) -> np.ndarray:
        """Return ``asked`` clients that are eligible and not busy, or fewer, in the order in which they were drawn.

        ``choose`` returns which of all eligible clients, in random order, are asked; None: the first.
        """
        if choose is not None:
            return choose(self.eligible(seed, clients, clients, round_, clock_s, busy), asked)
        parts: list[np.ndarray] = []
        count, start = 0, 0
        working = np.array([client for client, until in busy.items() if until > clock_s], np.int64)
        while count < asked and start < clients:
            stop = min(clients, start + max(asked - count, min(max(start, _SELECT_FIRST), _SELECT_AT_ONCE)))
            drawn = (_first if stop == _SELECT_FIRST else _drawn)(seed, clients, start, stop, round_)
            drawn = drawn[~np.isin(drawn, working) & (self.availability.until(drawn, clock_s) > clock_s)]
            drawn = drawn if self.left_out is None else drawn[~self.left_out.has(drawn)]
            parts.append(drawn[: asked - count])
            count, start = count + len(parts[-1]), stop
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _drawn(seed: int, clients: int, start: int, stop: int, round_: int) -> np.ndarray:
    """Return the clients from place ``start`` to ``stop`` of a round's random order."""
    return shuffled(seed, clients, np.arange(start, stop), round_, "select")


_first = lru_cache(maxsize=4096)(_drawn)
"""The same for the first clients, 2 KB a round. The policies of a what-if have them in common."""
