"""Gradients of pooling, and the sliding windows that pooling and convolution share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.op import Gradient, Op, prepared, register_rule
from edgefl.onnxgrad.gradients.tape import Tape, made_by

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window that slides over a map; every field has one entry for each spatial axis.

    Attributes:
        sizes: sizes of the map.
        kernel: sizes of the window, in entries.
        strides: distance between two places of the window.
        dilations: distance between two entries of the window.
        begins: padding before the map.
        places: number of places of the window: the sizes of the result.
    """

    sizes: Sizes
    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    begins: Sizes
    places: Sizes

    @property
    def ends(self) -> Sizes:
        """Padding after the map that the last place covers; negative: so many entries of the map are not covered."""
        reach = zip(self.places, self.strides, self.kernel, self.dilations, self.sizes, self.begins, strict=True)
        return tuple((n - 1) * step + (k - 1) * d + 1 - size - begin for n, step, k, d, size, begin in reach)

    @property
    def pads(self) -> Sizes:
        """The attribute ``pads``: begins, then ends, none negative."""
        return (*self.begins, *(max(end, 0) for end in self.ends))

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def axes(self) -> range:
        """The spatial axes of (batch, channels, …)."""
        return range(2, 2 + self.rank)

    @property
    def unit_strides(self) -> bool:
        """Whether all strides are 1."""
        return all(step == 1 for step in self.strides)

    def cropped(self, tape: Tape, x: str) -> tuple[Window, str]:
        """Return the part of the map ``x`` that the window covers, and the window over it; with one entry, also without skipped places."""
        single = all(k == 1 for k in self.kernel) and not any(self.pads) and not self.unit_strides
        if all(end >= 0 for end in self.ends) and not single:
            return self, x
        stops = tuple(size + min(end, 0) for size, end in zip(self.sizes, self.ends, strict=True))
        steps = self.strides if single else (1,) * self.rank
        zeros = tape.integers(*[0] * self.rank)
        part = tape.op("Slice", x, zeros, tape.integers(*stops), tape.integers(*self.axes), tape.integers(*steps))
        if single:
            return replace(self, sizes=self.places, strides=(1,) * self.rank), part
        return replace(self, sizes=stops), part


