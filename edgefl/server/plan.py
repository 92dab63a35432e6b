"""Which class of devices takes which tier, settled before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.errors import BudgetError
from edgefl.fleet.budget import Budget, budget_of, resolve_deadline, shortfalls
from edgefl.fleet.clock import round_timing
from edgefl.fleet.conditions import UNDISTURBED
from edgefl.fleet.population import Population
from edgefl.fleet.profile import DeviceProfile, Fleet, FleetClass, State
from edgefl.local.train import Training
from edgefl.records import Cost, Shortfall, Tier, Timing

Evaluated = Callable[[int], int]


def no_evaluation(samples: int) -> int:
    """Return 0: the samples that go forward only in a round in which nothing is evaluated."""
    return 0


@dataclass(frozen=True)
class Fit:
    """A tier as a device takes it: whole batches, or ``micro_batch`` samples at once with their gradients accumulated."""

    tier: Tier
    micro_batch: int | None = None


@dataclass(frozen=True)
class Considered:
    """One step of the planning: what was considered, and the budgets that it does not meet; none where it fits."""

    fit: Fit
    refusals: tuple[Shortfall, ...]


@dataclass(frozen=True)
class ClassPlan:
    """One device class in one state: its budget, what it can be given (largest tier first), and why it is not given more.

    Everything is settled for the largest shard of the run, so a class that fits does so with every client's data. ``options`` has None for
    a tier that is refused and that nothing stands in for; ``considered`` are the steps in which it was settled, in their order.
    """

    device: DeviceProfile
    share: float
    clients: int
    budget: Budget
    options: tuple[Fit | None, ...]
    considered: tuple[Considered, ...]
    state: State = UNDISTURBED

    @property
    def fits(self) -> tuple[Tier, ...]:
        """The tiers that it can be given."""
        return tuple(fit.tier for fit in self.options if fit is not None)

    @property
    def fit(self) -> Fit | None:
        """What it is given where the devices decide: the largest tier."""
        return self.options[0] if self.options else None

    @property
    def tier(self) -> Tier | None:
        """The tier that it is given where the devices decide."""
        return self.fit.tier if self.fit else None

    @property
    def refusals(self) -> tuple[Shortfall, ...]:
        """Every budget that something considered does not meet."""
        return tuple(short for step in self.considered for short in step.refusals)


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


@dataclass(frozen=True)
class Plan:
    """The fleet under this run's costs; ``cells[class][state]`` are the plans of classes in every state that devices may be in."""

    population: Population
    cells: tuple[tuple[ClassPlan, ...], ...]
    costs: Mapping[Tier, Cost]
    training: Training
    deadline_s: float | None
    largest_shard: int
    mean_shard: int
    evaluated: Evaluated = no_evaluation
    split_costs: Mapping[Fit, Cost] = field(default_factory=dict)
    substitutes: bool = True

    @property
    def classes(self) -> tuple[ClassPlan, ...]:
        """The plan of each class in its first state, the undisturbed one."""
        return tuple(states[0] for states in self.cells)

    @property
    def states(self) -> tuple[State, ...]:
        """What a device may be in during a round."""
        return tuple(cell.state for cell in self.cells[0])

    def cells_of(self, clients: np.ndarray, round_: int) -> list[ClassPlan]:
        """Return the plan of each client's class in the state that its device is in during a round."""
        classes = self.population.classes(clients).tolist()
        states = self.population.states(clients, self.states, round_).tolist()
        return [self.cells[number][state] for number, state in zip(classes, states, strict=True)]

    def fits_of(
        self, policy: str, shares: Sequence[float] | None, clients: np.ndarray, cells: Sequence[ClassPlan], round_: int
    ) -> list[Fit | None]:
        """Return what each client is given in a round; ``shares`` are those of the tiers, largest first, or None for no preference."""
        if shares is None:
            options = np.array([len(cell.options) for cell in cells], np.int64)
            chosen = self.population.tiers(policy, options, clients, round_).tolist()
            return [cell.options[number] if number >= 0 else None for cell, number in zip(cells, chosen, strict=True)]
        dealt = self.population.dealt(policy, shares, clients, round_).tolist()
        tiers = list(self.costs)
        return [_nearest(cell, tiers[number], self.substitutes) for cell, number in zip(cells, dealt, strict=True)]

    def tier_of(self, policy: str, shares: Sequence[float] | None, client: int, round_: int) -> Tier | None:
        """Return the tier of ``client`` in a round, None where it is given none."""
        clients = np.array([client])
        fit = self.fits_of(policy, shares, clients, self.cells_of(clients, round_), round_)[0]
        return fit.tier if fit else None

    def cost(self, fit: Fit) -> Cost:
        """Return what a tier costs as it is taken."""
        return self.costs[fit.tier] if fit.micro_batch is None else self.split_costs[fit]

    def timing(self, device: DeviceProfile, fit: Fit | Tier, samples: int) -> Timing:
        """Return the simulated seconds and joules of one round on ``device`` with ``samples`` local samples."""
        fit = Fit(fit) if isinstance(fit, Tier) else fit
        return timing_of(device, self.cost(fit), split(self.training, fit), samples, self.evaluated)

    def macs(self, fit: Fit | Tier, samples: int) -> int:
        """Return the MACs of one client's round with ``samples`` local samples."""
        fit = Fit(fit) if isinstance(fit, Tier) else fit
        passes = split(self.training, fit).passes(samples)
        return self.cost(fit).macs_of(samples * self.training.epochs, passes, self.evaluated(samples))

    def home_of(self, tier: Tier) -> ClassPlan:
        """Return the class that a tier's row speaks of.

        That is the largest class which takes this tier; if none does, the slowest that could; if none could, the fastest.
        """
        taking = [c for c in self.classes if c.tier == tier]
        if taking:
            return max(taking, key=lambda c: c.share)
        able = [c for c in self.classes if tier in c.fits]

        def seconds(c: ClassPlan) -> float:
            return self.timing(c.device, tier, self.mean_shard).total_s

        return max(able, key=seconds) if able else min(self.classes, key=seconds)

    def require_someone(self) -> None:
        """Raise :class:`BudgetError` with every need when no class can take any tier."""
        if not any(c.fits for c in self.classes):
            needs = "\n".join(f"  {refusal}" for c in self.classes for refusal in c.refusals)
            raise BudgetError(f"no device of the fleet fits any tier:\n{needs}\ngive smaller tiers, a smaller model or batch")


