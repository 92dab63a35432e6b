"""How long training and inference take on a device: one cost for every kind of work, and how far off the sum may be.

    seconds = Σ over kinds (count of :class:`~edgefl.records.work.Work` · cost of the kind)

One rate of MACs for everything is off by up to eight times on real boards. There, a MAC of a depthwise convolution takes as long as 40 of a
3×3 convolution. Normalisation and element-wise work are bound by memory. ``docs/time.md`` compares this model with measured steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgefl.errors import ProfileError
from edgefl.fleet.figures import Figure, Ratio, Record
from edgefl.records import Cost
from edgefl.records.work import KINDS, Work

ONE_RATE_ERROR = 6.0
"""Seconds from one rate of MACs may be wrong by this factor: nine in ten measured board steps lie within it, at the best rate."""
_SHAPE = 0.3  # the weight of a family's shape against one measured step


class ForwardCosts(Record):
    """The table ``compute.inference_step`` of a device profile: what each kind of work takes in an inference, on all threads.

    Attributes:
        error: seconds may be wrong by this factor f: nine predictions in ten lie between measured / f and measured · f.
        packed_weight_ns, convolution_us: None where they are not known apart from other kinds.
    """

    convolution_ps_per_mac: Figure
    pointwise_ps_per_mac: Figure
    grouped_ps_per_mac: Figure
    product_ps_per_mac: Figure
    recurrent_ps_per_mac: Figure
    grouped_ps_per_byte: Figure
    product_ps_per_byte: Figure
    normalization_ps_per_byte: Figure
    elementwise_ps_per_byte: Figure
    input_ps_per_byte: Figure
    kernel_ns: Figure
    operation_us: Figure
    error: Ratio
    packed_weight_ns: Figure | None = None
    convolution_us: Figure | None = None

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of one count of each kind, in the order of :data:`~edgefl.records.work.KINDS`; 0 for kinds that do not occur."""
        figures = ((key, getattr(self, key, None)) for key in map(key_of, KINDS))
        return tuple(0.0 if figure is None else figure.value * unit_of(key) for key, figure in figures)

    def scaled(self, speed: Figure, error: Figure, like: str) -> dict[str, object]:
        """Return the table of a device that does everything ``speed`` times as fast as the device ``like``."""
        origin = {"mark": "assumed" if speed.mark == "assumed" else "derived", "source": speed.source}
        note = f"{like}'s, {speed.value:g} times as fast"
        figures = {key: figure for key, figure in self if key != "error" and figure is not None}
        return {key: {"value": f.value / speed.value, "note": note, **origin} for key, f in figures.items()} | {"error": error}


class StepCosts(ForwardCosts):
    """The table ``compute.training_step`` of a device profile: what each kind of work takes in a training step, on all threads.

    The kinds of an inference are those of a forward pass here; products, bytes and operations have one cost in both passes.
    """

    convolution_backward_ps_per_mac: Figure
    pointwise_backward_ps_per_mac: Figure
    grouped_backward_ps_per_mac: Figure
    update_ps_per_byte: Figure


def key_of(kind: str) -> str:
    """Return the key of a kind's cost in a profile.

    >>> [key_of(kind) for kind in ("grouped_backward_macs", "update_bytes", "kernels", "operations")]
    ['grouped_backward_ps_per_mac', 'update_ps_per_byte', 'kernel_ns', 'operation_us']
    """
    named = {
        "kernels": "kernel_ns",
        "operations": "operation_us",
        "packed_weights": "packed_weight_ns",
        "convolutions": "convolution_us",
    }
    return named.get(kind, kind.replace("_macs", "_ps_per_mac").replace("_bytes", "_ps_per_byte"))


def unit_of(key: str) -> float:
    """Return the seconds of one unit of a cost's key."""
    return 1e-6 if key.endswith("_us") else 1e-9 if key.endswith("_ns") else 1e-12


class Rates(Protocol):
    """The rates of a device that :func:`train_s` needs."""

    @property
    def training_gmacs_per_s(self) -> Figure:
        """One rate for every MAC, in 10⁹ per second."""

    @property
    def training_step(self) -> StepCosts | None:
        """Costs by kinds of work, where they are known."""


