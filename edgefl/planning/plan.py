"""The largest sub-model that fits a budget: the largest ratio of a method, or a rank for every layer from given weights."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from edgefl.client.training import OptimizerName, Training
from edgefl.cost.memory import Timeline
from edgefl.errors import BudgetError, ConfigError, UnknownNameError
from edgefl.fleet.budget import Budget, margin_of, use
from edgefl.fleet.clock import Confidence, chance_of, confidence_of, round_timing, within
from edgefl.fleet.load import load_device
from edgefl.fleet.profile import DeviceProfile, unknown_energy
from edgefl.methods.base import Method
from edgefl.methods.layer_rules import rules_of
from edgefl.methods.personal import download_shapes
from edgefl.methods.ranks import Ranks, hybrid_ranks, rank_candidates, ranked
from edgefl.methods.state import travelling_shapes
from edgefl.models.base import Architecture
from edgefl.models.ties import tied
from edgefl.models.weights import checked_weights
from edgefl.planning.network import GivenInputs, Network, architecture_of
from edgefl.planning.practice import Practice
from edgefl.planning.profile import DEFAULT_BATCH_SIZE, DEFAULT_SAMPLES, training_for
from edgefl.planning.quantities import DeviceRound
from edgefl.planning.spectral import Uses, energies, share_kept, spectral
from edgefl.planning.sub_models import STEPS, sub_models
from edgefl.records import BUDGETS, BudgetName, Cost, Tier, Timing
from edgefl.registry import Options
from edgefl.report.cost_rows import CostRow
from edgefl.report.results import Result, Results
from edgefl.rng import generator
from edgefl.util.compute import one_thread
from edgefl.util.units import need_have
from edgefl.wire.payload import payload_bytes

Allocate = Literal["uniform", "spectral"]
Truncation = Literal["absolute", "relative"]
TOO_LITTLE = " (too little)"
"""The end of the need of a budget that is not met, in a message."""


@dataclass(frozen=True)
class ClockFigures:
    """The figures of a plan about the device's clock; :class:`Planned` explains each."""

    clock_error: float
    clock_margin: float
    round_seconds_low: float
    round_seconds_high: float
    clock_chance: float | None
    confidence: Confidence | None


