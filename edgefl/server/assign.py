"""What each class of devices is given, worked out before a run: a tier whole, in micro-batches, a smaller one, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.client.training import Training
from edgefl.fleet.budget import budget_of, resolve_deadline, shortfalls
from edgefl.fleet.conditions import UNDISTURBED
from edgefl.fleet.population import Population
from edgefl.fleet.profile import FleetClass, State
from edgefl.records import Cost, Shortfall, Tier
from edgefl.server.assignment import (
    ClassPlan,
    Considered,
    Evaluated,
    Fit,
    Plan,
    fastest_round_s,
    no_evaluation,
    split,
    timing_of,
)  # fmt: skip


@dataclass(frozen=True)
class Planning:
    """What is done about a class that a tier does not fit, in order.

    ``on_shortfall`` lists ``micro-batch`` (take fewer samples at once: the same step in more passes) and ``tier`` (a smaller one); what
    still does not fit is refused, or, if the last entry is ``send``, sent all the same: the device finds out. ``splits`` says whether
    batches may be split without changing the result; ``cost`` works out a tier's cost in micro-batches.
    """

    on_shortfall: tuple[str, ...] = ("tier",)
    splits: bool = True
    cost: Callable[[Tier, int], Cost] | None = None


def make_plan(
    population: Population,
    costs: Mapping[Tier, Cost],
    training: Training,
    largest_shard: int,
    mean_shard: int,
    full: Cost | None = None,
    evaluated: Evaluated = no_evaluation,
    states: Sequence[State] = (UNDISTURBED,),
    rules: Planning = Planning(),
) -> Plan:
    """Settle budgets and fitting tiers for every class of the population's fleet.

    Args:
        population: who the clients are.
        costs: tier, largest first, to its cost.
        training: how clients train.
        largest_shard: the most samples that a client has.
        mean_shard: the mean number.
        full: the cost of the full model, which deadlines may be multiples of; None takes the largest tier's.
        evaluated: a client's samples → those that it sends forward only, besides training.
        states: what devices may be in during a round, the undisturbed state first.
        rules: what is done about a tier that does not fit.
    """
    fleet = population.fleet
    fastest_s = fastest_round_s(fleet, full or next(iter(costs.values())), training, largest_shard)
    split_costs: dict[Fit, Cost] = {}

    def cost_of(fit: Fit) -> Cost:
        if fit.micro_batch is None:
            return costs[fit.tier]
        assert rules.cost is not None  # micro-batches are only considered where their cost can be worked out
        if fit not in split_costs:
            split_costs[fit] = rules.cost(fit.tier, fit.micro_batch)
        return split_costs[fit]

    def cell(of: FleetClass, clients: int, state: State) -> ClassPlan:
        budget = budget_of(of, fleet.budget, fastest_s, state.memory_share)

        def short(fit: Fit) -> tuple[Shortfall, ...]:
            cost = cost_of(fit)
            timing = timing_of(of.device, cost, split(training, fit), largest_shard, evaluated, state.speed_share)
            return shortfalls(cost, timing, budget, of.device.name, fit.tier, fit.micro_batch)

        options, considered = _settled(tuple(costs), training, rules, short)
        return ClassPlan(of.device, of.share, clients, budget, options, considered, state)

    pairs = zip(fleet.classes, population.class_counts(), strict=True)
    cells = tuple(tuple(cell(of, clients, state) for state in states) for of, clients in pairs)
    deadline_s = resolve_deadline(fleet.budget, fastest_s)
    parts = (population, cells, costs, training, deadline_s, largest_shard, mean_shard, evaluated, split_costs)
    return Plan(*parts, substitutes="tier" in rules.on_shortfall)


def _settled(
    tiers: Sequence[Tier], training: Training, rules: Planning, short: Callable[[Fit], tuple[Shortfall, ...]]
) -> tuple[tuple[Fit | None, ...], tuple[Considered, ...]]:
    """Return what can be given, and the steps that led there."""
    considered: dict[Fit, tuple[Shortfall, ...]] = {}

    def whole(tier: Tier) -> Fit | None:
        fit = Fit(tier)
        considered.setdefault(fit, short(fit))
        return None if considered[fit] else fit

    def in_parts(tier: Tier) -> Fit | None:
        if not rules.splits or rules.cost is None or not any(s.budget == "memory_bytes" for s in considered[Fit(tier)]):
            return None
        largest = min(training.micro_batch or training.batch_size, training.batch_size)
        halves = [Fit(tier, largest >> turn) for turn in range(1, largest.bit_length())]
        if not halves:
            return None
        # Nothing holds less than one sample at a time: where that is too much, all is. It takes longest, though.
        least = short(halves[-1])
        if any(s.budget == "memory_bytes" for s in least):
            considered[halves[-1]] = least
            return None
        for fit in halves:
            considered[fit] = short(fit)
            if not considered[fit]:
                return fit
        return None

    order = rules.on_shortfall
    if order[:1] == ("micro-batch",):
        found = {tier: whole(tier) or in_parts(tier) for tier in tiers}
    else:
        found = {tier: whole(tier) for tier in tiers}
        if "micro-batch" in order and not any(found.values()):
            found = {tier: in_parts(tier) for tier in tiers}
    options: tuple[Fit | None, ...] = tuple(found.values())
    if "tier" in order:
        options = tuple(fit for fit in options if fit is not None)
    if "send" in order:
        options = tuple(fit or Fit(tier) for tier, fit in found.items()) if "tier" not in order else options or (Fit(tiers[-1]),)
    return options, tuple(Considered(fit, refusals) for fit, refusals in considered.items())
