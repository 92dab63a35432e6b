"""What a server has between two rounds, and what it remembers of its fleet: the simulated clock, open sessions, batteries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from edgefl.methods.state import GlobalState
from edgefl.records import Expected, Tier


@dataclass(frozen=True)
class OpenSession:
    """A session that has not ended.

    Attributes:
        turn: the number of the request that opened it; in a synchronous round, the round's.
        step: how many steps the server had made when it sent the model.
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
    """What the server remembers of its clients between two rounds.

    Attributes:
        busy: client → the clock when it ends a session whose round has closed.
        drained_j: client → joules that its sessions drew from its battery since midnight, when batteries are charged.
        day: the local day of ``drained_j``.
        sessions: the open sessions, in mode async.
        turns: how many clients were asked so far, in mode async.
    """

    busy: Mapping[int, float] = field(default_factory=dict)
    drained_j: Mapping[int, float] = field(default_factory=dict)
    day: int = 0
    sessions: tuple[OpenSession, ...] = ()
    turns: int = 0

    def at(self, clock_s: float, day: int = 0) -> FleetMemory:
        """Return what is left of it at a later time: clients that are still busy, and what was drained on that ``day``."""
        busy = {client: until for client, until in self.busy.items() if until > clock_s}
        return replace(self, busy=busy, drained_j=self.drained_j if day == self.day else {}, day=day)

    def after(self, sessions: Iterable[Expected], clock_s: float, battery: bool) -> FleetMemory:
        """Return it with the sessions of a round that closes at ``clock_s``; ``battery``: whether batteries drain."""
        busy, drained_j = dict(self.busy), dict(self.drained_j)
        for session in sessions:
            if (timing := session.timing) is None:
                continue
            if session.start_s + timing.total_s > clock_s:
                busy[session.client] = session.start_s + timing.total_s
            if battery:
                drained_j[session.client] = drained_j.get(session.client, 0.0) + timing.total_j
        return replace(self, busy=busy, drained_j=drained_j)


@dataclass(frozen=True)
class ServerState:
    """What a server has between two rounds. A checkpoint stores all of it, and a resumed run continues with it.

    Attributes:
        model: the method's state.
        memory: tensors of the server's optimizer and of the objective, by name.
        round: how many rounds there were.
        options: the method's options in its present phase.
        clients: the chain of :class:`edgefl.server.client_store.ClientStore`, which proves that the store belongs to this state; empty if
            clients have stored nothing.
    """

    model: GlobalState
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    clock_s: float = 0.0
    fleet: FleetMemory = field(default_factory=FleetMemory)
    round: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: str = ""
