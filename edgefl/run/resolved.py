"""What a resolved configuration stands for: how clients train, the conditions, the tiers, the method, the plan and the chain of a run."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial, reduce
from numbers import Real
from typing import Any

from edgefl.client.client import Clients
from edgefl.client.job import Task
from edgefl.client.objective import Objective, objective_named
from edgefl.client.stage import Stage, StagePlace
from edgefl.client.stages.clip import Clip, Measured
from edgefl.client.stages.coded import Coded
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.config.rates import named_rules, shares
from edgefl.errors import ConfigError
from edgefl.fleet.availability import Availability
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.population import Population
from edgefl.fleet.profile import Fleet
from edgefl.fleet.resolve import FleetSettings, conditions_in
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.methods.options import Scenario
from edgefl.methods.personal import evaluated
from edgefl.models.factory import factory_of
from edgefl.models.valueless import reason
from edgefl.planning.tier_costs import Costs
from edgefl.records import Cost, Tier
from edgefl.registry import stages
from edgefl.run.feature import Feature, kinds
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Plan, TierPolicy, Workload
from edgefl.server.chain import Chain
from edgefl.server.defence import defence_named
from edgefl.server.optimizer import optimizer_named
from edgefl.server.optimizers import AVERAGE
from edgefl.server.stages import Capped, Compared, Defended, Optimized, Remembered
from edgefl.util.datasets import is_own
from edgefl.util.networks import is_own as is_own_network
from edgefl.util.networks import title_of
from edgefl.util.spec import called


def training_of(config: RunConfig) -> Training:
    """Return how clients train under ``config``."""
    keys = ("batch_size", "lr", "momentum", "weight_decay", "optimizer", "micro_batch", "augment")
    clip = None if config.clip_gradient == "none" else config.clip_gradient
    training = Training(
        config.local_epochs or 1, lr_shares=shares_of(config), clip_gradient=clip,
        **{key: getattr(config, key) for key in keys},
    )  # fmt: skip
    return reduce(lambda known, kind: kind.training(config, known), kinds(), training)


def shares_of(config: RunConfig) -> tuple[float, ...]:
    """Return the share of the learning rate that each round has; nothing if it is constant.

    ConfigError: the user's own rule raises an error, or a share is not a positive number.
    """
    own = is_own_network(config.lr_schedule)
    rule: Any = factory_of(config.lr_schedule, "lr_schedule") if own else None
    title = f"lr_schedule: {title_of(config.lr_schedule)}"
    try:
        found = shares([rule] if own else named_rules(config.lr_schedule), config.rounds)
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(f"{title} raised an error: {reason(error)}; expected a function (round, rounds) to a share") from error
    for round_, share in enumerate(found, 1):
        if not isinstance(share, Real) or not 0 < share < math.inf:
            raise ConfigError(f"{title} returned {share!r} for round {round_} of {config.rounds}, expected a positive number")
    return tuple(map(float, found))


def objective_of(config: RunConfig) -> Objective:
    """Return the objective of ``config``."""
    return objective_named(config.objective, config.objective_strength)


def conditions_of(config: RunConfig, fleet: Fleet, availability: Availability | None = None) -> Conditions:
    """Return the conditions of a run, see :func:`edgefl.fleet.resolve.conditions_in`."""
    settings = FleetSettings(**{key.name: getattr(config, key.name) for key in fields(FleetSettings)})
    found = conditions_in(settings, fleet, availability)
    if config.mode == "async" and found.calendar is not None:
        what = "rounds_per_day" if config.rounds_per_day is not None else f"the fleet {fleet.name} has a [calendar]"
        raise ConfigError(
            f"mode: async has no rounds that a calendar could begin, but {what}; give mode sync, or leave the calendar out"
        )
    return found


def costs_of(config: RunConfig, method: Method, task: Task) -> Costs:
    """Return the costs of the tiers of a run that trains by ``method``."""
    return Costs(method, task, config.codec, config.runtime == "onnx")


def chain_of(config: RunConfig, features: Iterable[Feature] = (), most: int = 1) -> Chain:
    """Return what the updates of a run with these ``features`` pass, except for stages that depend on its plan.

    ``most`` are the most samples of a client.
    """
    return Chain.of(_stages(config, [stage for feature in features for stage in feature.stages(config, most)]))


def _stages(config: RunConfig, of_features: Sequence[Stage]) -> Iterator[Stage]:
    yield from of_features
    hidden = any(stage.place == StagePlace.DECODED for stage in of_features)
    if not hidden:
        yield Coded(config.codec)
    objective, optimizer = objective_of(config), optimizer_named(config.server_optimizer, config.server_lr)
    if objective.remembers or objective.controls:
        yield Remembered(objective)
    if config.outliers:
        yield Compared()
    if config.clip_norm is not None:
        yield clip_of(config, hidden)
    elif config.outliers or config.defence != "none":
        yield Measured()
    yield from reversed(outside_of(config))  # they are listed in the order of clients
    if config.sample_cap != "off":
        yield Capped(config.sample_cap)
    if config.defence != "none":
        yield Defended(defence_named(config.defence, config.defence_strength))
    rates = shares(named_rules(config.server_lr_schedule), config.rounds)
    if optimizer != AVERAGE or rates:
        yield Optimized(optimizer, rates)


def outside_of(config: RunConfig) -> list[Stage]:
    """Return the stages of plug-ins that a run names; ConfigError if an option is wrong."""
    found = []
    for text in config.stages:
        name, options = called(text)
        try:
            found.append(stages.load(name).of(options))
        except ConfigError as error:
            raise ConfigError(f"stages: {name}: {error}") from None
    return found


def clip_of(config: RunConfig, hidden: bool = False) -> Clip:
    """Return how a run clips changes; ``hidden``: the server cannot read a single update."""
    norm = config.clip_norm if isinstance(config.clip_norm, float) else None
    return Clip(norm, config.clip_start, config.clip_quantile, config.clip_rate, hidden)


def tiers_of(config: RunConfig) -> tuple[Tier, ...]:
    """Return the tiers of a resolved configuration, largest first."""
    return tuple(Tier(ratio) for ratio in config.tiers or () if isinstance(ratio, float))


def method_of(config: RunConfig) -> Method:
    """Return the method of a resolved configuration."""
    ratios = tuple(tier.ratio for tier in tiers_of(config))
    dynamic = config.tier_assignment == "dynamic"
    mixed = "+" in config.dataset and not is_own(config.dataset)
    scenario: Scenario = "domains" if mixed else "permuted" if config.permute_labels else "alike"
    return create(config.method, config.method_options, dynamic_tiers=dynamic, tiers=ratios, scenario=scenario)


def plan_of(
    costs: Costs, config: RunConfig, fleet: Fleet, clients: Clients, conditions: Conditions, features: Iterable[Feature]
) -> Plan:
    """Return the plan of a run: which tier each class of the fleet trains."""
    tiers = tiers_of(config)
    asked, links = conditions.asked(config.per_round or 1, config.clients), chain_of(config, features)

    def added(of: Callable[..., Cost]) -> Callable[..., Cost]:
        return lambda tier, *parts: links.adds(of(tier, *parts), costs.method, costs.architecture, tier, asked)

    cost_of, recomputed = added(costs.of), added(costs.recomputed)
    split = cost_of if all(map(costs.splits, tiers)) else None
    plan_costs = PlanCosts({tier: cost_of(tier) for tier in tiers}, costs.full, split, recomputed)
    training, shards = clients.task.training, clients.shards
    workload = Workload(training, shards.largest, shards.mean, partial(evaluated, costs.method), config.clock_margin)
    population = Population(fleet, config.clients, config.seed)
    plan = make_plan(population, plan_costs, workload, config.on_shortfall, conditions.states)
    return replace(plan, policy=TierPolicy(config.tier_assignment, config.tier_shares))