@dataclass(frozen=True)
class Planned(Result):
    """One plan: a size of a network that fits.

    Attributes:
        ratio: one for all layers; of a spectral plan that of the uniform plan that it started from, None if no ratio fits.
        ranks: layer → rank of factorized layers; empty for methods without ranks and for the dense network.
        uses: budget → need and have.
        energy_share: share of the factorized layers' energy that the ranks keep; None for methods without ranks.
        clock_error, clock_margin, round_seconds_low, round_seconds_high: the device's seconds of training may be wrong by the first
            factor; the needs are for training that takes the second times as long; a round lasts between the others. None without a device.
        clock_chance, confidence: the chance that limits of seconds and joules hold under this error, and what it is called: "safe" from
            95 % on, "likely" from 75 % on, else "open". None without such a limit.
        method: makes the sub-models.
        gap: upper bound of what a better plan could add to that share, from costs predicted between traces; None for a uniform plan.
    """

    kind: Allocate
    ratio: float | None
    ranks: Mapping[str, int]
    cost: Cost
    uses: Uses
    energy_share: float | None = None
    gap: float | None = None
    clock_error: float | None = None
    clock_margin: float | None = None
    round_seconds_low: float | None = None
    round_seconds_high: float | None = None
    clock_chance: float | None = None
    confidence: Confidence | None = None
    method: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the share of each budget, and the scalars of the cost."""
        budgets = [{"budget": name, "need": need, "have": have, "share": need / have} for name, (need, have) in self.uses.items()]
        clock = (of.name for of in fields(ClockFigures))
        own = {name: getattr(self, name) for name in ("ratio", "ranks", "energy_share", "gap", *clock)}
        return {"allocate": self.kind, **own, "budgets": budgets, **CostRow.of(self.cost).to_dict()}


@one_thread()
def plan(
    network: Network,
    inputs: GivenInputs = None,
    classes: int | None = None,
    *,
    method: str = "fedhm",
    method_options: Options | None = None,
    device: str | None = None,
    budget: Budget | None = None,
    allocate: Allocate = "uniform",
    weights: Path | str | Mapping[str, Tensor] | None = None,
    error: Truncation = "absolute",
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
    seed: int = 0,
) -> Results[Planned]:
    """Return the largest ratio of a method that fits a budget, and with ``allocate="spectral"`` a rank per layer beside it.

    Args:
        network: a name, file, module or factory, as :func:`edgefl.profile` takes it.
        inputs: a sample's shape, name → shape, or example tensors.
        classes: number of labels, for reference networks; None: the usual one.
        method: makes the sub-models, in a run with this one tier: of some methods, other tiers would change it. Ranks per layer need a
            method that factorizes by ranks: fedhm.
        method_options: the method's own options.
        device: its memory is a budget, and its figures turn work and bytes into seconds and joules.
        budget: further limits.
        allocate: "uniform": the same ratio for every layer. "spectral": also the ranks that minimise the truncation error.
        weights: tensors by name, or a safetensors file, whose truncation is minimised; None: the initial weights of ``seed``.
        error: sum of squared errors over the layers, "absolute" or each "relative" to its layer's weights. Relative errors treat layers
            with small weights as important as others. In our experiments this kept more accuracy at small ranks.
        clock_margin: training takes this many times the predicted seconds. The plan then holds if the clock is wrong by this factor.
        batch_size: samples of a training step and of an inference.
        micro_batch: samples of one forward and backward pass; None: the batch.
        recompute: compute activations again in the backward pass.
        optimizer: "momentum", "sgd" or "adam".
        codec: how updates travel up.
        samples: local samples of a client, for the seconds and joules of a round.
        local_epochs: passes over them in a round.
        norm: normalisation policy, for reference networks.
        runtime: what trains, for the memory of training. "onnx" exports the training graph of every ratio that is tried, which takes
            seconds each.
        seed: of the initial weights.

    Returns:
        The uniform plan, if a ratio fits, and the spectral one, which keeps at least as much energy within the same budgets.

    Raises:
        InputError: a name, value or file is wrong, or there is no budget.
        BudgetError: nothing fits; the message has the smallest need of every budget.

    Example:
        >>> found = plan("cnn-digits", (1, 8, 8), budget=Budget(macs_forward=1e6))
        >>> found[0].ratio, found[0].cost.macs_forward
        (0.624, 987136)
    """
    training = training_for(batch_size, micro_batch, optimizer, local_epochs, samples, codec)
    for kind, name, known in (("allocation", allocate, get_args(Allocate)), ("error", error, get_args(Truncation))):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    profile = load_device(device) if device else None
    if profile is not None and budget is not None:
        check_energy(budget, profile, str(device))
    limits = _limits(budget or Budget(), profile)
    architecture = architecture_of(network, inputs, classes, norm)
    of = sub_models(architecture, method, method_options, training, codec, runtime, recompute)
    chosen, trace, training = of.method, of.cost, of.training
    if allocate == "spectral" and runtime == "onnx":
        raise ConfigError("allocate: spectral predicts the memory of torch; give runtime torch, or allocate uniform")
    if allocate == "spectral" and not chosen.truncates:
        raise ConfigError(f"allocate: spectral gives every layer a rank, which {method} does not have; use fedhm")
    if weights is not None and not chosen.truncates:
        raise ConfigError(f"weights: {method} has no ranks to truncate them to; leave them out, or use fedhm")
    check_margin(clock_margin, device)
    work = DeviceRound(profile, *training.amounts(samples), clock_margin) if profile else None
    uses_of = partial(uses_within, limits=limits, work=work)
    ratio = of.largest(uses_of)

    def planned(kind: Allocate, ranks: Ranks, cost: Cost, share: float | None, gap: float | None = None) -> Planned:
        clock = vars(clock_figures(cost, work, limits)) if work else {}
        return Planned(kind, ratio, ranks, cost, uses_of(cost), share, gap, **clock, method=method)

    plans: list[Planned] = []
    rules = rules_of(chosen.config)
    ranks = hybrid_ranks(architecture.skeleton(), ratio, rules) if ratio and chosen.truncates else {}
    weighed = chosen.truncates and (allocate == "spectral" or weights is not None)
    energy = _energy(architecture, chosen, weights, seed, error) if weighed else None
    if ratio:
        share = share_kept(energy, ranks) if energy else None
        plans.append(planned("uniform", ranks, trace(ratio), share))
    if allocate == "spectral" and energy is not None:
        layers = rank_candidates(architecture.skeleton(), rules)
        start = ranks if ratio else dict.fromkeys(layers, 1)
        tracers = _tracers(architecture, chosen, training, codec, recompute)
        better = spectral(layers, energy, start, *tracers, uses_of, work)
        if better is not None:
            plans.append(planned("spectral", better.ranks, better.cost, better.energy_share, better.gap))
    if not plans:
        raise BudgetError(_smallest(architecture.model, method, trace(1 / STEPS), uses_of, clock_margin))
    return Results(plans)


def check_energy(budget: Budget, profile: DeviceProfile, name: str) -> None:
    """Raise :class:`ConfigError` if joules are limited on a device, called ``name``, whose energy is unknown."""
    if profile.without_energy and budget.energy_j is not None:
        raise ConfigError(f"budget energy_j: {name}: {unknown_energy(profile)}")


def check_limits(budget: Budget) -> None:
    """Raise :class:`ConfigError` unless every limit is a finite number above 0."""
    for name, value in vars(budget).items():
        if value is not None and (not math.isfinite(value) or value <= 0):
            raise ConfigError(f"budget {name}: got {value:g}, expected a finite number above 0")


def _limits(budget: Budget, device: DeviceProfile | None) -> Budget:
    """Return the budgets with the device's memory among them, checked."""
    limits = {name: value for name, value in vars(budget).items() if value is not None}
    check_limits(budget)
    for name in limits:
        if device is None and name in ("deadline_s", "energy_j"):
            raise ConfigError(f"budget {name}: seconds and joules are a device's; give one, such as --device raspberry-pi-4")
    if device is not None:
        limits["memory_bytes"] = min(device.training_bytes, limits.get("memory_bytes", math.inf))
    if not limits:
        raise ConfigError("budget: give a device or at least one limit, such as --memory 64MB")
    return replace(budget, **limits)


