"""How long a training step takes on a device: by one rate of MACs, or by the costs of its kinds of work if the profile has them.

One rate predicts badly where a network is small or does much besides products: a digits network of three convolutions then runs at a
tenth of the rate of a large one. Six costs that add up, fitted to measured steps, tell these apart::

    train_s = convolution MACs · ps/MAC + dense MACs · ps/MAC + recurrent MACs · ps/MAC
            + element-wise values · ps/value + values of the update · ps/value + layers · passes · µs/layer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import numpy as np

from edgefl.fleet.figures import Figure, Record
from edgefl.records import Cost

_RECURRENT = ("LSTM", "GRU", "RNN", "Recurrent", "Gates")
_FASTEST = 4  # no kind of product is this many times as fast as a plain matrix product, Winograd's convolutions included


class StepCosts(Record):
    """The table ``compute.training_step`` of a device profile: what the parts of a training step cost, on all threads.

    ``dense`` is every product that is neither a convolution nor recurrent: linear layers, attention, composition of factors.
    ``elementwise`` counts values as :class:`~edgefl.records.Cost` does, ``update`` those of the optimizer and of work on weights;
    ``layer_us_per_pass`` is what a layer takes in a forward and backward pass however small it is.
    """

    convolution_ps_per_mac: Figure
    dense_ps_per_mac: Figure
    recurrent_ps_per_mac: Figure
    elementwise_ps_per_value: Figure
    update_ps_per_value: Figure
    layer_us_per_pass: Figure

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of one MAC, one value, one layer, in the order of :class:`StepWork`."""
        return tuple(getattr(self, key).value * (1e-6 if "_us_" in key else 1e-12) for key in type(self).model_fields)


class Rates(Protocol):
    """What :func:`train_s` needs of a device."""

    @property
    def training_gmacs_per_s(self) -> Figure:
        """One rate for every MAC, in 10⁹ per second."""

    @property
    def training_step(self) -> StepCosts | None:
        """Costs by kinds of work, where they are known."""


@dataclass(frozen=True)
class StepWork:
    """The work of training by kind: MACs, element-wise values, values of updates, and layers times passes."""

    convolution_macs: int
    dense_macs: int
    recurrent_macs: int
    elementwise_ops: int
    update_ops: int
    layer_passes: int

    @property
    def macs(self) -> int:
        """MACs of every kind."""
        return self.convolution_macs + self.dense_macs + self.recurrent_macs

    def seconds(self, costs: Sequence[float]) -> float:
        """Return the time at these costs in seconds, in the order of the fields.

        >>> round(StepWork(10**9, 10**9, 0, 0, 0, 100).seconds((20e-12, 30e-12, 0, 0, 0, 1e-4)), 6)
        0.06
        """
        total = 0.0
        for count, cost in zip(astuple(self), costs, strict=True):
            total += count * cost
        return total


def work_of(cost: Cost, samples: int, passes: int, evaluated: int = 0) -> StepWork:
    """Return the work of training on ``samples`` samples in ``passes`` passes, and of ``evaluated`` samples that go forward only.

    Kinds are those of the layers; a cost without layers counts as dense. The MACs add up to :meth:`~edgefl.records.Cost.macs_of`.
    """
    total, of_sample = cost.macs_of(samples, passes, evaluated), cost.macs_forward + cost.macs_backward
    # Where each step trains one of several networks, every kind has the share of the whole that the mean of them has.
    drawn = of_sample if cost.macs_drawn is None else cost.macs_drawn
    macs = dict.fromkeys(("convolution", "recurrent", "dense"), 0)
    for layer in cost.layers:
        trained = layer.macs_forward + layer.macs_backward_input + layer.macs_backward_weight
        own = samples * trained * drawn // max(of_sample, 1)
        macs[kind_of(layer.kind)] += own + passes * layer.macs_compose + evaluated * layer.macs_forward
    convolution, recurrent = macs["convolution"], macs["recurrent"]
    working = sum(1 for layer in cost.layers if layer.macs_forward or layer.macs_compose or layer.elementwise_ops)
    values = samples * (cost.elementwise_ops + cost.elementwise_ops_backward) + evaluated * cost.elementwise_ops
    dense = max(0, total - convolution - recurrent)
    return StepWork(convolution, dense, recurrent, values, passes * cost.elementwise_ops_step, passes * working)


def kind_of(layer: str) -> str:
    """Return ``convolution``, ``recurrent`` or ``dense`` for the class name of a layer.

    >>> kind_of("LowRankConv2d"), kind_of("LSTM"), kind_of("Attention")
    ('convolution', 'recurrent', 'dense')
    """
    if any(name in layer for name in _RECURRENT):
        return "recurrent"
    return "convolution" if "Conv" in layer else "dense"


def train_s(compute: Rates, cost: Cost, samples: int, passes: int, evaluated: int = 0) -> float:
    """Return the seconds of a client's training at the device's full rate.

    Args:
        compute: a profile's rates; its ``training_step`` is used where it has one, else ``training_gmacs_per_s`` for every MAC.
        cost: the tier's costs.
        samples: samples seen over all local epochs.
        passes: forward and backward passes over all local epochs.
        evaluated: samples that go forward only, besides.
    """
    if compute.training_step is not None:
        return work_of(cost, samples, passes, evaluated).seconds(compute.training_step.seconds)
    return cost.macs_of(samples, passes, evaluated) / (compute.training_gmacs_per_s.value * 1e9)


@dataclass(frozen=True)
class Step:
    """A measured training step: its work, the seconds of its forward and backward pass, and those of its update."""

    work: StepWork
    pass_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.pass_s + self.update_s


def fit(steps: Sequence[Step], dense_macs_per_s: float, values_per_s: float) -> tuple[float, ...]:
    """Return the costs that predict ``steps`` with the least relative squared error, in seconds, in the order of :class:`StepWork`.

    A dense MAC costs what a measured matrix product takes, a value what measured element-wise layers do, a value of the update what the
    step with the largest update took for it. The other three are fitted, none below 0, no kind of MAC below a quarter of a dense one:
    six at once would be told apart too loosely by the steps of three networks.

    >>> work = [StepWork(9, 0, 0, 4, 1, 2), StepWork(90, 0, 0, 4, 1, 2), StepWork(9, 0, 0, 40, 1, 2), StepWork(9, 0, 9, 4, 1, 20)]
    >>> steps = [Step(w, w.seconds((2, 1, 3, 4, 0, 5)), 6.0) for w in work]
    >>> [round(c, 6) for c in fit(steps, 1.0, 0.25)]
    [2.0, 1.0, 3.0, 4.0, 6.0, 5.0]
    """
    from scipy.optimize import lsq_linear

    largest = max(steps, key=lambda step: step.work.update_ops)
    known = {1: 1 / dense_macs_per_s, 3: 1 / values_per_s, 4: largest.update_s / largest.work.update_ops}
    free = [0, 2, 5]
    counts = np.array([astuple(step.work) for step in steps], dtype=np.float64)
    measured = np.array([step.seconds for step in steps])
    rest = measured - sum(counts[:, at] * cost for at, cost in known.items())
    rows = counts[:, free] / measured[:, None]
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    lowest = np.array([known[1] / _FASTEST, known[1] / _FASTEST, 0.0]) * scale
    found = lsq_linear(rows / scale, rest / measured, bounds=(lowest, np.inf)).x / scale
    costs = known | dict(zip(free, found, strict=True))
    return tuple(float(costs[at]) for at in range(len(costs)))
