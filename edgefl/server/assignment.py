"""Which class of devices takes which tier, settled before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.client.training import Training
from edgefl.errors import BudgetError
from edgefl.fleet.budget import Budget
from edgefl.fleet.clock import round_timing
from edgefl.fleet.conditions import UNDISTURBED
from edgefl.fleet.population import Population
from edgefl.fleet.profile import DeviceProfile, Fleet, State
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


def _nearest(cell: ClassPlan, dealt: Tier, substitutes: bool) -> Fit | None:
    """Return the dealt tier, or of those that fit the next smaller one, else the smallest larger one."""
    fits = [fit for fit in cell.options if fit is not None]
    if not substitutes:
        return next((fit for fit in fits if fit.tier == dealt), None)
    smaller = [fit for fit in fits if fit.tier <= dealt]
    return smaller[0] if smaller else (fits[-1] if fits else None)
