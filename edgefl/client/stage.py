"""The contract of a stage: one thing that happens to every update between the client that trained it and the next global model.

A stage is frozen and has no state. The chain of a run (:mod:`edgefl.server.chain`) is an ordered tuple of stages, made once. Each of a
stage's moments does nothing unless it is written:

========== ======================================================================================================================
on clients ``leave``: the update before it is sent; ``folded``: what a process that trains clients does before it adds updates up
arrival    ``counts``: the samples that an update counts for; ``admit``: one update
a round    ``together``: all updates; ``summed``: their sums by tier; ``step``: the trained tensors of the next model
figures    ``adds``: what a session costs; ``meeting``: who waits for whom; ``record``: figures of the round
sending    ``sends``, of the shapes ``beside``: tensors with a sub-model; ``hands``: what one client is told
========== ======================================================================================================================

What a stage remembers from round to round are tensors: of the server in :attr:`Turn.after`, of a client in :attr:`Leaving.memory`. Both
are in checkpoints. A stage that needs every update (it has an ``admit`` without ``folded``, a ``together``, or memory on clients) stops
workers from adding updates up.

A stage of your own is a plug-in: a class decorated ``@stage("name", needs=("uploads",))``, which a run names in its key ``stages``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, auto
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict
from torch import Tensor

from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState, Shapes, Tensors
from edgefl.methods.tier_sum import TierSum
from edgefl.models.base import Architecture
from edgefl.records import Cost, Expected, Observed, Screened, Submodel, Tier, Update
from edgefl.registry import stages
from edgefl.rng import generator
from edgefl.util.validation import with_options
from edgefl.wire.message import MessageFields

TierSums = Mapping[Tier, TierSum]
"""The sum of each tier's updates."""


@dataclass(frozen=True)
class Leaving:
    """The update of a client, on its way out.

    Attributes:
        tensors: what the client would send, by name.
        received: what it was sent, by name.
        labels: the labels that it has samples of; None: it does not tell.
        payload: the encoded update; empty until a stage encodes it.
        figures: what the client reports beside its update, by name.
        memory: what the stage stored on this client in its last round, by name; :meth:`Stage.first_memory` before its first.
    """

    tensors: Tensors
    received: Tensors
    labels: tuple[int, ...] | None = None
    payload: bytes = b""
    figures: Mapping[str, float] = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class AtClient:
    """One client in one round.

    Attributes:
        seed: seed of the run.
        handed: what the server told this client for the stage, as JSON; None: nothing.
        departs: whether it is one of those that do not do as the server asks; it leaves out what only it could check.
    """

    seed: int
    round: int
    client: int
    handed: Any = None
    departs: bool = False

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the client's generator of this round for a purpose."""
        return generator(self.seed, self.round, self.client, purpose)


@dataclass
class Turn:
    """One round on the server, as stages see it.

    Attributes:
        model: the state of the server before the round.
        memory: the tensors that stages stored before the round, by name.
        number: the round's number, from 1.
        seed: seed of the run.
        clients: number of clients of the run.
        asked: what is expected of the clients of a synchronous round.
        submodel: tier → what its clients are sent in this round.
        shapes: tier → name → shape of the tensors that its clients send.
        trained: tier → name → shape of the parameters among them.
        folds: whether updates are added up where clients train.
        check: refuses tensors of the client that the text names, with a WireError.
        claims: the samples that clients claim to have; empty: the server knows them.
        found: client → what stages found in its update.
        tiers: client → its tier.
        after: the tensors that stages store until the next round, by name; others stay as they are.
    """

    method: Method
    model: GlobalState
    memory: Tensors
    number: int
    seed: int
    clients: int
    asked: Sequence[Expected]
    submodel: Callable[[Tier], Submodel]
    shapes: Callable[[Tier], Mapping[str, tuple[int, ...]]]
    trained: Callable[[Tier], Mapping[str, tuple[int, ...]]]
    folds: bool = False
    check: Callable[[Tensors, str], None] = lambda tensors, who: None
    claims: list[int] = field(default_factory=list)
    found: dict[int, Screened] = field(default_factory=dict)
    tiers: dict[int, Tier] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    _notes: dict[int, Any] = field(default_factory=dict)

    def draw(self, purpose: str) -> np.random.Generator:
        """Return the server's generator of this round for a purpose."""
        return generator(self.seed, self.number, purpose)

    def note(self, update: Update, **fields: Any) -> None:
        """Record what a stage observed in an update: ``fields`` of :class:`edgefl.records.Screened`."""
        self.found[update.client] = replace(self.found.get(update.client, Screened()), **fields)
        self.tiers[update.client] = update.tier

    def notes(self, stage: Stage, make: Callable[[], Any]) -> Any:
        """Return what a stage notes in this round: an object that ``make`` returns when it is asked for first."""
        key = id(stage)
        if key not in self._notes:
            self._notes[key] = make()
        return self._notes[key]