def split(training: Training, fit: Fit) -> Training:
    """Return how a client trains that takes its batches as ``fit`` says."""
    return training if fit.micro_batch is None else replace(training, micro_batch=fit.micro_batch)


def timing_of(
    device: DeviceProfile,
    cost: Cost,
    training: Training,
    samples: int,
    evaluated: Evaluated = no_evaluation,
    speed: float = 1.0,
) -> Timing:
    """Return the simulated round of one client: ``samples`` local samples, every epoch of them, and what it evaluates besides."""
    return round_timing(device, cost, samples * training.epochs, training.passes(samples), evaluated(samples), speed)


def fastest_round_s(fleet: Fleet, full: Cost, training: Training, samples: int) -> float:
    """Return the seconds that the fleet's fastest class needs for a round with the full model."""
    return min(timing_of(c.device, full, training, samples).total_s for c in fleet.classes)


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


def _nearest(cell: ClassPlan, dealt: Tier, substitutes: bool) -> Fit | None:
    """Return the dealt tier, or of those that fit the next smaller one, else the smallest larger one."""
    fits = [fit for fit in cell.options if fit is not None]
    if not substitutes:
        return next((fit for fit in fits if fit.tier == dealt), None)
    smaller = [fit for fit in fits if fit.tier <= dealt]
    return smaller[0] if smaller else (fits[-1] if fits else None)