def train_s(compute: Rates, cost: Cost, samples: int, passes: int, updates: int, evaluated: int = 0) -> float:
    """Return the seconds of a client's training at the device's full rate.

    Args:
        compute: a profile's rates; its ``training_step`` is used where it has one, else ``training_gmacs_per_s`` for every MAC.
        cost: the tier's costs.
        samples: samples seen over all local epochs.
        passes: forward and backward passes over all local epochs.
        updates: steps of the optimizer over all local epochs; fewer than passes with micro-batches.
        evaluated: samples that go forward only, besides.
    """
    if compute.training_step is None:
        return cost.macs_of(samples, passes, evaluated) / (compute.training_gmacs_per_s.value * 1e9)
    return cost.work_of(samples, passes, updates, evaluated).seconds(compute.training_step.seconds)


@dataclass(frozen=True)
class Measurement:
    """A measured step: its work and its seconds."""

    work: Work
    seconds: float


@dataclass(frozen=True)
class Limits:
    """The rates that a device's hardware cannot exceed.

    Attributes:
        macs_per_s: peak of float32 multiply-accumulates on all cores.
        bytes_per_s: peak bandwidth of the memory.
    """

    macs_per_s: float
    bytes_per_s: float

    def least(self, kind: str) -> float:
        """Return the least seconds of one count of a kind."""
        return 1 / self.macs_per_s if kind.endswith("_macs") else 1 / self.bytes_per_s if kind.endswith("_bytes") else 0.0


def fit(
    measured: Sequence[Measurement],
    limits: Limits,
    shape: Sequence[float] | None = None,
    known: Mapping[str, float] | None = None,
) -> tuple[float, ...]:
    """Return the costs that predict ``measured`` with the least squared relative error, in seconds, in the order of the kinds.

    Args:
        measured: steps with different shares of the kinds of work.
        limits: no cost is below what the hardware allows.
        shape: costs of a device of the same family. They are scaled to the median of the steps. Each cost is drawn towards its place in
            this shape, more strongly if the steps say little about it. Without a shape there must be a step for every kind.
        known: kind → seconds that are not fitted, because the steps cannot tell them apart.

    Raises:
        ProfileError: there are fewer steps than costs to fit, and no shape.

    >>> steps = [Measurement(Work(product_macs=n, update_bytes=m), 2e-9 * n + 1e-9 * m) for n, m in ((10, 5), (10, 50), (70, 3))]
    >>> [round(cost * 1e9, 6) for cost in fit(steps, Limits(1e10, 1e10)) if cost]
    [2.0, 1.0]
    """
    from scipy.optimize import lsq_linear

    counts = np.array([step.work.counts for step in measured], dtype=np.float64)
    seconds = np.array([step.seconds for step in measured])
    constants = np.array([(known or {}).get(kind, 0.0) for kind in KINDS])
    free = np.array([kind not in (known or {}) for kind in KINDS])
    expected = np.zeros(len(KINDS)) if shape is None else np.array(shape)
    occurs = free & (counts.any(axis=0) | (expected > 0))
    if shape is None and len(measured) < occurs.sum():
        raise ProfileError(
            f"got {len(measured)} measured steps, expected at least {occurs.sum()}, one for each kind of work in them"
        )
    rows, wanted = counts / seconds[:, None], 1 - counts @ constants / seconds
    least = np.array([limits.least(kind) for kind in KINDS])
    drawn = occurs & (expected > 0)
    if drawn.any():
        scaled = np.maximum(expected / np.median(rows @ np.where(drawn, expected, 0.0) / wanted), least)
        rows = np.vstack([rows, _SHAPE * np.diag(1 / np.where(drawn, scaled, 1.0))[drawn]])
        wanted = np.concatenate([wanted, np.full(drawn.sum(), _SHAPE)])
    rows = rows[:, occurs]
    scale = np.abs(rows).max(axis=0)
    costs = constants.copy()
    costs[occurs] = lsq_linear(rows / scale, wanted, bounds=(least[occurs] * scale, np.inf)).x / scale
    return tuple(costs.tolist())
