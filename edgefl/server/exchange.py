"""The payloads of a round, and the aggregation of its updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.client.parts import trained_shapes
from edgefl.client.stage import TierSums, Turn
from edgefl.methods.base import Method
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes, stored
from edgefl.methods.state import GlobalState
from edgefl.methods.tier_sum import TierSum, finish, folds, tier_sum
from edgefl.records import Expected, Observed, Outcome, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.chain import Chain
from edgefl.server.client_store import ClientStore
from edgefl.server.distillation import Public
from edgefl.server.state import OpenSession, ServerState, check_aggregated
from edgefl.timing.spans import span
from edgefl.wire.message import Blob
from edgefl.wire.payload import decode, encode

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ExchangeRules:
    """How updates are sent and aggregated, the same in all rounds of a run.

    Attributes:
        seed: seed of the random draws of sub-models and of stages.
        chain: what every update passes.
        graphs: (method, tier) → training steps as ONNX graphs, if onnxruntime trains; None: torch trains.
        claimed: (client, samples) → the samples that it says it has; None: the server knows them.
        public: what a server that distils trains on; None: it does not.
    """

    seed: int
    chain: Chain = field(default_factory=Chain)
    graphs: Callable[[Method, Tier], StepGraphs] | None = None
    claimed: Callable[[int, int], int] | None = None
    public: Public | None = None


@dataclass
class Exchange:
    """The payloads and updates of one round. Clients of a tier share one payload, unless the method sends one to each client.

    Attributes:
        state: the server's state before the round.
        clients: how many clients the run has.
        synchronous: whether all updates are of the same round, so that clients of a tier were sent the same.
        asked: what is expected of the clients of a synchronous round.
        turn: the round as the stages of the chain see it.
        sent: the sub-models that were sent, without their tensors.
        sums: the sums of updates by tier; None: the server receives every update.
        observed: figures of the round for its record, once it is aggregated.
    """

    method: Method
    state: ServerState
    rules: ExchangeRules
    clients: int
    synchronous: bool = False
    asked: Sequence[Expected] = ()
    turn: Turn = field(init=False)
    sums: Sums | None = field(init=False, default=None)
    sent: list[Submodel] = field(default_factory=list)
    observed: Observed = field(default_factory=dict)
    _trained: dict[Tier, Shapes] = field(default_factory=dict)
    _answers: dict[Tier, Shapes] = field(default_factory=dict)
    _made: dict[tuple[Tier, int], tuple[Submodel, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state, rules, links = self.state, self.rules, self.rules.chain
        of_round = state.memory, state.round + 1, rules.seed, self.clients, self.asked
        self.turn = Turn(self.method, state.model, *of_round, self._submodel, self._upload, self._parameters)
        keeps = any(stored(self.method, state.model.architecture, tier) for tier in state.model.tiers)
        if self.synchronous and links.folds and (folds(self.method) or links.sums) and not keeps:
            self.sums = Sums(self.method, state.model.architecture, links.at_clients)
            self.turn.folds = True

    def send(self, client: int, tier: Tier, drawn: int | None = None) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload.

        Which part of the model a sub-model has may be drawn at random: ``drawn`` is the round of that draw, None the present round.
        """
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
        return {**download_shapes(self.method, self.state.model.architecture, tier), **self._beside(tier)}

    def job(self, session: OpenSession, payload: bytes, kept: bytes | None, eval_after_training: bool = False) -> Job:
        """Return the job of a session: its client received ``payload`` and stored ``kept`` after its last session (None: it had none)."""
        graphs = self.rules.graphs and self.rules.graphs(self.method, session.tier)
        limits = session.expected.memory_bytes, session.expected.micro_batch
        of_client = session.step + 1, session.client, self.method, session.tier
        samples = self.rules.chain.counts(session.client, self.samples_of(session), self.turn)
        weight = samples if self.method.weighs_samples else min(samples, 1)
        work = *of_client, payload, kept, *limits, graphs, eval_after_training, session.expected.recompute
        return Job(*work, weight if self.turn.folds else None, self.rules.chain.hands(session.expected, weight, self.turn))

    def samples_of(self, session: OpenSession) -> int:
        """Return how many samples the client of a session says it has."""
        samples, claimed = session.expected.samples, self.rules.claimed
        return samples if claimed is None else claimed(session.client, samples)

    def hear(self, sessions: Iterable[OpenSession]) -> None:
        """Note what the clients of ``sessions`` claim; nothing if the server knows their samples."""
        if self.rules.claimed is not None:
            self.turn.claims += map(self.samples_of, sessions)

    def receive(
        self, outcome: Outcome, samples: int, submodel: Submodel, store: ClientStore, start: Mapping[str, Tensor] | None = None
    ) -> Update:
        """Return the update of a client after it has been admitted; write what the client stores to ``store``.

        ``start`` has the tensors that it was sent, if they are not those of ``submodel``. An update that is part of a sum is ``folded``.

        Raises:
            WireError: the payload is damaged, or has other tensors than expected; names the client.
        """
        if outcome.kept:
            with span("keep"):
                store.put(outcome.client, outcome.kept)
        update = Update(outcome.client, submodel.tier, {}, submodel.places, samples, outcome.labels, figures=outcome.figures)
        begun = submodel.tensors if start is None else start
        return self.rules.chain.admit(replace(update, start=begun, payload=outcome.payload), self.turn)

    def noted(self, session: OpenSession, outcome: Outcome) -> None:
        """Admit an update that was added up where its client trained."""
        update = Update(outcome.client, session.tier, {}, {}, self.samples_of(session), figures=outcome.figures, folded=True)
        self.rules.chain.admit(update, self.turn)

    def aggregated(self, updates: Iterator[Update]) -> ServerState:
        """Return the state with the model and the memory after ``updates`` and those in :attr:`sums`; without any, the same state."""
        links, turn = self.rules.chain, self.turn
        with span("aggregate", round=turn.number):
            teachers: list[Update] = []
            aggregate = self._aggregation(self._heard(links.together(updates, turn), teachers))
            if aggregate is None:
                self.observed = links.record(turn)
                return self.state
            after = aggregate()
            check_aggregated(self.state.model, after, f"method {type(self.method).title}: aggregation")
            after = links.step(after, turn)
            self.observed = links.record(turn)
            if teachers and self.rules.public is not None:
                after, figures = self.rules.public.distilled(self.method, after, teachers, turn)
                self.observed = {**self.observed, "distillation": figures}
            return replace(self.state, model=after, memory={**self.state.memory, **turn.after})

    def _heard(self, updates: Iterator[Update], teachers: list[Update]) -> Iterator[Update]:
        """Yield ``updates``, and add them to ``teachers`` if the server distils."""
        for update in updates:
            if self.rules.public is not None:
                teachers.append(update)
            yield update

    def _aggregation(self, updates: Iterator[Update]) -> Callable[[], GlobalState] | None:
        """Return how the method aggregates the sums of the round, or else single ``updates``; None: there are none."""
        model, sums, first = self.state.model, {} if self.sums is None else self.sums.tiers, None
        if self.rules.chain.sums:
            added(self.method, model, updates, sums)
        else:
            first = next(updates, None)  # clients train while updates are read, also those that are part of a sum
        if summed := self.rules.chain.summed(sums, self.turn):
            return partial(combined, self.method, model, summed, self._submodel)
        return None if first is None else partial(self.method.aggregate, model, chain([first], updates))

    def _submodel(self, tier: Tier) -> Submodel:
        """Return what clients of ``tier`` are sent in this round."""
        key = tier, self.state.round + 1
        return (self._made.get(key) or self._make(*key))[0]

    def _upload(self, tier: Tier) -> Shapes:
        """Return name → shape of what clients of ``tier`` send."""
        if tier not in self._answers:
            self._answers[tier] = {**upload_shapes(self.method, self.state.model.architecture, tier), **self._beside(tier)}
        return self._answers[tier]

    def _beside(self, tier: Tier) -> Shapes:
        """Return name → shape of what stages send beside these, both ways."""
        return self.rules.chain.beside(lambda: self._parameters(tier))

    def _parameters(self, tier: Tier) -> Shapes:
        """Return name → shape of the parameters that travel between clients of ``tier`` and the server."""
        if tier not in self._trained:
            self._trained[tier] = trained_shapes(self.method, self.state.model.architecture, tier)
        return self._trained[tier]

    def _make(self, tier: Tier, round_: int, client: int | None = None) -> tuple[Submodel, bytes]:
        key = (round_, "submodel") if client is None else (round_, client, "submodel")
        with span("factorize", tier=tier.label):
            submodel = self.method.submodel(self.state.model, tier, generator(self.rules.seed, *key), client)
            beside = self.rules.chain.sends(submodel, self.turn)
        with span("encode", tier=tier.label):
            payload = encode({**submodel.tensors, **beside})
            return submodel, payload if self.method.per_client else Blob(payload)


def added(method: Method, state: GlobalState, updates: Iterable[Update], into: dict[Tier, TierSum]) -> None:
    """Add ``updates`` to the sums of their tiers, with the weights that the method gives them."""
    for update in updates:
        if update.tier not in into:
            into[update.tier] = tier_sum(method, state.architecture, update.tier)
        into[update.tier].add(update, update.samples if method.weighs_samples else 1)


def combined(method: Method, state: GlobalState, sums: TierSums, sent: Callable[[Tier], Submodel]) -> GlobalState:
    """Return the state that ``method`` makes of the sums of tiers; ``sent`` returns what their clients were sent.

    A method that reads every update gets the mean of each tier as often as it counts.
    """
    if folds(method):
        return finish(state, ((sent(tier).places, total) for tier, total in sums.items()))

    def repeated() -> Iterator[Update]:
        for tier, total in sums.items():
            mean = {name: (part.value() / total.weight).float() for name, part in total.parts().items()}
            for _ in range(total.weight):
                yield Update(_NOBODY, tier, mean, sent(tier).places, 1)

    return method.aggregate(state, repeated())


_NOBODY = -1
"""The client of an update that stands for a tier."""
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
