"""What a resolved configuration stands for: the tiers, the method, the plan and the screening of a run."""

from collections.abc import Callable
from dataclasses import replace

from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.population import Population
from edgefl.fleet.profile import Fleet
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.methods.options import Scenario
from edgefl.planning.secure_costs import secured
from edgefl.planning.tier_costs import Costs
from edgefl.records import Cost, Tier
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Plan, TierPolicy, Workload
from edgefl.server.defence import defence_named
from edgefl.server.screening import Clipping, Screening
from edgefl.util.datasets import is_own


def screening_of(config: RunConfig) -> Screening:
    """Return what the server of a run believes of updates."""
    cap = None if config.sample_cap == "off" else config.sample_cap
    clipping = None
    if config.clip_norm is not None:
        norm = None if isinstance(config.clip_norm, str) else config.clip_norm
        clipping = Clipping(norm, config.clip_start, config.clip_quantile, config.clip_rate)
    return Screening(cap, clipping, defence_named(config.defence, config.defence_strength), config.outliers)


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


def plan_of(costs: Costs, config: RunConfig, fleet: Fleet, clients: Clients, conditions: Conditions) -> Plan:
    """Return the plan of a run: which tier each class of the fleet trains."""
    tiers = tiers_of(config)
    asked = conditions.asked(config.per_round or 1, config.clients)

    def with_messages(of: Callable[..., Cost]) -> Callable[..., Cost]:
        return lambda tier, *parts: secured(of(tier, *parts), costs.method, costs.architecture, tier, config.secure, asked)

    cost_of, recomputed = with_messages(costs.of), with_messages(costs.recomputed)
    split = cost_of if costs.splits(tiers[0]) else None
    plan_costs = PlanCosts({tier: cost_of(tier) for tier in tiers}, costs.full, split, recomputed)
    training, shards = clients.task.training, clients.shards
    workload = Workload(training, shards.largest, shards.mean, costs.method.evaluated, config.clock_margin)
    population = Population(fleet, config.clients, config.seed)
    plan = make_plan(population, plan_costs, workload, config.on_shortfall, conditions.states)
    return replace(plan, policy=TierPolicy(config.tier_assignment, config.tier_shares))