def window_of(tape: Tape, op: Op, x: str, y: str, kernel: Sequence[int], *, transposed: bool = False) -> Window:
    """Return the window with which a node computes ``y`` from ``x``, for every form of the padding attributes.

    With ``transposed`` the node is a transposed convolution that computes ``x`` from ``y``.
    """
    rank, axes = len(kernel), range(2, 2 + len(kernel))
    sizes, places = tape.fixed(op, x, axes), tape.fixed(op, y, axes)
    ones = (1,) * rank
    strides, dilations = tuple(op.get("strides", ones)), tuple(op.get("dilations", ones))
    begins, mode = tuple(op.get("pads", (0,) * 2 * rank))[:rank], op.get("auto_pad", "NOTSET")
    window = Window(sizes, tuple(kernel), strides, dilations, (0,) * rank, places)
    if mode == "VALID":
        return window
    if mode in ("SAME_UPPER", "SAME_LOWER") or (transposed and "output_shape" in op.attributes):
        extra = op.get("output_padding", (0,) * rank) if transposed else (0,) * rank
        total = [max(end + more, 0) for end, more in zip(window.ends, extra, strict=True)]
        lower = mode == "SAME_LOWER" or (transposed and mode == "NOTSET")
        begins = tuple(pad - pad // 2 if lower else pad // 2 for pad in total)
    return replace(window, begins=begins)


def spread(tape: Tape, window: Window, places: str, weights: str, groups: int | None = None) -> str:
    """Append the transposed convolution of ``places`` with ``weights``; return the map, (batch, channels, *window.sizes)."""
    sizes: dict[str, Any] = {name: list(getattr(window, name)) for name in ("strides", "dilations", "pads")}
    left_out = [max(-end, 0) for end in window.ends]
    behind = left_out if any(left_out) else None
    return tape.op("ConvTranspose", places, weights, **sizes, group=groups, output_padding=behind)


@prepared("MaxPool")
def with_indices(tape: Tape, op: Op) -> None:
    """Add the output with the indices of the maxima, in row-major order; a node that has column-major ones gets a second node.

    The maximum after Relu is Relu of the maximum. In this order Relu and its gradient work on the smaller map, and the larger one is not
    stored. The two orders select different indices only where the maximum is 0, and the gradient is 0 there.
    """
    (x,), y, asked = op.inputs, op.outputs[0], op.outputs[1] if len(op.outputs) > 1 else ""
    positive = made_by(tape, x, "Relu")
    if positive is not None and not asked:
        x, y = positive.inputs[0], tape.fresh("maxpool")
        tape.shapes[y] = tape.shape(op.outputs[0])
    by_row = {name: value for name, value in op.attributes.items() if name != "storage_order"}
    if asked and op.get("storage_order", 0):
        tape.op("MaxPool", x, out=[tape.fresh("maxpool"), asked], **op.attributes)
        asked = ""
    names = [y, asked or tape.fresh("indices")]
    tape.nodes.append(onnx.helper.make_node("MaxPool", [x], names, name=op.name, **by_row))
    tape.shapes[names[1]] = tape.shape(op.outputs[0])
    if y != op.outputs[0]:
        tape.op("Relu", y, out=op.outputs[0])


@prepared("GlobalMaxPool")
def as_max_pool(tape: Tape, op: Op) -> None:
    """Write it as MaxPool with a window of the size of the map."""
    sizes = tape.fixed(op, op.inputs[0], range(2, len(tape.shape(op.inputs[0]))))
    with_indices(tape, Op(op.name, "MaxPool", op.inputs, op.outputs, {"kernel_shape": list(sizes)}))


@register_rule("MaxPool")
def max_pool(tape: Tape, op: Op, gradient: Gradient, of_indices: Gradient = None) -> list[Gradient]:
    """The gradient g goes to the index of each maximum, the first of several; the gradients of overlapping windows add up."""
    if gradient is None:
        return [None]
    (x,), (y, indices) = op.inputs, op.outputs
    window = window_of(tape, op, x, y, op.get("kernel_shape"))
    # MaxUnpool uses its kernel only to compute the size of its output.
    rest = [size - (n - 1) * step for size, n, step in zip(window.sizes, window.places, window.strides, strict=True)]
    apart = all(step >= (k - 1) * d + 1 for step, k, d in zip(window.strides, window.kernel, window.dilations, strict=True))
    if apart and min(rest) > 0:
        return [tape.op("MaxUnpool", gradient, indices, kernel_shape=rest, strides=list(window.strides))]
    every = tape.integers(-1)
    zeros = tape.zeros(tape.op("Reshape", tape.op("Size", x), every))
    flat = [tape.op("Reshape", value, every) for value in (indices, gradient)]
    return [tape.op("Reshape", tape.op("ScatterElements", zeros, *flat, axis=0, reduction="add"), tape.op("Shape", x))]


@register_rule("MaxUnpool")
def max_unpool(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g at the indices that the entries were written to."""
    indices, every = op.inputs[1], tape.integers(-1)
    flat = [tape.op("Reshape", value, every) for value in (gradient, indices)]
    return [tape.op("Reshape", tape.op("GatherElements", *flat, axis=0), tape.op("Shape", indices)), None, None]


@register_rule("AveragePool")
def average_pool(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Every entry of a window gets g/n, n the window's number of entries, which includes padding only with count_include_pad."""
    (x,) = op.inputs
    window = window_of(tape, op, x, op.outputs[0], op.get("kernel_shape"))
    shares = 1 / _entries(op, window)
    if (shares != shares.flat[0]).any():
        gradient, shares = tape.op("Mul", gradient, tape.constant(shares.astype(tape.real))), np.ones(1)
    one = np.full((1, 1, *window.kernel), shares.flat[0], tape.real)
    maps = tape.op("Reshape", gradient, tape.integers(-1, 1, *window.places))
    return [tape.like(spread(tape, window, maps, tape.constant(one)), x)]


def _entries(op: Op, window: Window) -> np.ndarray[Any, Any]:
    """Return the number of entries in the mean of each place, with padding if count_include_pad is set."""
    padded = bool(op.get("count_include_pad", 0))
    behind = op.get("pads", window.pads)[window.rank :] if op.get("auto_pad", "NOTSET") == "NOTSET" else window.ends
    counts = np.ones((1,) * window.rank)
    for axis in range(window.rank):
        starts = np.arange(window.places[axis]) * window.strides[axis] - window.begins[axis]
        entries = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        first, last = (-window.begins[axis], window.sizes[axis] + behind[axis]) if padded else (0, window.sizes[axis])
        inside = ((entries >= first) & (entries < last)).sum(1)
        counts = counts * inside.reshape([-1 if other == axis else 1 for other in range(window.rank)])
    return counts


@register_rule("GlobalAveragePool")
def global_average_pool(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g/n for each of the n entries of a map."""
    (x,) = op.inputs
    count = math.prod(tape.fixed(op, x, range(2, len(tape.shape(x)))))
    share = tape.op("Mul", gradient, tape.number(1 / count))
    return [tape.expanded(share, x)]
