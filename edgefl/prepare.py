"""From a configuration to the parts of a run: data, network, method, costs and plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from edgefl.config import RunConfig
from edgefl.costing import tier_cost, training_of
from edgefl.data.mix import load
from edgefl.data.sources import Dataset, Split
from edgefl.engine import Engine
from edgefl.errors import ConfigError
from edgefl.fleet.budget import Budget, budget_of, shortfalls
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.load import load_fleet
from edgefl.fleet.population import Population
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.fleet.resolve import conditions_of, with_deadline
from edgefl.local.client import Clients, Task
from edgefl.local.isolate import check_limit
from edgefl.local.objective import Objective
from edgefl.local.train import Training
from edgefl.methods.base import GlobalState, Method, check_tiers, create
from edgefl.models.base import Architecture, Unfilled
from edgefl.models.norm import splits_batches
from edgefl.planner.uniform import STEPS, largest_ratio
from edgefl.records import Cost, RoundRecord, Tier
from edgefl.registry import methods, models
from edgefl.rng import generator
from edgefl.server.buffered import Buffer, play_step
from edgefl.server.clients import ClientStore
from edgefl.server.optimizer import ServerOptimizer
from edgefl.server.outbox import Rules
from edgefl.server.plan import Plan, Planning, fastest_round_s, make_plan, timing_of
from edgefl.server.rounds import play_round
from edgefl.server.sessions import Sessions
from edgefl.server.standing import Standing


class Costs:
    """What the tiers of a run cost, each worked out once."""

    def __init__(self, method: Method, config: RunConfig, architecture: Architecture, training: Training) -> None:
        self.method, self.architecture = method, architecture
        self._training, self._codec, self._objective = training, config.codec, objective_of(config)
        self._found: dict[tuple[Tier, int | None], Cost] = {}

    def of(self, tier: Tier, micro_batch: int | None = None) -> Cost:
        """Return the cost of a tier, its batches taken whole or in micro-batches."""
        if (tier, micro_batch) not in self._found:
            steps = self._training if micro_batch is None else replace(self._training, micro_batch=micro_batch)
            found = tier_cost(self.method, self.architecture, tier, steps, self._codec, self._objective)
            self._found[tier, micro_batch] = found
        return self._found[tier, micro_batch]

    @cached_property
    def full(self) -> Cost:
        """The cost of the dense network, for which deadlines are stated, whatever the method."""
        return tier_cost(create("fedavg"), self.architecture, Tier(1.0), self._training, self._codec)

    def splits(self, tier: Tier) -> bool:
        """Whether batches may be split without changing what a step comes to."""
        with torch.device("meta"), Unfilled():
            return splits_batches(self.method.network(self.architecture, tier))


@dataclass(frozen=True)
class Session:
    """A run that is ready to start: every name resolved, every number checked, nothing written."""

    config: RunConfig
    fleet: Fleet
    data: Dataset
    architecture: Architecture
    method: Method
    tiers: tuple[Tier, ...]
    clients: Clients
    plan: Plan
    costs: Costs
    conditions: Conditions = field(default_factory=Conditions)

    def play(
        self, method: Method, standing: Standing, engine: Engine | None, store: ClientStore, number: int
    ) -> tuple[Standing, RoundRecord]:
        """Play round ``number``, or what stands for one; without an ``engine`` nobody trains, and all else is simulated."""
        per_round, buffer = self.config.per_round, self.config.buffer
        assert per_round is not None  # resolved
        if buffer is None:
            return play_round(method, standing, self.sessions, self.rules, per_round, engine, store, number)
        waiting = Buffer(buffer, per_round, self.config.staleness_power)
        return play_step(method, standing, self.sessions, self.rules, waiting, engine, store, number)

    @property
    def rules(self) -> Rules:
        """How updates are made and put together."""
        optimizer = ServerOptimizer.of(self.config.server_optimizer, self.config.server_lr)
        return Rules(self.config.seed, self.config.codec, self.clients.task.objective, optimizer)

    @cached_property
    def sessions(self) -> Sessions:
        """What is to be expected of clients."""
        config, shards = self.config, self.clients.shards
        return Sessions(self.plan, self.conditions, config.seed, shards.size, config.tier_assignment, config.tier_shares)

    def at(self, method: Method) -> Session:
        """Return this run under ``method``, a later phase of its own: with that phase's costs and what fits the fleet then."""
        costs = Costs(method, self.config, self.architecture, self.clients.task.training)
        return replace(
            self, method=method, costs=costs, plan=_plan(costs, self.config, self.fleet, self.clients, self.conditions)
        )

    def varied(self, **changes: Any) -> Session:
        """Return this run with another deadline, other tiers or another over-selection: the same data, and costs are worked out once.

        Nobody need fit such a run: it is one to be rehearsed.

        Raises:
            ConfigError: a value is wrong, or the method does not take such tiers.
        """
        config = RunConfig.of({**self.config.model_dump(), **changes})
        tiers = tiers_of(config)
        check_tiers(config.method, tuple(tier.ratio for tier in tiers))
        method = method_of(config)
        method.check(self.architecture, tiers, config.clients)
        costs = self.costs if method == self.method else Costs(method, config, self.architecture, self.clients.task.training)
        fleet = with_deadline(load_fleet(config.profile), config.deadline_s)
        conditions = replace(conditions_of(config, fleet), availability=self.conditions.availability)
        plan = _plan(costs, config, fleet, self.clients, conditions)
        phase = replace(self, method=method, tiers=tiers, costs=costs, plan=plan)
        return replace(phase, config=config, fleet=fleet, conditions=conditions)

    def tier_of(self, client: int, round_: int) -> Tier | None:
        """Return the tier that ``client`` is given in a round."""
        return self.plan.tier_of(self.config.tier_assignment, self.config.tier_shares, client, round_)

    @cached_property
    def test(self) -> Split:
        """The held-out samples that models are evaluated on."""
        test, count = self.data.test, self.config.eval_samples
        if count is None or count >= len(test):
            return test
        chosen = np.sort(generator(self.config.seed, "held out").permutation(len(test))[:count])
        return Split(test.x[chosen], test.y[chosen])

    def first_state(self) -> GlobalState:
        """Return the state before the first round."""
        return self.method.init(self.architecture, self.tiers, generator(self.config.seed, "init"))

    def shards(self) -> Iterator[Split]:
        """Yield every client's samples, one client at a time."""
        return map(self.clients.shards.train, range(self.config.clients))


