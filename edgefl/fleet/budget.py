"""Budgets of a device: what a tier may need there, and which of them it does not meet."""

import math
from dataclasses import dataclass

from edgefl.fleet.profile import FleetBudget, FleetClass
from edgefl.records import BudgetName, Cost, Shortfall, Tier, Timing


@dataclass(frozen=True)
class Budget:
    """The limits of one client in one round. None means no limit.

    Attributes:
        memory_bytes: memory of a training step.
        deadline_s: simulated seconds of download, training and upload together.
        download_bytes, upload_bytes: length of the payload in each direction.
        energy_j: joules of the device.
        macs_forward: multiply-accumulates of the inference of one sample.
        macs_train_step: multiply-accumulates of one training step with its whole batch.

    >>> Budget(memory_bytes=100e6).deadline_s is None
    True
    """

    memory_bytes: float | None = None
    deadline_s: float | None = None
    download_bytes: float | None = None
    upload_bytes: float | None = None
    energy_j: float | None = None
    macs_forward: float | None = None
    macs_train_step: float | None = None


def resolve_deadline(budget: FleetBudget, fastest_full_round_s: float) -> float | None:
    """Return the deadline in seconds: absolute, or a multiple of what the fastest class needs for a round with the full model."""
    if budget.round_deadline_s is not None:
        return budget.round_deadline_s
    return None if budget.round_deadline_ratio is None else budget.round_deadline_ratio * fastest_full_round_s


def budget_of(fleet_class: FleetClass, fleet: FleetBudget, fastest_full_round_s: float, memory_share: float = 1.0) -> Budget:
    """Return the budget of a class: the share of the device's memory, the class's own limits, and the fleet's where it has none."""
    own, shared = (
        (resolve_deadline(limits, fastest_full_round_s), limits.download_bytes, limits.upload_bytes, limits.energy_j)
        for limits in (fleet_class.budget, fleet)
    )
    limits = (theirs if mine is None else mine for mine, theirs in zip(own, shared, strict=True))
    return Budget(fleet_class.device.training_bytes * memory_share, *limits)


def larger_than_allowed(fleet_class: FleetClass, tier: Tier) -> tuple[Shortfall, ...]:
    """Return the shortfall of a tier that is larger than the largest that the fleet gives a class; none for other tiers."""
    most = fleet_class.largest_tier
    if most is None or tier.ratio <= most:
        return ()
    return (Shortfall("largest_tier", tier.ratio, most, fleet_class.device.name, tier.ratio),)


def use(cost: Cost, timing: Timing, budget: Budget) -> dict[BudgetName, tuple[float, float]]:
    """Return need and have of every budget that has a limit; an unknown energy meets no limit."""
    needs: dict[BudgetName, float] = {
        "memory_bytes": cost.training_memory_bytes,
        "macs_forward": cost.macs_inference,
        "macs_train_step": cost.macs_train_step,
        "deadline_s": timing.total_s,
        "download_bytes": cost.download_bytes,
        "upload_bytes": cost.upload_bytes,
        "energy_j": math.inf if timing.total_j is None else timing.total_j,
    }
    return {name: (need, have) for name, need in needs.items() if (have := getattr(budget, name)) is not None}


def margin_of(budget: str, clock_margin: float) -> float:
    """Return the factor on seconds of training that the need of a budget contains: 1 for needs that do not depend on seconds."""
    return clock_margin if budget in ("deadline_s", "energy_j") else 1.0


def shortfalls(
    cost: Cost, timing: Timing, budget: Budget, device: str, tier: Tier, micro_batch: int | None = None, clock_margin: float = 1.0
) -> tuple[Shortfall, ...]:
    """Return the budgets that are not met; a cost with uncounted operations meets none that can be claimed.

    ``clock_margin`` is the factor that the seconds of training in ``timing`` contain.
    """
    place = device, tier.ratio, micro_batch, bool(cost.recompute)
    short = [
        Shortfall(name, need, have, *place, margin_of(name, clock_margin))
        for name, (need, have) in use(cost, timing, budget).items()
        if need > have
    ]
    if cost.uncounted_ops:
        short.append(Shortfall("uncounted_ops", len(cost.uncounted_ops), 0, *place))
    return tuple(short)
