"""What a server has between two rounds, and what the fleet remembers: the simulated clock, who is still at work, batteries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from edgefl.methods.base import GlobalState
from edgefl.records import Expected


@dataclass(frozen=True)
class Flight:
    """A client at work while the server goes on, in mode async: when it was asked, at which turn, with the model of which step.

    ``expected`` follows from the rest, as does ``payload``, what it was sent, from the state of that step: neither is in the JSON form.
    """

    client: int
    turn: int
    step: int
    start_s: float
    expected: Expected = field(compare=False)
    payload: bytes = field(default=b"", compare=False, repr=False)

    @property
    def end_s(self) -> float:
        """The clock when its session ends."""
        return self.start_s + self.expected.total_s

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {"client": self.client, "turn": self.turn, "step": self.step, "start_s": self.start_s}


@dataclass(frozen=True)
class FleetMemory:
    """What clients carry from one round into the next.

    Attributes:
        busy: client → the clock when it will be done with a session whose round has closed.
        drained_j: client → what its sessions drew from its battery since it was charged, at the midnight before.
        day: the local day that ``drained_j`` speaks of.
        flights: the sessions that are not over, in mode async.
        turns: how many clients were asked so far, in mode async.
    """

    busy: Mapping[int, float] = field(default_factory=dict)
    drained_j: Mapping[int, float] = field(default_factory=dict)
    day: int = 0
    flights: tuple[Flight, ...] = ()
    turns: int = 0

    def at(self, clock_s: float, day: int = 0) -> FleetMemory:
        """Return what is left of it at a later time: who is still at work, and what was drained on that ``day``."""
        busy = {client: until for client, until in self.busy.items() if until > clock_s}
        return replace(self, busy=busy, drained_j=self.drained_j if day == self.day else {}, day=day)

    def after(self, sessions: Iterable[Expected], clock_s: float, battery: bool) -> FleetMemory:
        """Return it after sessions, at the clock when their round closes."""
        busy, drained_j = dict(self.busy), dict(self.drained_j)
        for session in sessions:
            if (timing := session.timing) is None:
                continue
            if session.start_s + timing.total_s > clock_s:
                busy[session.client] = session.start_s + timing.total_s
            if battery:
                drained_j[session.client] = drained_j.get(session.client, 0.0) + timing.total_j
        return replace(self, busy=busy, drained_j=drained_j)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form."""
        simple = {"busy": dict(self.busy), "drained_j": dict(self.drained_j), "day": self.day, "turns": self.turns}
        return {**simple, "flights": [flight.to_json() for flight in self.flights]}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], flight: Callable[[Mapping[str, Any]], Flight]) -> FleetMemory:
        """Return it from its JSON form, an empty one where nothing was written; ``flight`` works out what flights leave out."""
        numbers = [{int(c): float(x) for c, x in values.get(key, {}).items()} for key in ("busy", "drained_j")]
        flights = tuple(map(flight, values.get("flights", ())))
        return cls(numbers[0], numbers[1], int(values.get("day", 0)), flights, int(values.get("turns", 0)))


@dataclass(frozen=True)
class Standing:
    """What a server has between two rounds: the method's state, the memory of optimizer and objective, clock and fleet."""

    state: GlobalState
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    clock_s: float = 0.0
    fleet: FleetMemory = field(default_factory=FleetMemory)
