"""What the server sends to clients, and how it aggregates what they send back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from edgefl.client.job import Job
from edgefl.client.objective import Objective
from edgefl.client.objectives.none import PLAIN
from edgefl.client.parts import trained_shapes
from edgefl.methods.base import Method
from edgefl.records import Outcome, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.client_store import ClientStore
from edgefl.server.control_variates import Control
from edgefl.server.optimizer import ServerOptimizer
from edgefl.server.optimizers.avg import AVERAGE
from edgefl.server.state import OpenSession, ServerState
from edgefl.timing.spans import span
from edgefl.wire.message import Blob
from edgefl.wire.payload import decode, encode

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ExchangeRules:
    """How updates are made and aggregated, the same in all rounds of a run.

    Attributes:
        codec: name of the codec of updates.
        optimizer: the server's.
        graphs: gives a tier's training steps if onnxruntime trains; None: torch does.
    """

    seed: int
    codec: str = "fp32"
    objective: Objective = PLAIN
    optimizer: ServerOptimizer = AVERAGE
    graphs: Callable[[Method, Tier], StepGraphs] | None = None


@dataclass
class Exchange:
    """One round's payloads and updates. Clients of a tier share one payload unless the method sends each its own.

    Attributes:
        state: the server's state before the round.
        clients: how many clients the run has.
        control: the objective's part on the server.
        sent: a sub-model without tensors for everything that was sent.
    """

    method: Method
    state: ServerState
    rules: ExchangeRules
    clients: int
    control: Control = field(init=False)
    sent: list[Submodel] = field(default_factory=list)
    _parameters: dict[Tier, Shapes] = field(default_factory=dict)
    _answers: dict[Tier, Shapes] = field(default_factory=dict)
    _made: dict[tuple[Tier, int], tuple[Submodel, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.control = Control(self.rules.objective, self.state.memory, self.clients)

    def send(self, client: int, tier: Tier, drawn: int | None = None) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload; ``drawn``: the round that draws its part of the model; None: this one."""
        architecture = self.state.model.architecture
        if tier not in self._answers:
            self._answers[tier] = self.method.upload_shapes(architecture, tier)
        if self.rules.objective.remembers and tier not in self._parameters:
            self._parameters[tier] = trained_shapes(self.method, architecture, tier)
        key = tier, self.state.round + 1 if drawn is None else drawn
        if self.method.per_client:
            made = self._make(*key, client)
        elif key in self._made:
            made = self._made[key]
        else:
            made = self._made[key] = self._make(*key)
        self.sent.append(replace(made[0], tensors={}))
        return made

    def shapes(self, tier: Tier) -> Shapes:
        """Return name → shape of what a client of ``tier`` is sent."""
        control = self.rules.objective.control_shapes(self._parameters.get(tier, {}))
        return {**self.method.shapes(self.state.model.architecture, tier), **control}

    def job(self, session: OpenSession, payload: bytes, kept: bytes | None) -> Job:
        """Return the job of a session, whose client was sent ``payload`` and stored ``kept`` in its last round."""
        graphs = self.rules.graphs and self.rules.graphs(self.method, session.tier)
        limits = session.expected.memory_bytes, session.expected.micro_batch
        return Job(session.step + 1, session.client, self.method, session.tier, payload, kept, *limits, graphs)

    def receive(self, outcome: Outcome, samples: int, submodel: Submodel, store: ClientStore) -> Update:
        """Return the verified update of a client without its control variates, and store what the client keeps."""
        if outcome.kept:
            with span("keep"):
                store.put(outcome.client, outcome.kept)
        names = self._parameters.get(submodel.tier, {})
        extra = self.rules.objective.control_shapes(names)
        expected = {**self._answers[submodel.tier], **extra}
        with span("decode", client=outcome.client):
            tensors = decode(outcome.payload, expected, f"client {outcome.client}", self.rules.codec, copy=False)
        self.control.add(submodel, names, tensors, self.state.model)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in extra}
        return Update(outcome.client, submodel.tier, tensors, submodel.places, samples)

    def aggregated(self, updates: Iterator[Update]) -> ServerState:
        """Return the state with the model and the memory after ``updates``; without an update, the state as it is."""
        state = self.state
        with span("aggregate", round=state.round + 1):
            if (first := next(updates, None)) is None:
                return state
            after = self.method.aggregate(state.model, chain([first], updates))
            after, kept = self.control.finish(state.model, after)
            tensors, slots = self.rules.optimizer.step(state.model.tensors, after.tensors, state.memory)
            return replace(state, model=after.replace(tensors), memory={**kept, **slots})

    def _make(self, tier: Tier, round_: int, client: int | None = None) -> tuple[Submodel, bytes]:
        key = (round_, "submodel") if client is None else (round_, client, "submodel")
        with span("factorize", tier=tier.label):
            submodel = self.method.submodel(self.state.model, tier, generator(self.rules.seed, *key), client)
            control = self.control.variates(submodel, self._parameters.get(tier, {}))
        with span("encode", tier=tier.label):
            payload = encode({**submodel.tensors, **control})
            return submodel, payload if self.method.per_client else Blob(payload)


_FIRST_CLIENT = 0
"""If each client of a tier is sent a part of its own, real devices of the tier all train the part of this client."""


def device_submodel(
    method: Method, state: ServerState, rules: ExchangeRules, clients: int, tier: Tier
) -> tuple[Submodel, dict[str, Tensor]]:
    """Return the sub-model that a bundle made of ``state`` has for ``tier``, and the tensors sent with it.

    The same arguments give the same parts of the model, so a bundle need not store where an update belongs. ``clients`` is how many the
    run has. With ``scaffold`` the tensors include the server's control variates, under ``control:``.
    """
    exchange = Exchange(method, state, rules, clients)
    submodel, payload = exchange.send(_FIRST_CLIENT, tier)
    return submodel, decode(payload, exchange.shapes(tier), f"the server to tier {tier.label}")