def uses_within(cost: Cost, limits: Budget, work: DeviceRound | None) -> Uses:
    """Return need and have of every limit, of a round on a device if there is one."""
    timing = Timing(0.0, 0.0, 0.0, 0.0, 0.0)
    if work is not None:
        timing = timing_on(cost, work, work.margin)
    used: dict[BudgetName, tuple[float, float]] = use(cost, timing, limits)
    return used | ({"uncounted_ops": (len(cost.uncounted_ops), 0)} if cost.uncounted_ops else {})


def timing_on(cost: Cost, work: DeviceRound, margin: float = 1.0) -> Timing:
    """Return how long a round takes on a device, and its joules."""
    return round_timing(work.device, cost, work.samples, work.passes, work.updates, margin=margin)


def clock_figures(cost: Cost, work: DeviceRound, limits: Budget) -> ClockFigures:
    """Return what a plan says of the device's clock."""
    timing, error = timing_on(cost, work), work.device.clock_error
    chance = chance_of(work.device, timing, limits)
    return ClockFigures(error, work.margin, *within(timing, error), chance, confidence_of(chance))


def _energy(architecture: Architecture, method: Method, weights: Any, seed: int, error: Truncation) -> dict[str, np.ndarray]:
    """Return the energies of the layers that may be factorized, from the given weights or the initial ones."""
    layers = rank_candidates(architecture.skeleton(), rules_of(method.config))
    if weights is None:
        tensors: Mapping[str, Tensor] = method.init(architecture, (Tier(1.0),), generator(seed, "init")).tensors
    else:
        tensors = checked_weights(weights, download_shapes(method, architecture, Tier(1.0)), tied=tied(architecture.skeleton()))
    return energies(layers, tensors, relative=error == "relative")


def _tracers(
    architecture: Architecture, method: Method, training: Training, codec: str, recompute: bool
) -> tuple[Callable[[Ranks], Cost], Callable[[Ranks], Timeline]]:
    """Return functions that trace the cost of a plan, layer → rank, and the moments of its step; they trace each plan once."""

    def network(at: tuple[tuple[str, int], ...]) -> tuple[Callable[[], nn.Module], Practice]:
        build, practice = lambda: ranked(architecture.build(), dict(at)), Practice(method, architecture, training)
        return build, practice.recomputing(build) if recompute else practice

    @cache
    def cost(*at: tuple[str, int]) -> Cost:
        shapes = travelling_shapes(ranked(architecture.skeleton(), dict(at)))
        build, practice = network(at)
        return practice.cost(build, (payload_bytes(shapes), payload_bytes(shapes, codec)))

    @cache
    def timeline(*at: tuple[str, int]) -> Timeline:
        build, practice = network(at)
        return practice.timeline(build)

    return lambda at: cost(*sorted(at.items())), lambda at: timeline(*sorted(at.items()))


def check_margin(clock_margin: float, device: object) -> None:
    """Raise :class:`ConfigError` unless the factor is one, and there is a device or fleet whose clock it is about."""
    if not 1 <= clock_margin < math.inf:
        raise ConfigError(f"clock_margin: got {clock_margin:g}, expected a factor of at least 1, such as 1.25")
    if clock_margin != 1 and device is None:
        raise ConfigError("clock_margin: no device is given, whose clock could be wrong; give device, or leave clock_margin out")


def _smallest(model: str, method: str, cost: Cost, uses_of: Callable[[Cost], Uses], clock_margin: float) -> str:
    """Return a message with the smallest sub-model's need of every budget, or its operations without a known cost."""
    if cost.not_counted:
        return f"no size of {model} with {method} fits: {cost.not_counted}"
    lines = [
        f"  {BUDGETS[name]}: {need_have(name, need, have, margin_of(name, clock_margin))}" + (TOO_LITTLE if need > have else "")
        for name, (need, have) in uses_of(cost).items()
    ]
    smallest = f"no size of {model} with {method} fits; the smallest has the ratio {1 / STEPS:g}:"
    return "\n".join(
        [smallest, *lines, "give larger budgets, a smaller batch or micro-batch, recomputation, or a smaller network"]
    )
