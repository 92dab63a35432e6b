"""The rounds of a run, and what it has trained so far: the networks of tiers and clients, and their accuracies."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client import evaluate
from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.leaving import personal_in
from edgefl.client.objective import CONTROL
from edgefl.client.parts import first_personal
from edgefl.data.shards import EVALUATED_CLIENTS
from edgefl.data.split import Split
from edgefl.engine.contract import Capabilities, Cluster, Engine, open_engine
from edgefl.methods.capabilities import Phased
from edgefl.methods.capabilities import factored as in_factors
from edgefl.methods.networks import global_tier
from edgefl.methods.personal import adapted, received, trained_network
from edgefl.records import WORST_CLIENT, RoundRecord, Submodel, Tier
from edgefl.rng import generator, shuffled, torch_seeded
from edgefl.run.feature import Seen, merged
from edgefl.run.run import Run, RunOne
from edgefl.server.client_store import ClientStore
from edgefl.server.exchange import device_submodel
from edgefl.server.rounds import run_round
from edgefl.server.state import ServerState
from edgefl.timing.spans import span
from edgefl.util.fields import each
from edgefl.util.machine import usable_threads
from edgefl.wire.payload import stored_tensors

_NO_SAMPLES = torch.empty(0), torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Trained:
    """What a run in its present phase has trained so far.

    Attributes:
        criterion: what is measured; None: the run's own.
    """

    run: Run
    state: ServerState
    store: ClientStore
    criterion: Criterion | None = None

    @property
    def measured(self) -> Criterion:
        """What is measured."""
        return self.criterion or self.run.criterion

    def module(self, tier: Tier, client: int | None = None, factored: bool = False) -> nn.Module:
        """Return the deployed network of ``tier``: of ``client``, adapted to its data, where clients have models of their own.

        ``factored`` keeps the factors of methods that deploy them multiplied out.
        """
        run, method = self.run, self.run.method
        deploy = partial(in_factors, method) if factored else method.deploy
        if client is None or not method.personalised:
            return self._ready(deploy(self.state.model, tier))
        own = run.clients.shards.train(client)
        module = self._ready(deploy(self.state.model, tier, self.personal(tier, client), client))
        return adapted(method, module, each(torch.from_numpy, own.x), torch.from_numpy(own.y)).eval()

    def network(self, tier: Tier, client: int | None = None) -> nn.Module:
        """Return the network of ``tier`` as ``client`` would train it next, with statistics, in evaluation mode."""
        method, personal = self.run.method, self.personal(tier, client)
        if method.per_client and method.personalised:  # its payload depends on the client
            return self._ready(trained_network(method, self.state.model, tier, personal, client))
        submodel, tensors = self.handed_out(tier)
        module = submodel.build()
        with torch_seeded(generator(self.run.config.seed, "handed out", tier.label)):
            received(method, module, {name: tensors[name] for name in submodel.tensors}, personal, _NO_SAMPLES)
        return self._ready(module.eval())

    def control(self, tier: Tier) -> dict[str, Tensor]:
        """Return the server's control variates for ``tier`` by their names in payloads, nothing where the objective has none."""
        if not self.run.clients.task.objective.controls:
            return {}
        return {name: tensor for name, tensor in self.handed_out(tier)[1].items() if name.startswith(CONTROL)}

    def handed_out(self, tier: Tier) -> tuple[Submodel, dict[str, Tensor]]:
        """Return the sub-model that devices of ``tier`` train in the next round; ``fed_round`` places their updates by the same call."""
        run = self.run
        return device_submodel(run.method, self.state, run.rules, run.config.clients, tier)

    def personal(self, tier: Tier, client: int | None) -> dict[str, Tensor]:
        """Return the personal tensors of ``client``, without the objective's memory; the initial ones if it has not trained yet."""
        kept = None if client is None else self.store.get(client)
        own = {} if kept is None else personal_in(stored_tensors(kept, f"what client {client} kept"))
        return own or first_personal(self.run.method, self.run.architecture, tier, self.run.config.seed)

    def _ready(self, module: nn.Module) -> nn.Module:
        if self.run.data.drawn:  # statistics of noise would be wrong
            return module
        return evaluate.with_statistics(module, self.run.shards(), self.run.config.batch_size)


