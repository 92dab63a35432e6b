"""The largest tier of every device class of a fleet, and the budget that decides it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from edgefl.client.training import OptimizerName
from edgefl.errors import BudgetError
from edgefl.fleet.budget import Budget, budget_of
from edgefl.fleet.clock import Confidence
from edgefl.fleet.load import load_fleet
from edgefl.fleet.profile import FleetClass
from edgefl.planning.network import GivenInputs, Network, architecture_of
from edgefl.planning.plan import check_energy, check_limits, check_margin, clock_figures, timing_on, uses_within
from edgefl.planning.profile import DEFAULT_BATCH_SIZE, DEFAULT_SAMPLES, training_for
from edgefl.planning.quantities import DeviceRound
from edgefl.planning.spectral import Uses
from edgefl.planning.sub_models import STEPS, SubModels, sub_models
from edgefl.records import BudgetName, Cost
from edgefl.registry import Options
from edgefl.report.results import Result, Results
from edgefl.report.words import BUDGETS
from edgefl.util.compute import one_thread
from edgefl.util.units import need_have


@dataclass(frozen=True)
class ClassTier(Result):
    """The largest sub-model that fits a device class.

    Attributes:
        share: of the fleet's clients.
        ratio: None if no ratio fits; the other figures are then those of the smallest one.
        uses: budget → need and have.
        round_seconds_low, round_seconds_high: how long a round lasts, within the error of the device's clock.
        confidence: of limits of seconds and joules under this error: "safe", "likely" or "open"; None without such a limit.
    """

    device: str
    title: str
    share: float
    ratio: float | None
    params: int
    macs_forward: int
    training_memory_bytes: int
    upload_bytes: int
    uses: Uses
    round_seconds_low: float
    round_seconds_high: float
    confidence: Confidence | None = None

    @property
    def tightest(self) -> BudgetName:
        """The budget of which most is used."""
        return max(self.uses, key=lambda name: self.uses[name][0] / (self.uses[name][1] or math.inf))

    @property
    def need(self) -> str:
        """Need and have of the tightest budget."""
        return f"{BUDGETS.get(self.tightest, self.tightest)} {need_have(self.tightest, *self.uses[self.tightest])}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the tightest budget, and every budget's need and have."""
        budgets = [{"budget": name, "need": need, "have": have} for name, (need, have) in self.uses.items()]
        return {**super().to_dict(), "uses": budgets, "tightest": self.tightest}


@one_thread()
def plan_fleet(
    network: Network,
    inputs: GivenInputs = None,
    classes: int | None = None,
    *,
    profile: str,
    method: str = "fedhm",
    method_options: Options | None = None,
    budget: Budget | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    micro_batch: int | None = None,
    recompute: bool = False,
    optimizer: OptimizerName = "momentum",
    codec: str = "fp32",
    samples: int = DEFAULT_SAMPLES,
    local_epochs: int = 1,
    norm: str | None = None,
    runtime: Literal["torch", "onnx"] = "torch",
    clock_margin: float = 1.0,
) -> Results[ClassTier]:
    """Return the largest ratio of a method that fits each device class of a fleet, and what it costs there.

    A ratio is traced once for all classes.

    Args:
        network: a name, file, module or factory, as :func:`edgefl.plan` takes it.
        inputs: a sample's shape, name → shape, or example tensors.
        classes: number of labels, for reference networks; None: the usual one.
        profile: a fleet, by name or file; its classes have budgets: the memory of the device, and limits of the fleet or their own.
        method: makes the sub-models.
        method_options: the method's own options.
        budget: further limits of every class.
        batch_size: samples of a training step and of an inference.
        micro_batch: samples of one forward and backward pass; None: the batch.
        recompute: compute activations again in the backward pass.
        optimizer: "momentum", "sgd" or "adam".
        codec: how updates travel up.
        samples: local samples of a client.
        local_epochs: passes over them in a round.
        norm: normalisation policy, for reference networks.
        runtime: what trains, for the memory of training: "torch" or "onnx".
        clock_margin: training takes this many times the predicted seconds.

    Raises:
        InputError: a name, value or file is wrong.
        BudgetError: nothing fits any class; the message has the tightest budget of each.

    Example:
        >>> rows = plan_fleet("cnn-digits", (1, 8, 8), profile="phone", budget=Budget(macs_forward=1e6))
        >>> [(row.device, row.ratio, row.tightest) for row in rows][:2]
        [('flagship-phone', 0.624, 'macs_forward'), ('mid-range-phone', 0.624, 'macs_forward')]
    """
    fleet, budget = load_fleet(profile), budget or Budget()
    check_margin(clock_margin, fleet)
    check_limits(budget)
    for c in fleet.classes:
        check_energy(budget, c.device, c.device.name)
    training = training_for(batch_size, micro_batch, optimizer, local_epochs, samples, codec)
    of = sub_models(architecture_of(network, inputs, classes, norm), method, method_options, training, codec, runtime, recompute)
    amounts = of.training.amounts(samples)
    works = {c.device.name: DeviceRound(c.device, *amounts, clock_margin) for c in fleet.classes}
    relative = any(b.round_deadline_ratio is not None for b in (fleet.budget, *(c.budget for c in fleet.classes)))
    fastest_s = min(timing_on(of.cost(1.0), work).total_s for work in works.values()) if relative else 0.0
    by_device: dict[str, ClassTier] = {}
    for c in fleet.classes:
        if c.left_out:
            continue
        share = c.share + (by_device[c.device.name].share if c.device.name in by_device else 0.0)
        limits = _both(budget_of(c, fleet.budget, fastest_s), budget)
        by_device[c.device.name] = _class_tier(of, c, works[c.device.name], limits, share)
    if all(row.ratio is None for row in by_device.values()):
        lines = [f"  {row.title}: {row.need}" for row in by_device.values()]
        raise BudgetError(
            "\n".join([f"no size of {of.architecture.model} with {method} fits a class of {profile}; of the smallest,", *lines])
        )
    return Results(by_device.values())


def _both(one: Budget, other: Budget) -> Budget:
    """Return the tighter of two limits of every kind."""
    limits = {name: [v for v in (value, getattr(other, name)) if v is not None] for name, value in vars(one).items()}
    return Budget(**{name: min(both) for name, both in limits.items() if both})


def _class_tier(of: SubModels, c: FleetClass, work: DeviceRound, limits: Budget, share: float) -> ClassTier:
    def uses_of(cost: Cost) -> Uses:
        return uses_within(cost, limits, work)

    ratio = of.largest(uses_of)
    ratio = ratio and min(ratio, c.largest_tier or 1.0)
    cost = of.cost(ratio or 1 / STEPS)
    clock = clock_figures(cost, work, limits)
    return ClassTier(
        device=c.device.name,
        title=c.device.title,
        share=share,
        ratio=ratio,
        params=cost.params,
        macs_forward=cost.macs_forward,
        training_memory_bytes=cost.training_memory_bytes,
        upload_bytes=cost.upload_bytes,
        uses=uses_of(cost),
        round_seconds_low=clock.round_seconds_low,
        round_seconds_high=clock.round_seconds_high,
        confidence=clock.confidence,
    )