class StagePlace(IntEnum):
    """Where a kind of stage stands in the order of the server; stages of one place stay as they are given."""

    DECODED = auto()
    REMEMBERED = auto()
    COMPARED = auto()
    CLIPPED = auto()
    NOISED = auto()
    OUTSIDE = auto()
    CAPPED = auto()
    DEFENDED = auto()
    SUMMED = auto()
    STEPPED = auto()


@dataclass(frozen=True)
class Stage:
    """A stage of the chain; the moments that a subclass does not write do nothing."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    place: ClassVar[StagePlace] = StagePlace.OUTSIDE
    """Where it stands; a stage of a plug-in has no place of its own."""
    sums: ClassVar[bool] = False
    """Whether it needs the sums of tiers, also of a method that reads every update."""

    @property
    def name(self) -> str:
        """Its name in the registry, else the name of its class."""
        return stages.name_of(type(self)) or type(self).__name__

    def at_client(self) -> Stage | None:
        """Return the stage as a client needs it; None: it does nothing there."""
        return self if self.writes("leave") or self.writes("folded") else None

    def writes(self, moment: str) -> bool:
        """Whether its class writes a moment."""
        return getattr(type(self), moment) is not getattr(Stage, moment)

    def fields(self) -> MessageFields:
        """Return its fields as JSON has them; the class makes the stage from them in another process."""
        return asdict(self)

    @classmethod
    def of(cls, fields: MessageFields) -> Self:
        """Return the stage of its :meth:`fields`; ConfigError for an unknown one or a wrong value."""
        return with_options(cls, fields)

    @property
    def meeting(self) -> Any:
        """How the clients of a round wait for one another, a :class:`edgefl.server.meeting.Meeting`; None: they do not."""
        return None

    @property
    def folds(self) -> bool:
        """Whether updates may be added up before this stage sees them."""
        reads = self.writes("admit") and not self.writes("folded")
        return not (reads or self.writes("together") or self.writes("first_memory"))

    # Sending.

    def beside(self, trained: Mapping[str, tuple[int, ...]]) -> Shapes:
        """Return name → shape of tensors that travel beside an update or a sub-model with the parameters ``trained``, both ways."""
        return {}

    def sends(self, submodel: Submodel, turn: Turn) -> Tensors:
        """Return the tensors of :meth:`beside` to send with a sub-model."""
        return {}

    def hands(self, session: Expected, weight: int, turn: Turn) -> Any:
        """Return what one client is told for this stage, as JSON; ``weight`` is that of its update in a sum."""
        return None

    # On a client.

    def first_memory(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return what the stage stores on a client before its first round, by name, given the ``shapes`` that it receives."""
        return {}

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        """Return the update as it leaves the client."""
        return leaving

    def folded(self, update: Update, handed: Any) -> Update:
        """Return the update as it is added up where its client trained. It has the tensors that the client was sent in ``start``."""
        return update

    # On the server.

    def counts(self, client: int, samples: int, turn: Turn) -> int:
        """Return how many samples the update of a client counts for."""
        return samples

    def admit(self, update: Update, turn: Turn) -> Update:
        """Return one update as the server believes it; WireError if it is damaged. One that was ``folded`` has no tensors."""
        return update

    def together(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Yield the updates of a round as they are aggregated."""
        return updates

    def summed(self, sums: TierSums, turn: Turn) -> TierSums:
        """Return the sums of a round as they are aggregated; empty: the method aggregates updates."""
        return sums

    def step(self, before: Tensors, after: Tensors, turn: Turn) -> Mapping[str, Tensor]:
        """Return the trained tensors of the next model, given those ``before`` the round and their aggregate ``after``."""
        return after

    def adds(self, cost: Cost, method: Method, architecture: Architecture, tier: Tier, clients: int) -> Cost:
        """Return the cost of a tier with what the stage adds to a session, if ``clients`` are asked in a round."""
        return cost

    def record(self, turn: Turn) -> Observed:
        """Return figures of the round, by name, after its last step."""
        return {}
