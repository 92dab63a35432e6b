"""Which class of devices takes which tier, settled before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.errors import BudgetError
from edgefl.fleet.budget import Budget, budget_of, resolve_deadline, shortfalls
from edgefl.fleet.clock import round_timing
from edgefl.fleet.population import Population
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.local.train import Training
from edgefl.records import Cost, Shortfall, Tier, Timing

Evaluated = Callable[[int], int]


def no_evaluation(samples: int) -> int:
    """Return 0: the samples that go forward only in a round in which nothing is evaluated."""
    return 0


@dataclass(frozen=True)
class ClassPlan:
    """One device class: its budget, the tiers that fit it (largest first), and why the others do not.

    Everything is settled for the largest shard of the run, so a class that fits does so with every client's data.
    """

    device: DeviceProfile
    share: float
    clients: int
    budget: Budget
    fits: tuple[Tier, ...]
    refusals: tuple[Shortfall, ...]

    @property
    def tier(self) -> Tier | None:
        """The largest tier that fits."""
        return self.fits[0] if self.fits else None


@dataclass(frozen=True)
class Plan:
    """The fleet under this run's costs."""

    population: Population
    classes: tuple[ClassPlan, ...]
    costs: Mapping[Tier, Cost]
    training: Training
    deadline_s: float | None
    largest_shard: int
    mean_shard: int
    evaluated: Evaluated = no_evaluation

    def tier_of(self, policy: str, shares: Sequence[float] | None, client: int, round_: int) -> Tier | None:
        """Return the tier of ``client`` in a round; ``shares`` are those of the tiers, largest first, or None for no preference."""
        fits = [c.fits for c in self.classes]
        if shares is None:
            return self.population.assign(policy, fits, client, round_)
        return self.population.assign_by_shares(policy, fits, client, round_, dict(zip(self.costs, shares, strict=True)))

    def timing(self, device: DeviceProfile, tier: Tier, samples: int) -> Timing:
        """Return the simulated seconds and joules of one round on ``device`` with ``samples`` local samples."""
        return timing_of(device, self.costs[tier], self.training, samples, self.evaluated)

    def macs(self, tier: Tier, samples: int) -> int:
        """Return the MACs of one client's round with ``samples`` local samples."""
        passes = self.training.passes(samples)
        return self.costs[tier].macs_of(samples * self.training.epochs, passes, self.evaluated(samples))

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


def timing_of(
    device: DeviceProfile, cost: Cost, training: Training, samples: int, evaluated: Evaluated = no_evaluation
) -> Timing:
    """Return the simulated round of one client: ``samples`` local samples, every epoch of them, and what it evaluates besides."""
    return round_timing(device, cost, samples * training.epochs, training.passes(samples), evaluated(samples))


def fastest_round_s(fleet: Fleet, full: Cost, training: Training, samples: int) -> float:
    """Return the seconds that the fleet's fastest class needs for a round with the full model."""
    return min(timing_of(c.device, full, training, samples).total_s for c in fleet.classes)


def make_plan(
    fleet: Fleet,
    costs: Mapping[Tier, Cost],
    training: Training,
    shard_sizes: Sequence[int],
    seed: int,
    full: Cost | None = None,
    evaluated: Evaluated = no_evaluation,
) -> Plan:
    """Settle budgets and fitting tiers for every class of ``fleet``; ``costs`` maps tiers, largest first, to their costs.

    ``full`` is the cost of the full model, which deadlines may be multiples of; None takes the largest tier's. ``evaluated`` maps a
    client's samples to those that it sends forward only, besides training.
    """
    population = Population(fleet, len(shard_sizes), seed)
    largest, mean = max(shard_sizes), max(1, round(sum(shard_sizes) / len(shard_sizes)))
    fastest_s = fastest_round_s(fleet, full or next(iter(costs.values())), training, largest)
    classes = []
    for fleet_class, clients in zip(fleet.classes, population.class_counts(), strict=True):
        device = fleet_class.device
        budget = budget_of(fleet_class, fleet.budget, fastest_s)
        missing = {
            tier: shortfalls(cost, timing_of(device, cost, training, largest, evaluated), budget, device.name, tier)
            for tier, cost in costs.items()
        }
        fits = tuple(tier for tier, short in missing.items() if not short)
        refusals = tuple(s for short in missing.values() for s in short)
        classes.append(ClassPlan(device, fleet_class.share, clients, budget, fits, refusals))
    deadline_s = resolve_deadline(fleet.budget, fastest_s)
    return Plan(population, tuple(classes), costs, training, deadline_s, largest, mean, evaluated)