def prepare(config: RunConfig, required: bool = True) -> Session:
    """Resolve ``config`` and work out the plan; ``required`` says that somebody must fit it.

    Raises:
        InputError: a name, value or file is wrong.
        BudgetError: no class of the fleet fits any tier; the message has every need.
    """
    methods.check(config.method)
    fleet = with_deadline(load_fleet(config.profile), config.deadline_s)
    conditions = conditions_of(config, fleet)
    data = load(config.dataset, config.data_dir)
    config = resolve(config, data)
    architecture = Architecture(str(config.model), data.input_shape, data.classes, config.norm)
    _check_inputs(data, architecture)
    training = training_of(config)
    clients = Clients(_task(config, architecture, training), data)
    if config.tiers == "auto":
        config = config.model_copy(update={"tiers": chosen_tiers(config, fleet, architecture, training, clients)})
    tiers, method = tiers_of(config), method_of(config)
    check_axes(method, config)
    method.check(architecture, tiers, config.clients)
    costs = Costs(method, config, architecture, training)
    plan = _plan(costs, config, fleet, clients, conditions)
    if required:
        plan.require_someone()
    if config.enforce == "hard":
        for cell in (cell for states in plan.cells for cell in states):
            check_limit(cell.device.name, cell.device.training_bytes * cell.state.memory_share)
    return Session(config, fleet, data, architecture, method, tiers, clients, plan, costs, conditions)


def about(session: Session) -> dict[str, Any]:
    """Return what a summary says of a run before anything has come out of it."""
    config = session.config
    keys = (
        *("method", "model", "dataset", "partition", "seed", "rounds", "clients", "per_round", "batch_size", "local_epochs"),
        *(
            "tier_assignment",
            "objective",
            "server_optimizer",
            "codec",
            "permute_labels",
            "conditions",
            "availability",
            "start_hour",
        ),
        *("mode", "buffer", "enforce", "dynamic_devices"),
    )
    asked = {"over_selection": session.conditions.over_selection, "deadline_s": session.plan.deadline_s}
    return {"format": 1, **{key: getattr(config, key) for key in keys}, **asked, "fleet": session.fleet.name}


def _check_inputs(data: Dataset, architecture: Architecture) -> None:
    """Raise :class:`ConfigError` where the data are images and the network reads text, or the other way round."""
    kinds = {True: "token ids", False: "images"}
    if bool(data.vocabulary) != bool(architecture.vocabulary):
        takes, has = kinds[bool(architecture.vocabulary)], kinds[bool(data.vocabulary)]
        raise ConfigError(
            f"model: {architecture.model} takes {takes}, and {data.name} has {has}; choose another model or dataset"
        )
    if data.vocabulary > architecture.vocabulary:
        known = architecture.vocabulary
        raise ConfigError(f"model: {architecture.model} knows {known} token ids, {data.name} has {data.vocabulary}")