def of_clients(run: Run) -> bool:
    """Whether accuracies are means over clients, each with its own model or labels on held-out samples of its own."""
    return run.method.personalised or run.clients.shards.permutes


def accuracies(trained: Trained, seen: Seen = lambda split: split) -> dict[str, float]:
    """Return ``global`` and every tier's accuracy, shares in [0, 1], or the run's own metric.

    If all clients share one model, these are accuracies on the held-out samples; those of the worst client are the least of all clients,
    each on held-out samples of its own. If clients have their own models or labels, these are
    means over those that do as the server asks. A tier without clients is then evaluated on the held-out samples, without any personal
    tensors. ``seen`` maps held-out samples to those that are evaluated; without any, as of drawn data, there are no accuracies.
    """
    run, method = trained.run, trained.run.method
    if run.data.drawn:
        return {}
    test = seen(run.test_of(trained.state.round))
    if not len(test):
        return {}
    if of_clients(run):
        return _client_means(trained, seen)
    whole = global_tier(method, trained.state.model)
    tiers = dict.fromkeys((whole, *run.tiers))
    if trained.measured.metric == WORST_CLIENT:
        found = {tier: min(_by_client(trained, trained.module(tier), tier, seen).values()) for tier in tiers}
    else:
        found = {tier: _score(trained, trained.module(tier), test, tier) for tier in tiers}
    return {"global": found[whole]} | {tier.label: found[tier] for tier in run.tiers}


def _by_client(trained: Trained, module: nn.Module, tier: Tier, seen: Seen = lambda split: split) -> dict[int, float]:
    """Return the score of ``module`` on the own held-out samples of each client that is evaluated; on all of them if no client has any."""
    run = trained.run
    own = {client: seen(run.clients.shards.test(client)) for client in evaluated_clients(run)}
    found = {client: _score(trained, module, split, tier, client) for client, split in own.items() if len(split)}
    return found or {0: _score(trained, module, seen(run.test), tier)}


def judgements(trained: Trained) -> dict[str, dict[str, float]]:
    """Return the accuracies on held-out samples as features change them, by figure; none of a run with a loss of its own."""
    run, plain = trained.run, replace(trained, criterion=CROSS_ENTROPY)
    if run.criterion.loss is not None:
        return {}
    views = merged(feature.judged_on(run.test, run.data.classes) for feature in run.features)
    return {name: found for name, seen in views.items() if (found := accuracies(plain, seen))}


def _client_means(trained: Trained, seen: Seen) -> dict[str, float]:
    run = trained.run
    by_tier: defaultdict[Tier, list[float]] = defaultdict(list)
    shared: dict[Tier, nn.Module] = {}
    for client in evaluated_clients(run):
        tier = run.plan.tier_of(client, trained.state.round) or run.tiers[-1]
        if run.method.personalised:
            module = trained.module(tier, client)
        else:
            module = shared.get(tier) or shared.setdefault(tier, trained.module(tier))
        if len(test := seen(run.clients.shards.test(client))):
            by_tier[tier].append(_score(trained, module, test, tier, client))
    everyone = [value for values in by_tier.values() for value in values]
    if not everyone:
        return {}
    means = {"global": sum(everyone) / len(everyone)}
    for tier in run.tiers:
        own = by_tier[tier] or [_score(trained, trained.module(tier), seen(run.test_of(trained.state.round)), tier)]
        means[tier.label] = sum(own) / len(own)
    return means


def _score(trained: Trained, module: nn.Module, test: Split, tier: Tier, client: int | None = None) -> float:
    whose = "" if client is None else f", client {client}"
    with evaluate.evaluating(f"tier {tier.label}{whose}"):
        return evaluate.score(module, test, trained.measured, threads=usable_threads())


def evaluated_clients(run: Run) -> list[int]:
    """Return the clients whose own accuracies count, at most :data:`EVALUATED_CLIENTS`: those that do as the server asks, if any."""
    clients = run.config.clients
    first = np.arange(min(clients, EVALUATED_CLIENTS))
    found = sorted(shuffled(run.config.seed, clients, first, "evaluated clients").tolist())
    return [client for client in found if run.clients.task.conduct_of(client) is None] or found


