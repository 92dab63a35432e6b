"""The state of a server between two rounds, and its memory of the fleet: the simulated clock, open sessions, batteries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from edgefl.errors import AggregationError, NotFiniteError
from edgefl.fleet.calendar import Today
from edgefl.methods.state import GlobalState
from edgefl.records import Expected, Tier
from edgefl.registry import Options
from edgefl.util.compute import is_finite


@dataclass(frozen=True)
class OpenSession:
    """A session that has not ended.

    Attributes:
        turn: number of the request that opened it; in a synchronous round, the number of the round.
        step: number of steps that the server had made when it sent the model.
        expected: what the server expects of the client.
    """

    turn: int
    step: int
    expected: Expected

    @property
    def client(self) -> int:
        """The client's number."""
        return self.expected.client

    @property
    def tier(self) -> Tier:
        """The client's tier."""
        assert self.expected.tier is not None  # a refused client has no session
        return self.expected.tier

    @property
    def end_s(self) -> float:
        """The simulated clock when the session ends."""
        return self.expected.start_s + self.expected.total_s


@dataclass(frozen=True)
class FleetMemory:
    """The server's memory of its clients between two rounds.

    Attributes:
        busy: client → simulated time in seconds at which it ends a session whose round has closed.
        drained_j: client → joules that its sessions drew from its battery since midnight, when batteries are charged.
        day: the day, counted from the start of the run, that ``drained_j`` is about.
        sessions: the open sessions, in mode async.
        turns: number of clients selected so far, in mode async.
        today: what has begun on the newest day of the fleet's calendar.
    """

    busy: Mapping[int, float] = field(default_factory=dict)
    drained_j: Mapping[int, float] = field(default_factory=dict)
    day: int = 0
    sessions: tuple[OpenSession, ...] = ()
    turns: int = 0
    today: Today = field(default_factory=Today)

    def at(self, clock_s: float, day: int = 0) -> FleetMemory:
        """Return the memory at a later time: only clients that are still busy, and no drained joules if the ``day`` is another one."""
        busy = {client: until for client, until in self.busy.items() if until > clock_s}
        return replace(self, busy=busy, drained_j=self.drained_j if day == self.day else {}, day=day)

    def after(self, sessions: Iterable[Expected], clock_s: float, battery: bool) -> FleetMemory:
        """Return the memory with the sessions of a round that closes at ``clock_s``; ``battery``: whether sessions drain batteries."""
        begun = ((s.client, s.start_s + s.timing.total_s, s.timing.total_j) for s in sessions if s.timing is not None)
        return self.having(begun, clock_s, battery)

    def having(self, begun: Iterable[tuple[int, float, float | None]], clock_s: float, battery: bool) -> FleetMemory:
        """Return the memory with sessions that have ``begun``: client, the clock at its end, and joules; see :meth:`after`."""
        busy, drained_j = dict(self.busy), dict(self.drained_j)
        for client, end_s, joules in begun:
            if end_s > clock_s:
                busy[client] = end_s
            if battery and joules is not None:  # a device with a battery has figures of energy
                drained_j[client] = drained_j.get(client, 0.0) + joules
        return replace(self, busy=busy, drained_j=drained_j)


@dataclass(frozen=True)
class ServerState:
    """The state of a server between two rounds. A checkpoint stores all of it, and a resumed run continues with it.

    Attributes:
        model: the global model, in the method's own parameters.
        memory: tensors of the server optimizer and of the objective, by prefixed name.
        clock_s: simulated time in seconds.
        round: number of rounds so far.
        options: the method's options in its present phase.
        clients: the hash of the client store (:attr:`edgefl.server.client_store.ClientStore.chain`), which proves that it belongs to this
            state; empty if clients have stored nothing.
    """

    model: GlobalState
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    clock_s: float = 0.0
    fleet: FleetMemory = field(default_factory=FleetMemory)
    round: int = 0
    options: Options = field(default_factory=dict)
    clients: str = ""


def check_aggregated(before: GlobalState, after: object, what: str) -> None:
    """Raise :class:`AggregationError` unless ``what`` returned a state ``after`` with the tensors of ``before``, all finite."""
    if not isinstance(after, GlobalState):
        raise AggregationError(f"{what} returned {type(after).__name__}, expected a GlobalState, such as state.replace(tensors)")
    if different := sorted(before.tensors.keys() ^ after.tensors.keys()):
        raise AggregationError(f"{what} returned a state with tensors missing or not expected: {', '.join(different[:5])}")
    for name, tensor in before.tensors.items():
        returned: object = after.tensors[name]
        actual = f"{tuple(returned.shape)} {returned.dtype}" if isinstance(returned, Tensor) else type(returned).__name__
        if actual != (expected := f"{tuple(tensor.shape)} {tensor.dtype}"):
            raise AggregationError(f"{what} returned {name} as {actual}, expected {expected}")
        if not is_finite(after.tensors[name]):
            raise NotFiniteError(f"{what} returned {name} with NaN or infinity, expected finite values")
