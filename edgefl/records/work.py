"""Work by its kinds: what a clock charges time for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of work by kind. Two kinds that a device performs at different speeds have counts of their own.

    A 1×1 convolution is *pointwise*; one with several groups, such as a depthwise one, is *grouped*; *product* is every other matrix
    product: linear layers, attention, composition of factors. The bytes are those that operations read and write.

    Attributes:
        grouped_bytes: of grouped convolutions in a forward pass.
        product_bytes: of all other convolutions and products.
        elementwise_bytes: of activations, pooling, sums, copies and losses.
        update_bytes: of the optimizer.
        input_bytes: of the samples that a device reads from its storage.
        kernels: two-dimensional kernels of convolutions, one per pair of channels; a library may transform each once per forward pass.
        operations: operations that run, however small they are.
        packed_weights: values of the weights that a library reorders for convolutions, per forward pass and per gradient.
        convolutions: convolutions that run in either direction, as part of ``operations``.
    """

    convolution_macs: int = 0
    convolution_backward_macs: int = 0
    pointwise_macs: int = 0
    pointwise_backward_macs: int = 0
    grouped_macs: int = 0
    grouped_backward_macs: int = 0
    product_macs: int = 0
    recurrent_macs: int = 0
    grouped_bytes: int = 0
    product_bytes: int = 0
    normalization_bytes: int = 0
    elementwise_bytes: int = 0
    update_bytes: int = 0
    input_bytes: int = 0
    kernels: int = 0
    operations: int = 0
    packed_weights: int = 0
    convolutions: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts in the order of the fields."""
        counts: tuple[int, ...] = _counts(self)
        return counts

    @property
    def macs(self) -> int:
        """MACs of every kind."""
        return sum(count for name, count in zip(KINDS, self.counts, strict=True) if name.endswith("_macs"))

    def __add__(self, other: Work) -> Work:
        """Return the work of both.

        >>> (Work(product_macs=2) + Work(product_macs=3, kernels=1)).counts[6:8]
        (5, 0)
        """
        return Work(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    def times(self, factor: int, divisor: int = 1) -> Work:
        """Return ``factor / divisor`` times this work; counts are rounded up."""
        return Work(*(-(-count * factor // divisor) for count in self.counts))

    def seconds(self, costs: Sequence[float]) -> float:
        """Return the seconds of this work at ``costs`` in seconds per count, the same to the last bit on every computer.

        >>> round(Work(convolution_macs=10**9, operations=100).seconds((2e-11, *[0.0] * 14, 1e-4, 0.0, 0.0)), 6)
        0.03
        """
        total = 0.0
        for count, cost in zip(self.counts, costs, strict=True):
            total += count * cost
        return total


KINDS = tuple(field.name for field in fields(Work))
"""The names of the counts, in order."""
ONCE = ("kernels", "packed_weights", "convolutions", "operations")
"""The kinds that occur once per forward pass, whatever the samples."""
_counts = attrgetter(*KINDS)
NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of training, by what it grows with.

    Attributes:
        sample: of one sample's forward and backward pass.
        per_pass: of one forward and backward pass, whatever its samples: work on weights.
        forward: the forward part of ``sample``.
        per_forward: the forward part of ``per_pass``.
        update: of one update of the weights.
    """

    sample: Work = NO_WORK
    per_pass: Work = NO_WORK
    forward: Work = NO_WORK
    per_forward: Work = NO_WORK
    update: Work = NO_WORK

    def __add__(self, other: StepWork) -> StepWork:
        """Return the work of both."""
        return StepWork(*(getattr(self, part) + getattr(other, part) for part in PARTS))

    def of(self, samples: int, passes: int, updates: int, evaluated: int = 0, runs: int = 0) -> Work:
        """Return the work of training on ``samples`` samples and of evaluating ``evaluated`` more.

        Args:
            samples: samples seen over all local epochs.
            passes: forward and backward passes.
            updates: updates of the weights.
            evaluated: samples that go forward only.
            runs: forward passes of these.
        """
        amounts = samples, passes, evaluated, runs, updates
        total = NO_WORK
        for part, amount in zip(PARTS, amounts, strict=True):
            if amount:
                total += getattr(self, part).times(amount)
        return total


PARTS = tuple(field.name for field in fields(StepWork))
NO_STEP_WORK = StepWork()
