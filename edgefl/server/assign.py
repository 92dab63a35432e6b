"""Plans a run: gives each class of devices a tier in whole batches or in micro-batches, a smaller tier, or none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.client.training import Training
from edgefl.fleet.budget import budget_of, resolve_deadline, shortfalls
from edgefl.fleet.conditions import UNDISTURBED
from edgefl.fleet.population import Population
from edgefl.fleet.profile import FleetClass, State
from edgefl.records import Cost, Shortfall, Tier
from edgefl.server.assignment import Assignment, Attempt, ClassPlan, Plan, Workload, fastest_round_s, split, timing_of

Short = Callable[[Assignment], tuple[Shortfall, ...]]


@dataclass(frozen=True)
class PlanCosts:
    """What tiers cost.

    Attributes:
        tiers: tier, largest first → its cost in whole batches.
        full: the cost of the full model, which deadlines may be multiples of; None: the largest tier's.
        split: gives a tier's cost in micro-batches; None: splitting batches would change the result.
    """

    tiers: Mapping[Tier, Cost]
    full: Cost | None = None
    split: Callable[[Tier, int], Cost] | None = None


def make_plan(
    population: Population,
    costs: PlanCosts,
    workload: Workload,
    on_shortfall: Sequence[str] = ("tier",),
    states: Sequence[State] = (UNDISTURBED,),
) -> Plan:
    """Return the plan of a run: the budget of every class of the fleet, and the tiers that fit it.

    Args:
        population: the clients and their fleet.
        costs: the cost of every tier.
        workload: what a client does in a round. Budgets are checked for its largest shard.
        on_shortfall: steps to try, in order, if a tier does not fit: ``micro-batch`` (the same step in several passes), ``tier`` (a
            smaller one), ``send`` (send it anyway). A class that fits nothing after them is refused.
        states: the states that devices may be in during a round, the undisturbed one first.
    """
    fleet, largest_shard = population.fleet, workload.largest_shard
    fastest_s = fastest_round_s(fleet, costs.full or next(iter(costs.tiers.values())), workload.training, largest_shard)
    split_costs: dict[Assignment, Cost] = {}

    def cost_of(assignment: Assignment) -> Cost:
        if assignment.micro_batch is None:
            return costs.tiers[assignment.tier]
        assert costs.split is not None  # micro-batches are only tried if their cost can be worked out
        if assignment not in split_costs:
            split_costs[assignment] = costs.split(assignment.tier, assignment.micro_batch)
        return split_costs[assignment]

    def class_plan(of: FleetClass, clients: int, state: State) -> ClassPlan:
        budget = budget_of(of, fleet.budget, fastest_s, state.memory_share)

        def short(assignment: Assignment) -> tuple[Shortfall, ...]:
            cost, training = cost_of(assignment), split(workload.training, assignment)
            speed = state.speed_share / workload.clock_margin
            timing = timing_of(of.device, cost, training, largest_shard, workload.evaluated, speed)
            return shortfalls(cost, timing, budget, of.device.name, assignment.tier, assignment.micro_batch)

        options, attempts = _options(costs, workload.training, on_shortfall, short)
        return ClassPlan(of.device, of.share, clients, budget, options, attempts, state)

    pairs = zip(fleet.classes, population.class_counts(), strict=True)
    plans = tuple(tuple(class_plan(of, clients, state) for state in states) for of, clients in pairs)
    deadline_s = resolve_deadline(fleet.budget, fastest_s)
    return Plan(population, plans, costs.tiers, workload, deadline_s, split_costs, "tier" in on_shortfall)


def _options(
    costs: PlanCosts, training: Training, order: Sequence[str], short: Short
) -> tuple[tuple[Assignment | None, ...], tuple[Attempt, ...]]:
    """Return the assignments that a class can get, largest tier first, and every attempt that was made."""
    tried: dict[Assignment, tuple[Shortfall, ...]] = {}

    def whole(tier: Tier) -> Assignment | None:
        assignment = Assignment(tier)
        tried.setdefault(assignment, short(assignment))
        return None if tried[assignment] else assignment

    def in_parts(tier: Tier) -> Assignment | None:
        if costs.split is None or not any(s.budget == "memory_bytes" for s in tried[Assignment(tier)]):
            return None
        largest = min(training.micro_batch or training.batch_size, training.batch_size)
        halves = [Assignment(tier, largest >> turn) for turn in range(1, largest.bit_length())]
        if not halves:
            return None
        # One sample at a time needs the least memory: if that is too much, all are. It takes longest, though.
        least = short(halves[-1])
        if any(s.budget == "memory_bytes" for s in least):
            tried[halves[-1]] = least
            return None
        for assignment in halves:
            tried[assignment] = short(assignment)
            if not tried[assignment]:
                return assignment
        return None

    tiers = tuple(costs.tiers)
    if order[:1] == ("micro-batch",):
        found = {tier: whole(tier) or in_parts(tier) for tier in tiers}
    else:
        found = {tier: whole(tier) for tier in tiers}
        if "micro-batch" in order and not any(found.values()):
            found = {tier: in_parts(tier) for tier in tiers}
    options: tuple[Assignment | None, ...] = tuple(found.values())
    if "tier" in order:
        options = tuple(option for option in options if option is not None)
    if "send" in order:
        everything = tuple(option or Assignment(tier) for tier, option in found.items())
        options = everything if "tier" not in order else options or (Assignment(tiers[-1]),)
    return options, tuple(Attempt(assignment, refusals) for assignment, refusals in tried.items())