def engine_of(run: Run) -> AbstractContextManager[Engine]:
    """Return the engine of a run; as a context manager it may refuse to start, with an InputError."""
    config = run.config
    limits = run.plan.memory_limits if config.enforce == "hard" else {}
    keys = Capabilities.of(str(config.engine)).cluster_keys
    given = {field: getattr(config, key) for field, key in keys.items()}
    cluster = Cluster(**given, mixed=config.mixed_nodes, limits=limits)
    return open_engine(str(config.engine), config.workers, run.clients, cluster)


def train(
    run: Run, engine: Engine | None, store: ClientStore, state: ServerState | None = None, run_one: RunOne | None = None
) -> Iterator[tuple[Run, ServerState, RoundRecord]]:
    """Train the rounds after ``state``, all of them if it is None; yield after each the run in its phase, the state and the record.

    ``run_one`` runs a round with real devices, without an ``engine``; None: the engine trains simulated clients.
    """
    config, state = run.config, state or run.start()
    while state.round < config.rounds:
        with span("prepare", round=state.round + 1):
            run, state = run.advanced(state)
        state, record = run.round(state, engine, store, run_one or run_round)
        if run.evaluates(state.round):
            started = time.perf_counter()
            with span("evaluate", round=state.round), evaluate.evaluating(f"round {state.round}"):
                accuracy = accuracies(now := Trained(run, state, store))
                observed = {**record.observed, **judgements(now)}
            host_s = record.host_s + time.perf_counter() - started
            record = replace(record, accuracy=accuracy, metric=run.criterion.metric, host_s=host_s, observed=observed)
        yield run, state, record


def without_training(run: Run, rounds: int, run_one: RunOne = run_round) -> Iterator[RoundRecord]:
    """Yield the records of ``rounds`` rounds without training: clients, seconds, bytes and joules are those of training.

    They are fewer if the calendar ends before. With :func:`light_round`, they have columns instead of clients.
    """
    state, store, calendar = run.start(), ClientStore(Path("never written")), run.conditions.calendar
    for _ in range(rounds):
        if calendar is not None and calendar.over(calendar.next_s(state.clock_s, state.fleet.today)):
            break
        if isinstance(run.method, Phased):
            run, _ = run.advanced(state)
        state, record = run.round(state, None, store, run_one)
        yield record


@dataclass(frozen=True)
class TierNetworks:
    """The networks of a tier in a bundle.

    Attributes:
        deployed: the network that a device infers with, its factors not multiplied out.
        network: the network that a device trains.
        test: the samples on which the tier is evaluated.
        control: the server's control variates for the tier, by name.
    """

    deployed: nn.Module
    network: nn.Module
    test: Split
    control: Mapping[str, Tensor] = field(default_factory=dict)


def tier_networks(trained: Trained) -> dict[Tier, TierNetworks]:
    """Return each tier's networks for the bundle.

    Where clients have models of their own, they are those of the first client of the tier that has trained. If the worst client counts,
    a tier is evaluated on its held-out samples.
    """
    run = trained.run
    found: dict[Tier, TierNetworks] = {}
    for tier in run.tiers:
        client = first_of(trained, tier) if of_clients(run) else None
        networks = trained.module(tier, client, factored=True), trained.network(tier, client)
        if client is None and run.criterion.metric == WORST_CLIENT:
            scores = _by_client(trained, networks[0], tier)
            client = min(scores, key=lambda own: scores[own])
        test = run.test if client is None else run.clients.shards.test(client)
        found[tier] = TierNetworks(*networks, test, trained.control(tier))
    return found


def first_of(trained: Trained, tier: Tier) -> int | None:
    """Return the first of the clients that are evaluated which has trained ``tier``, else the first that would; None: there is none."""
    run = trained.run
    of_tier = [c for c in evaluated_clients(run) if run.plan.tier_of(c, run.config.rounds) == tier]
    return next((c for c in of_tier if c in trained.store), of_tier[0] if of_tier else None)
