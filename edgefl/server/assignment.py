"""Assignments: which tier each class of devices trains. They are known before anything is sent."""

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
    """Return 0, the samples that a client evaluates in a round without evaluation on clients."""
    return 0


@dataclass(frozen=True)
class Workload:
    """The work of a client in a round.

    Attributes:
        largest_shard: the most samples of any client.
        mean_shard: the mean number of samples of a client, rounded to a whole number.
        evaluated: number of a client's samples → number of samples that it evaluates (forward pass only) besides training.
        clock_margin: factor on the predicted seconds of training with which plans are made.
    """

    training: Training
    largest_shard: int
    mean_shard: int
    evaluated: Evaluated = no_evaluation
    clock_margin: float = 1.0


@dataclass(frozen=True)
class Assignment:
    """A tier that a class is given.

    Attributes:
        micro_batch: samples of one forward and backward pass; the gradients of a batch are accumulated. None: whole batches.
        recompute: layers at which a segment begins that the backward pass computes again; empty: all activations are saved.
    """

    tier: Tier
    micro_batch: int | None = None
    recompute: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One step of the planning: an assignment, and the budgets that it exceeds (none if it fits)."""

    assignment: Assignment
    refusals: tuple[Shortfall, ...]


@dataclass(frozen=True)
class ClassPlan:
    """One device class in one state of its devices.

    Budgets are checked for the run's largest shard, so a tier that fits does so with the data of every client.

    Attributes:
        share: share of all clients that belong to the class, in [0, 1].
        clients: number of its clients.
        budget: the limits of the device in this state.
        options: the assignments that the class can get, largest tier first; None for a tier that is refused without a substitute.
        attempts: the steps of the planning, in order.
        left_out: whether the fleet leaves the class out, so that none of its clients is asked.
    """

    device: DeviceProfile
    share: float
    clients: int
    budget: Budget
    options: tuple[Assignment | None, ...]
    attempts: tuple[Attempt, ...]
    state: State = UNDISTURBED
    left_out: bool = False

    @property
    def fits(self) -> tuple[Tier, ...]:
        """The tiers that the class can train, largest first."""
        return tuple(option.tier for option in self.options if option is not None)

    @property
    def assignment(self) -> Assignment | None:
        """The assignment with the largest tier, which the class gets under the policy "auto"; None if nothing fits."""
        return self.options[0] if self.options else None

    @property
    def tier(self) -> Tier | None:
        """The tier of :attr:`assignment`."""
        return self.assignment.tier if self.assignment else None

    @property
    def refusals(self) -> tuple[Shortfall, ...]:
        """Every budget that some attempt exceeds."""
        return tuple(short for attempt in self.attempts for short in attempt.refusals)


@dataclass(frozen=True)
class TierPolicy:
    """How clients get their tiers.

    Attributes:
        name: "auto" (the largest that fits), "uniform" (a random one per client) or "dynamic" (a random one per client and round).
        shares: share of the clients at each tier, largest tier first; None: no preference.
    """

    name: str = "auto"
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """Which tier each class of a fleet trains, under the costs of a run.

    Attributes:
        class_plans: ``class_plans[class][state]`` is the plan of a class in a state of its devices.
        costs: tier, largest first → its cost in whole batches.
        deadline_s: longest round in simulated seconds; None: no limit.
        split_costs: assignment in micro-batches, with recomputation or both → its cost.
        substitutes: whether a smaller tier replaces one that does not fit.
        policy: which of the fitting tiers a client gets.
    """

    population: Population
    class_plans: tuple[tuple[ClassPlan, ...], ...]
    costs: Mapping[Tier, Cost]
    workload: Workload
    deadline_s: float | None
    split_costs: Mapping[Assignment, Cost] = field(default_factory=dict)
    substitutes: bool = True
    policy: TierPolicy = TierPolicy()

    @property
    def classes(self) -> tuple[ClassPlan, ...]:
        """The plan of each class in its first state, the undisturbed one."""
        return tuple(states[0] for states in self.class_plans)

    @property
    def states(self) -> tuple[State, ...]:
        """The states that a device may be in during a round."""
        return tuple(plan.state for plan in self.class_plans[0])

    @property
    def memory_limits(self) -> dict[str, float]:
        """Device → the least bytes of memory that it has for training in any of its states."""
        limits: dict[str, float] = {}
        for plan in (plan for states in self.class_plans for plan in states):
            limit, name = plan.device.training_bytes * plan.state.memory_share, plan.device.name
            limits[name] = min(limit, limits.get(name, limit))
        return limits

    def class_plans_of(self, clients: np.ndarray, round_: int) -> list[ClassPlan]:
        """Return, for each of ``clients`` (int64), the plan of its class in the state of its device during a round."""
        classes = self.population.classes(clients).tolist()
        states = self.population.states(clients, self.states, round_).tolist()
        return [self.class_plans[number][state] for number, state in zip(classes, states, strict=True)]

    def assigned(self, clients: np.ndarray, plans: Sequence[ClassPlan], round_: int) -> list[Assignment | None]:
        """Return the assignment of each client in a round, None for a refused one; ``plans`` are their class plans in that round."""
        name, shares = self.policy.name, self.policy.shares
        if shares is None:
            options = np.array([len(plan.options) for plan in plans], np.int64)
            chosen = self.population.tiers(name, options, clients, round_).tolist()
            return [plan.options[number] if number >= 0 else None for plan, number in zip(plans, chosen, strict=True)]
        dealt = self.population.dealt(name, shares, clients, round_).tolist()
        tiers = list(self.costs)
        return [_nearest(plan, tiers[number], self.substitutes) for plan, number in zip(plans, dealt, strict=True)]

    def shares(self) -> dict[Tier, float]:
        """Return tier → the expected share of the asked clients that are assigned it in a round, largest tier first; without others."""
        expected: dict[Tier, float] = {}
        tiers, dealt = list(self.costs), self.policy.shares
        asked = self.population.clients - sum(plan.clients for plan in self.classes if plan.left_out)
        for plan in (plan for states in self.class_plans for plan in states if not plan.left_out):
            share = plan.clients / asked * plan.state.chance
            if dealt is not None:
                parts = [(_nearest(plan, tier, self.substitutes), part) for tier, part in zip(tiers, dealt, strict=True)]
            else:
                options = plan.options[:1] if self.policy.name == "auto" else plan.options
                parts = [(option, 1 / len(options)) for option in options]
            for assignment, part in parts:
                if assignment is not None and part > 0:
                    expected[assignment.tier] = expected.get(assignment.tier, 0.0) + share * part
        return {tier: expected[tier] for tier in tiers if tier in expected}

    def tier_of(self, client: int, round_: int) -> Tier | None:
        """Return the tier of ``client`` in a round, None if it gets none."""
        clients = np.array([client])
        (assignment,) = self.assigned(clients, self.class_plans_of(clients, round_), round_)
        return assignment.tier if assignment else None

    def cost(self, assignment: Assignment) -> Cost:
        """Return the cost of an assignment."""
        return self.costs[assignment.tier] if assignment == Assignment(assignment.tier) else self.split_costs[assignment]

    def timing(self, device: DeviceProfile, assignment: Assignment | Tier, samples: int, margin: float = 1.0) -> Timing:
        """Return the simulated seconds and joules of one round on ``device`` with ``samples`` local samples.

        ``margin`` is a factor on the predicted seconds of training.
        """
        if isinstance(assignment, Tier):
            assignment = Assignment(assignment)
        training = split(self.workload.training, assignment)
        return timing_of(device, self.cost(assignment), training, samples, self.workload.evaluated, margin=margin)

    def home_of(self, tier: Tier) -> ClassPlan:
        """Return the class for which tables show a tier.

        That is the largest class that trains the tier. If no class trains it: the slowest class that could, or else the fastest class.
        """
        taking = [c for c in self.classes if c.tier == tier]
        if taking:
            return max(taking, key=lambda c: c.share)
        able = [c for c in self.classes if tier in c.fits]

        def seconds(c: ClassPlan) -> float:
            return self.timing(c.device, tier, self.workload.mean_shard).total_s

        return max(able, key=seconds) if able else min(self.classes, key=seconds)

    def require_someone(self) -> None:
        """Raise :class:`BudgetError` if no class fits any tier; its message lists every need, or the operations without a known cost."""
        if not any(c.fits for c in self.classes):
            if unknown := self.costs[min(self.costs)].not_counted:
                raise BudgetError(f"no device of the fleet fits any tier: {unknown}")
            needs = "\n".join(f"  {refusal}" for c in self.classes for refusal in c.refusals)
            raise BudgetError(f"no device of the fleet fits any tier:\n{needs}\ngive smaller tiers, a smaller model or batch")


def split(training: Training, assignment: Assignment) -> Training:
    """Return how a client with ``assignment`` trains."""
    return replace(training, micro_batch=assignment.micro_batch or training.micro_batch, recompute=assignment.recompute)


def timing_of(
    device: DeviceProfile,
    cost: Cost,
    training: Training,
    samples: int,
    evaluated: Evaluated = no_evaluation,
    speed: float = 1.0,
    margin: float = 1.0,
) -> Timing:
    """Return the simulated seconds and joules of one client's round with ``samples`` local samples: all epochs, and its evaluation.

    ``speed`` is the share of the device's rate that its state leaves, in (0, 1]. ``margin`` is a factor on the seconds of training.
    """
    return round_timing(device, cost, *training.amounts(samples), evaluated(samples), speed, margin)


def fastest_round_s(fleet: Fleet, full: Cost, training: Training, samples: int) -> float:
    """Return the seconds that the fleet's fastest class needs for a round with the full model."""
    return min(timing_of(c.device, full, training, samples).total_s for c in fleet.classes)


def _nearest(plan: ClassPlan, dealt: Tier, substitutes: bool) -> Assignment | None:
    """Return the dealt tier; if it does not fit, the largest smaller one that fits, or else the smallest larger one."""
    fits = [option for option in plan.options if option is not None]
    if not substitutes:
        return next((option for option in fits if option.tier == dealt), None)
    smaller = [option for option in fits if option.tier <= dealt]
    return smaller[0] if smaller else (fits[-1] if fits else None)
