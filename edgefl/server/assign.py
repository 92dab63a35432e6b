"""Plans a run: gives each class of devices a tier whole, in micro-batches or with recomputation, a smaller tier, or none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgefl.client.training import Training
from edgefl.fleet.budget import budget_of, larger_than_allowed, resolve_deadline, shortfalls
from edgefl.fleet.conditions import UNDISTURBED
from edgefl.fleet.population import Population
from edgefl.fleet.profile import FleetClass, State
from edgefl.records import Cost, Shortfall, Tier
from edgefl.server.assignment import Assignment, Attempt, ClassPlan, Plan, Workload, fastest_round_s, split, timing_of

Short = Callable[[Assignment], tuple[Shortfall, ...]]


@dataclass(frozen=True)
class PlanCosts:
    """The costs of tiers.

    Attributes:
        tiers: tier, largest first → its cost in whole batches.
        full: the cost of the full model, which deadlines may be multiples of; None: the largest tier's.
        split: gives a tier's cost in micro-batches; None: splitting batches would change the result.
        recomputed: gives the cost of a tier, in micro-batches or None, if the backward pass computes activations again.
            :attr:`Cost.recompute` is empty if that saves no memory.
    """

    tiers: Mapping[Tier, Cost]
    full: Cost | None = None
    split: Callable[[Tier, int], Cost] | None = None
    recomputed: Callable[[Tier, int | None], Cost] | None = None


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
        on_shortfall: steps to try, in order, if a tier does not fit. ``micro-batch`` takes the same step in several passes. ``recompute``
            computes activations again in the backward pass. ``tier`` takes a smaller one. ``send`` sends it anyway. What follows ``tier``
            is tried if no tier fits. If micro-batches do not suffice, and recomputation does not, both together are tried. A class that
            fits nothing after them is refused.
        states: the states that devices may be in during a round, the undisturbed one first.
    """
    fleet, largest_shard = population.fleet, workload.largest_shard
    fastest_s = fastest_round_s(fleet, costs.full or next(iter(costs.tiers.values())), workload.training, largest_shard)
    split_costs: dict[Assignment, Cost] = {}

    def cost_of(assignment: Assignment) -> Cost:
        tier, parts = assignment.tier, assignment.micro_batch
        if assignment not in split_costs:
            if assignment.recompute:
                assert costs.recomputed is not None  # a remedy is only tried if its cost can be worked out
                split_costs[assignment] = costs.recomputed(tier, parts)
            elif parts is not None:
                assert costs.split is not None
                split_costs[assignment] = costs.split(tier, parts)
            else:
                return costs.tiers[tier]
        return split_costs[assignment]

    def class_plan(fleet_class: FleetClass, clients: int, state: State) -> ClassPlan:
        budget = budget_of(fleet_class, fleet.budget, fastest_s, state.memory_share)

        def short(assignment: Assignment) -> tuple[Shortfall, ...]:
            cost, training = cost_of(assignment), split(workload.training, assignment)
            margin = workload.clock_margin
            timing = timing_of(fleet_class.device, cost, training, largest_shard, workload.evaluated, state.speed_share, margin)
            named = fleet_class.device.name, assignment.tier, assignment.micro_batch
            return (*larger_than_allowed(fleet_class, assignment.tier), *shortfalls(cost, timing, budget, *named, margin))

        options, attempts = _options(costs, workload.training, on_shortfall, short)
        return ClassPlan(fleet_class.device, fleet_class.share, clients, budget, options, attempts, state, fleet_class.left_out)

    pairs = zip(fleet.classes, population.class_counts(), strict=True)
    plans = tuple(tuple(class_plan(fleet_class, clients, state) for state in states) for fleet_class, clients in pairs)
    deadline_s = resolve_deadline(fleet.budget, fastest_s)
    return Plan(population, plans, costs.tiers, workload, deadline_s, split_costs, "tier" in on_shortfall)


@dataclass
class _Attempts:
    """The attempts to fit a class: what was ``tried``, and the budgets that it exceeds."""

    costs: PlanCosts
    training: Training
    short: Short
    tried: dict[Assignment, tuple[Shortfall, ...]] = field(default_factory=dict)

    def fits(self, assignment: Assignment) -> bool:
        """Try an assignment."""
        if assignment not in self.tried:
            self.tried[assignment] = self.short(assignment)
        return not self.tried[assignment]

    def remedied(self, tier: Tier, remedies: Sequence[str]) -> Assignment | None:
        """Return the first of ``remedies`` with which a tier fits that is short of memory, or else both together; None if none does."""
        if not _of_memory(self.tried[Assignment(tier)]):
            return None
        for remedy in remedies:
            assignment = self._in_parts(tier, Assignment) if remedy == "micro-batch" else self._recomputed(tier)
            if assignment is not None and self.fits(assignment):
                return assignment
        return self._in_parts(tier, self._recomputed) if len(remedies) > 1 else None

    def _recomputed(self, tier: Tier, parts: int | None = None) -> Assignment | None:
        layers = () if self.costs.recomputed is None else self.costs.recomputed(tier, parts).recompute
        return Assignment(tier, parts, layers) if layers else None

    def _in_parts(self, tier: Tier, make: Callable[[Tier, int], Assignment | None]) -> Assignment | None:
        largest = min(self.training.micro_batch or self.training.batch_size, self.training.batch_size)
        sizes = [largest >> turn for turn in range(1, largest.bit_length())]
        if self.costs.split is None or not sizes:
            return None
        # One sample at a time needs the least memory: if that is too much, all are. It takes longest, though.
        least = make(tier, sizes[-1])
        if least is not None and _of_memory(short := self.short(least)):
            self.tried[least] = short
            return None
        halves = (assignment for size in sizes if (assignment := make(tier, size)) is not None)
        return next(filter(self.fits, halves), None)


def _of_memory(short: Sequence[Shortfall]) -> bool:
    return any(s.budget == "memory_bytes" for s in short)


def _options(
    costs: PlanCosts, training: Training, order: Sequence[str], short: Short
) -> tuple[tuple[Assignment | None, ...], tuple[Attempt, ...]]:
    """Return the assignments that a class can get, largest tier first, and every attempt that was made."""
    attempts, tiers = _Attempts(costs, training, short), tuple(costs.tiers)
    place = order.index("tier") if "tier" in order else len(order)
    first, later = ([step for step in steps if step in ("micro-batch", "recompute")] for steps in (order[:place], order[place:]))
    by_tier = {tier: Assignment(tier) if attempts.fits(Assignment(tier)) else attempts.remedied(tier, first) for tier in tiers}
    if later and not any(by_tier.values()):
        by_tier = {tier: attempts.remedied(tier, [*first, *later]) for tier in tiers}
    options: tuple[Assignment | None, ...] = tuple(by_tier.values())
    if "tier" in order:
        options = tuple(option for option in options if option is not None)
    if "send" in order:
        everything = tuple(option or Assignment(tier) for tier, option in by_tier.items())
        options = everything if "tier" not in order else options or (Assignment(tiers[-1]),)
    return options, tuple(Attempt(assignment, refusals) for assignment, refusals in attempts.tried.items())