def chosen_tiers(
    config: RunConfig, fleet: Fleet, architecture: Architecture, training: Training, clients: Clients
) -> tuple[float, ...]:
    """Return the tiers that stand for "auto": the largest that fit each class of the fleet."""
    method = create(config.method, config.method_options)
    costs = Costs(method, config, architecture, training)
    return auto_tiers(method, fleet, lambda ratio: costs.of(Tier(ratio)), training, clients.shards.largest, costs.full)


def check_axes(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` where ``method`` makes no sense with one of the other axes of ``config``."""
    name = type(method).title
    chosen = {
        "objective": config.objective,
        "server_optimizer": config.server_optimizer,
        "codec": config.codec,
        "tier_assignment": config.tier_assignment,
        "mode": config.mode,
    }
    for key, value in chosen.items():
        if value in method.refuses:
            raise ConfigError(f"{key}: {value} makes no sense with {name}: {method.refuses[value]}")
    if config.server_optimizer == "avg" and config.server_lr not in (None, 1.0) and "avgm" in method.refuses:
        raise ConfigError(f"server_lr: {config.server_lr:g} makes no sense with {name}: {method.refuses['avgm']}")


def tiers_of(config: RunConfig) -> tuple[Tier, ...]:
    """Return the tiers of a resolved configuration, largest first."""
    return tuple(Tier(ratio) for ratio in config.tiers or () if isinstance(ratio, float))


def method_of(config: RunConfig) -> Method:
    """Return the method of a resolved configuration."""
    ratios = tuple(tier.ratio for tier in tiers_of(config))
    return create(config.method, config.method_options, dynamic_tiers=config.tier_assignment == "dynamic", tiers=ratios)


def _plan(costs: Costs, config: RunConfig, fleet: Fleet, clients: Clients, conditions: Conditions) -> Plan:
    """Return what every class of the fleet can take."""
    tiers = tiers_of(config)
    return make_plan(
        Population(fleet, config.clients, config.seed),
        {tier: costs.of(tier) for tier in tiers},
        clients.task.training,
        clients.shards.largest,
        clients.shards.mean,
        costs.full,
        costs.method.evaluated,
        conditions.states,
        Planning(config.on_shortfall, costs.splits(tiers[0]), costs.of),
    )


def auto_tiers(
    method: Method,
    fleet: Fleet,
    trace: Callable[[float], Cost],
    training: Training,
    samples: int,
    full: Cost | None = None,
) -> tuple[float, ...]:
    """Return the largest ratio that fits each class of the fleet with ``samples`` local samples, each once, largest first.

    A method that trains one size only gets the largest that fits every class that can take part at all. ``full`` is the cost of the full
    model, which deadlines may be multiples of; None takes that of ratio 1.
    """
    fastest_s = fastest_round_s(fleet, full or trace(1.0), training, samples)
    ratios = set()
    for fleet_class in fleet.classes:
        budget = budget_of(fleet_class, fleet.budget, fastest_s)

        def fits(ratio: float, device: DeviceProfile = fleet_class.device, budget: Budget = budget) -> bool:
            cost = trace(ratio)
            timing = timing_of(device, cost, training, samples, method.evaluated)
            return not shortfalls(cost, timing, budget, device.name, Tier(ratio))

        if ratio := largest_ratio(fits):
            ratios.add(ratio)
    if not ratios:
        return (1 / STEPS,)  # the plan refuses it, with every need
    return (min(ratios),) if len(method.default_tiers) == 1 else tuple(sorted(ratios, reverse=True))


def resolve(config: RunConfig, data: Dataset) -> RunConfig:
    """Fill in the defaults that depend on other keys: the result is what ``config.toml`` records."""
    tiers = config.tiers or methods.load(config.method).default_tiers
    if tiers != "auto":
        check_tiers(config.method, tuple(tiers))
    model = config.model or data.default_model
    models.check(model)
    per_round = config.per_round or max(1, (config.clients + 1) // 2)
    return config.model_copy(
        update={
            "tiers": tiers,
            "model": model,
            "local_epochs": config.local_epochs or data.default_local_epochs,
            "per_round": per_round,
            "buffer": config.buffer or (max(1, (per_round + 1) // 2) if config.mode == "async" else None),
            "engine": config.engine or ("pool" if config.workers > 1 else "inline"),
        }
    )


def objective_of(config: RunConfig) -> Objective:
    """Return the objective of ``config``."""
    return Objective(config.objective, config.objective_strength)


def _task(config: RunConfig, architecture: Architecture, training: Training) -> Task:
    return Task(
        seed=config.seed,
        dataset=config.dataset,
        data_dir=config.data_dir,
        partition=config.partition,
        clients=config.clients,
        architecture=architecture,
        training=training,
        objective=objective_of(config),
        codec=config.codec,
        permute_labels=config.permute_labels,
        data_share=config.data_share,
        enforce=config.enforce,
        cpu_limit_s=config.cpu_limit_s,
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums then come out to the same bits on any number of cores and workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
