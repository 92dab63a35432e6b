"""What the server sends, and what it makes of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from edgefl.client.job import Job
from edgefl.client.objective import Objective
from edgefl.client.objectives.none import PLAIN
from edgefl.client.parts import trained_shapes
from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState
from edgefl.records import Expected, Outcome, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.client_store import ClientStore
from edgefl.server.control_variates import Control
from edgefl.server.optimizer import ServerOptimizer
from edgefl.server.optimizers.avg import AVERAGE
from edgefl.timing.spans import span
from edgefl.wire.message import Blob
from edgefl.wire.payload import decode, encode

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rules:
    """How a run's updates are made and put together: what stays the same over all of its rounds.

    ``graphs`` gives a tier's training steps where onnxruntime takes them; None: torch does.
    """

    seed: int
    codec: str = "fp32"
    objective: Objective = PLAIN
    optimizer: ServerOptimizer = AVERAGE
    graphs: Callable[[Method, Tier], StepGraphs] | None = None


@dataclass
class Outbox:
    """What is sent of one state. A tier's payload is made once where it is the same for every client of the tier."""

    method: Method
    state: GlobalState
    rules: Rules
    control: Control
    round: int
    parameters: dict[Tier, Shapes] = field(default_factory=dict)
    answers: dict[Tier, Shapes] = field(default_factory=dict)
    _made: dict[tuple[Tier, int], tuple[Submodel, bytes]] = field(default_factory=dict)

    def send(self, client: int, tier: Tier, drawn: int | None = None) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload; what it is to answer is the same for all clients of its tier.

        ``drawn`` is the round whose draws decide which part of the state it is; None stands for this one.
        """
        if tier not in self.answers:
            self.answers[tier] = self.method.upload_shapes(self.state.architecture, tier)
        if self.rules.objective.remembers and tier not in self.parameters:
            self.parameters[tier] = trained_shapes(self.method, self.state.architecture, tier)
        round_ = self.round if drawn is None else drawn
        if self.method.per_client:
            return self._make(tier, round_, client)
        if (tier, round_) not in self._made:
            self._made[tier, round_] = self._make(tier, round_)
        return self._made[tier, round_]

    def shapes(self, tier: Tier) -> Shapes:
        """Return name → shape of what a client of ``tier`` is sent."""
        control = self.rules.objective.control_shapes(self.parameters.get(tier, {}))
        return {**self.method.shapes(self.state.architecture, tier), **control}

    def job(self, expected: Expected, payload: bytes, kept: bytes | None, round_: int | None = None) -> Job:
        """Return what a client is to do with a payload, of an earlier round or of this one."""
        assert expected.tier is not None  # nothing is sent to a client that is refused
        return Job(
            self.round if round_ is None else round_,
            expected.client,
            self.method,
            expected.tier,
            payload,
            kept,
            expected.memory_bytes,
            expected.micro_batch,
            None if self.rules.graphs is None else self.rules.graphs(self.method, expected.tier),
        )

    def receive(self, outcome: Outcome, samples: int, submodel: Submodel, store: ClientStore) -> Update:
        """Return the checked update of a client that trained on ``samples`` samples, and store what the client keeps.

        The update's control variates are taken out.
        """
        if outcome.kept:
            with span("keep"):
                store.put(outcome.client, outcome.kept)
        names = self.parameters.get(submodel.tier, {})
        extra = self.rules.objective.control_shapes(names)
        expected = {**self.answers[submodel.tier], **extra}
        with span("decode", client=outcome.client):
            tensors = decode(outcome.payload, expected, f"client {outcome.client}", self.rules.codec, copy=False)
        self.control.add(submodel, names, tensors, self.state)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in extra}
        return Update(outcome.client, submodel.tier, tensors, submodel.places, samples)

    def aggregated(self, updates: Iterator[Update], memory: Mapping[str, Tensor]) -> tuple[GlobalState, Mapping[str, Tensor]]:
        """Return the state and the server's memory after ``updates``, consumed as they come; both as they are where none comes."""
        with span("aggregate", round=self.round):
            if (first := next(updates, None)) is None:
                return self.state, memory
            after = self.method.aggregate(self.state, chain([first], updates))
            after, kept = self.control.finish(self.state, after)
            tensors, slots = self.rules.optimizer.step(self.state.tensors, after.tensors, memory)
            return after.replace(tensors), {**kept, **slots}

    def _make(self, tier: Tier, round_: int, client: int | None = None) -> tuple[Submodel, bytes]:
        key = (round_, "submodel") if client is None else (round_, client, "submodel")
        with span("factorize", tier=tier.label):
            submodel = self.method.submodel(self.state, tier, generator(self.rules.seed, *key), client)
            control = self.control.variates(submodel, self.parameters.get(tier, {}))
        with span("encode", tier=tier.label):
            payload = encode({**submodel.tensors, **control})
            return submodel, payload if self.method.per_client else Blob(payload)
