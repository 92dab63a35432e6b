"""What the server sends to clients, and how it aggregates what they send back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from edgefl.client.adversary import Adversaries
from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.client.objective import Objective
from edgefl.client.objectives.none import PLAIN
from edgefl.client.parts import trained_shapes
from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState
from edgefl.records import Expected, Outcome, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.central import Central, applied, summed
from edgefl.server.client_store import ClientStore
from edgefl.server.control_variates import Control
from edgefl.server.optimizer import ServerOptimizer
from edgefl.server.optimizers.avg import AVERAGE
from edgefl.server.screening import NO_SCREENING, Screen, Screening
from edgefl.server.secure_sums import SecureRules, SecureSums
from edgefl.server.state import OpenSession, ServerState, check_aggregated
from edgefl.server.statistics import statistics
from edgefl.timing.spans import span
from edgefl.wire.message import Blob
from edgefl.wire.payload import decode, encode

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Shapes = Mapping[str, tuple[int, ...]]
Check = Callable[[Mapping[str, Tensor], str], None]
"""Refuses tensors of the client that the text names."""


@dataclass(frozen=True)
class ExchangeRules:
    """How updates are encoded and aggregated, the same in all rounds of a run.

    Attributes:
        seed: seed of the random draws of sub-models.
        codec: name of the codec of updates.
        objective: what clients add to their loss, and the server's half of it.
        optimizer: the server optimizer.
        graphs: (method, tier) → training steps as ONNX graphs, if onnxruntime trains; None: torch trains.
        screening: what the server believes of updates.
        secure: how updates are added up securely; None: they are sent plain.
        central: the noise that the server adds; None: none.
        equal_weights: whether every update counts the same, whatever its samples.
        adversaries: clients that may claim other samples than they have; None: every client says the truth.
    """

    seed: int
    codec: str = "fp32"
    objective: Objective = PLAIN
    optimizer: ServerOptimizer = AVERAGE
    graphs: Callable[[Method, Tier], StepGraphs] | None = None
    screening: Screening = NO_SCREENING
    secure: SecureRules | None = None
    central: Central | None = None
    equal_weights: bool = False
    adversaries: Adversaries | None = None


@dataclass
class Exchange:
    """The payloads and updates of one round. Clients of a tier share one payload, unless the method sends one to each client.

    Attributes:
        state: the server's state before the round.
        clients: how many clients the run has.
        synchronous: whether all updates are of the same round, so that clients of a tier were sent the same.
        asked: what is expected of the clients of a synchronous round.
        control: the server's half of the objective.
        sent: the sub-models that were sent, without their tensors.
        sums: the sums of updates by tier; None: the server needs every update.
        screen: what the screening finds in each update.
        secure: the sums of masked updates; None: updates are sent plain.
        observed: figures of the round for its record.
    """

    method: Method
    state: ServerState
    rules: ExchangeRules
    clients: int
    synchronous: bool = False
    asked: Sequence[Expected] = ()
    control: Control = field(init=False)
    screen: Screen = field(init=False)
    sums: Sums | None = field(init=False, default=None)
    secure: SecureSums | None = field(init=False, default=None)
    sent: list[Submodel] = field(default_factory=list)
    observed: dict[str, Any] = field(default_factory=dict)
    _parameters: dict[Tier, Shapes] = field(default_factory=dict)
    _answers: dict[Tier, Shapes] = field(default_factory=dict)
    _made: dict[tuple[Tier, int], tuple[Submodel, bytes]] = field(default_factory=dict)
    _claims: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control = Control(self.rules.objective, self.state.memory, self.clients)
        screening = self.rules.screening
        self.screen = Screen(screening, self.state.memory, screening.cap())
        folds = self.synchronous and (self.method.folds or self.rules.central is not None) and not screening.holds
        if self.rules.secure is not None:
            turn = self.state.round + 1
            self.secure = SecureSums(self.method, self.state.model.architecture, self.rules.secure, turn, self.asked)
        elif folds and not self.rules.objective.remembers and not self._stores():
            self.sums = Sums(self.method, self.state.model.architecture, self.rules.codec)

    def send(self, client: int, tier: Tier, drawn: int | None = None) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload.

        Which part of the model a sub-model has may be drawn at random: ``drawn`` is the round of that draw, None the present round.
        """
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
        """Return name → shape of the tensors in the payload for a client of ``tier``."""
        control = self.rules.objective.control_shapes(self._parameters.get(tier, {}))
        return {**self.method.shapes(self.state.model.architecture, tier), **control}

    def job(self, session: OpenSession, payload: bytes, kept: bytes | None, eval_after_training: bool = False) -> Job:
        """Return the job of a session: its client received ``payload`` and stored ``kept`` after its last session (None: it had none)."""
        graphs = self.rules.graphs and self.rules.graphs(self.method, session.tier)
        limits = session.expected.memory_bytes, session.expected.micro_batch
        of_client = session.step + 1, session.client, self.method, session.tier
        samples, bound = self._counted(self.screen.counted(self.samples_of(session))), self.screen.bound(session.tier)
        weight = samples if self.method.weighs_samples else min(samples, 1)
        masking = None if self.secure is None else self.secure.masking(session.expected, weight)
        known = *of_client, payload, kept, *limits, graphs, eval_after_training, session.expected.recompute
        summed, clip_norm = None if self.sums is None else weight, None if self.sums is None and masking is None else bound
        return Job(*known, weight=summed, clip_norm=clip_norm, masking=masking)

    def samples_of(self, session: OpenSession) -> int:
        """Return how many samples the client of a session says it has."""
        samples, adversaries = session.expected.samples, self.rules.adversaries
        return samples if adversaries is None else adversaries.claimed(session.client, samples)

    def hear(self, sessions: Iterable[OpenSession]) -> None:
        """Cap the samples of the round by what the clients of ``sessions``, and of those before, claim; nothing if all are believed."""
        if self.rules.adversaries is not None and self.rules.adversaries.kind.claims:
            self._claims += map(self.samples_of, sessions)
            self.screen.cap = self.rules.screening.cap(self._claims)

    def receive(
        self, outcome: Outcome, samples: int, submodel: Submodel, store: ClientStore, check: Check = lambda tensors, who: None
    ) -> Update:
        """Return the verified update of a client, without its control variates; write what the client stores to ``store``.

        ``check`` refuses tensors with a WireError, before the server remembers anything of them.

        Raises:
            WireError: the payload is damaged, or has other tensors than expected; names the client.
        """
        if outcome.kept:
            with span("keep"):
                store.put(outcome.client, outcome.kept)
        names = self._parameters.get(submodel.tier, {})
        extra = self.rules.objective.control_shapes(names)
        expected = {**self._answers[submodel.tier], **extra}
        with span("decode", client=outcome.client):
            tensors = decode(outcome.payload, expected, f"client {outcome.client}", self.rules.codec, copy=False)
        check(tensors, f"client {outcome.client}")
        self.control.add(submodel, names, tensors, self.state.model)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in extra}
        return Update(outcome.client, submodel.tier, tensors, submodel.places, self._counted(samples), outcome.labels)

    def receive_masked(self, outcome: Outcome, session: OpenSession, store: ClientStore) -> None:
        """Add the masked update of a client to the sum of its group; write what the client stores to ``store``; WireError if damaged."""
        assert self.secure is not None
        if outcome.kept:
            with span("keep"):
                store.put(outcome.client, outcome.kept)
        self.secure.add(session.expected, outcome)

    def aggregated(self, updates: Iterator[Update]) -> ServerState:
        """Return the state with the model and the memory after ``updates`` and those in :attr:`sums`; without any, the same state."""
        state, central = self.state, self.rules.central
        with span("aggregate", round=state.round + 1):
            first = next(updates, None)
            if central is not None:
                after = self._noised(central, updates if first is None else chain([first], updates))
            elif self.secure is not None:
                made = {tier: submodel for (tier, _), (submodel, _) in self._made.items()}
                if not (secure := self.secure.sums(made)):
                    return state
                after = self.method.finish(state.model, secure)
            elif self.sums is not None and self.sums.tiers:
                sent = {tier: self._made[tier, state.round + 1][0].places for tier in self.sums.tiers}
                after = self.method.finish(state.model, ((sent[tier], of) for tier, of in self.sums.tiers.items()))
            elif first is not None:
                after = self.method.aggregate(
                    state.model, self.screen.defended(self.method, state.model, chain([first], updates))
                )
            else:
                return state
            check_aggregated(state.model, after, f"method {type(self.method).title}: aggregation")
            after, kept = self.control.finish(state.model, after)
            after, slots = self._stepped(after)
            bounds = self.screen.bounds_after() if central is None else self._noised_bounds(central)
            return replace(state, model=after, memory={**kept, **slots, **bounds})

    def _stepped(self, after: GlobalState) -> tuple[GlobalState, dict[str, Tensor]]:
        """Return the model after the server optimizer's step towards the aggregate ``after``, and the optimizer's slots.

        Statistics are those of the aggregate.
        """
        if self.rules.optimizer == AVERAGE:  # its step is the aggregate, which was checked
            return after, {}
        names = statistics(self.method, self.state.model)
        averaged = {name: tensor for name, tensor in after.tensors.items() if name in names}
        trained = {name: tensor for name, tensor in after.tensors.items() if name not in names}
        tensors, slots = self.rules.optimizer.step(self.state.model.tensors, trained, self.state.memory)
        stepped = after.replace({**averaged, **tensors})
        check_aggregated(after, stepped, f"server optimizer {type(self.rules.optimizer).__name__}: its step")
        return stepped, slots

    def _noised(self, central: Central, updates: Iterator[Update]) -> GlobalState:
        """Return the model after ``updates`` and those in :attr:`sums`, whose sums get noise; tiers without clients get it too."""
        model = self.state.model
        sums = {} if self.sums is None else self.sums.tiers
        summed(self.method, model, updates, sums)
        bounds = {tier: self._bound(tier) for tier in central.clients}
        sent = {tier: self._made.get((tier, self.state.round + 1)) or self._make(tier, self.state.round + 1) for tier in bounds}
        self.observed["noise_std"] = {tier.label: central.sum_multiplier * bound for tier, bound in bounds.items()}
        of_tiers = central.updates(self.method, model, sums, {tier: made[0] for tier, made in sent.items()}, bounds, self._draw)
        return applied(self.method, model, central.clients, of_tiers)

    def _noised_bounds(self, central: Central) -> dict[str, Tensor]:
        clipping = self.rules.screening.clipping
        assert clipping is not None  # noise needs clipping, which is checked with the configuration
        return central.bounds(clipping, self.state.memory, self.screen.norms(), self._draw)

    def _bound(self, tier: Tier) -> float:
        bound = self.screen.bound(tier)
        assert bound is not None  # as above
        return bound

    def _draw(self, purpose: str) -> np.random.Generator:
        return generator(self.rules.seed, self.state.round + 1, purpose)

    def _counted(self, samples: int) -> int:
        return min(samples, 1) if self.rules.equal_weights else samples

    def _stores(self) -> bool:
        model = self.state.model
        return any(self.method.stores(model.architecture, tier) for tier in model.tiers)

    def _make(self, tier: Tier, round_: int, client: int | None = None) -> tuple[Submodel, bytes]:
        key = (round_, "submodel") if client is None else (round_, client, "submodel")
        with span("factorize", tier=tier.label):
            submodel = self.method.submodel(self.state.model, tier, generator(self.rules.seed, *key), client)
            control = self.control.variates(submodel, self._parameters.get(tier, {}))
        with span("encode", tier=tier.label):
            payload = encode({**submodel.tensors, **control})
            return submodel, payload if self.method.per_client else Blob(payload)


_FIRST_CLIENT = 0
"""If a method sends each client its own part of the model, all real devices of a tier train the part of this client."""


def device_submodel(
    method: Method, state: ServerState, rules: ExchangeRules, clients: int, tier: Tier
) -> tuple[Submodel, dict[str, Tensor]]:
    """Return the sub-model for ``tier`` in a bundle made from ``state``, and the tensors of its payload by name.

    The same arguments give the same part of the model, so a bundle does not need to store where an update belongs. ``clients`` is the
    number of clients of the run. With ``scaffold`` the tensors include the server's control variates, under ``control:``.
    """
    exchange = Exchange(method, state, rules, clients)
    submodel, payload = exchange.send(_FIRST_CLIENT, tier)
    return submodel, decode(payload, exchange.shapes(tier), f"the server to tier {tier.label}")
