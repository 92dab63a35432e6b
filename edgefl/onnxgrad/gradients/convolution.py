"""Gradients of convolutions and transposed convolutions in one, two or three dimensions."""

from __future__ import annotations

import math

from edgefl.onnxgrad.gradients.conv_weight import WORK_PER_COPY, reversed_rows, weight_gradient
from edgefl.onnxgrad.gradients.patterns import channel_sum
from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, register_rule
from edgefl.onnxgrad.gradients.windows import Window, spread, window_of

WORK_PER_TRANSPOSE = 6.0
"""Multiplications that a sample's share of ConvTranspose's work on each weight is worth: onnxruntime lays them out anew every time."""


@register_rule("Conv")
def conv(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = w * x + b the transposed convolution of the gradient, the correlation of gradient and map, the sum over places."""
    (x, w), b, groups = op.inputs[:2], op.input(2), op.get("group", 1)
    shape = tape.fixed(op, w)
    window = window_of(tape, op, x, op.outputs[0], shape[2:])
    return [
        input_gradient(tape, window, w, shape, gradient, groups) if tape.needs(x) else None,
        weight_gradient(tape, window, x, gradient, shape, groups) if tape.needs(w) else None,
        channel_sum(tape, gradient, tape.shape(op.outputs[0])) if tape.needs(b) else None,
    ][: len(op.inputs)]


@register_rule("ConvTranspose")
def conv_transpose(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The transpose of a convolution of (batch, outputs, …) that has the same weights: roles change."""
    (x, w), b, groups = op.inputs[:2], op.input(2), op.get("group", 1)
    shape = tape.fixed(op, w)
    window = window_of(tape, op, op.outputs[0], x, shape[2:], transposed=True)
    of_x = None
    if tape.needs(x):
        reached, part = window.cropped(tape, gradient)
        strides, dilations = list(reached.strides), list(window.dilations)
        of_x = tape.op("Conv", part, w, strides=strides, dilations=dilations, pads=list(reached.pads), group=groups)
    return [
        of_x,
        weight_gradient(tape, window, gradient, x, shape, groups) if tape.needs(w) else None,
        channel_sum(tape, gradient, tape.shape(op.outputs[0])) if tape.needs(b) else None,
    ][: len(op.inputs)]


def input_gradient(tape: Tape, window: Window, w: str, shape: tuple[int, ...], gradient: str, groups: int) -> str:
    """Return the transposed convolution of ``gradient``, (batch, outputs, places) → (batch, inputs, sizes).

    Where the window stops everywhere it is also a convolution, with the weights turned round. onnxruntime computes the first as one
    product for each sample whose result is added up entry by entry, the second on a copy of the map for each of the kernel's entries;
    which is faster depends on how much is copied and, on small maps, on the weights that it lays out anew for each sample.
    """
    outputs, inputs = shape[0] // groups, shape[1]
    places, sizes = math.prod(window.places), math.prod(window.sizes)
    turned = tuple((k - 1) * d - begin for k, d, begin in zip(window.kernel, window.dilations, window.begins, strict=True))
    behind = tuple((k - 1) * d - end for k, d, end in zip(window.kernel, window.dilations, window.ends, strict=True))
    scattered = places * (inputs * outputs + WORK_PER_COPY * inputs) + WORK_PER_TRANSPOSE * inputs * outputs
    gathered = sizes * (inputs * outputs + WORK_PER_COPY * outputs)
    if window.unit_strides and min(*turned, *behind) >= 0 and gathered < scattered:
        flipped = _flipped(tape, w, shape, groups)
        pads, dilations = [*turned, *behind], list(window.dilations)
        return str(tape.op("Conv", gradient, flipped, pads=pads, dilations=dilations, group=groups))
    return spread(tape, window, gradient, w, groups)


def _flipped(tape: Tape, w: str, shape: tuple[int, ...], groups: int) -> str:
    """Return weights (outputs, inputs of a group, …) as (inputs, outputs of a group, …), last entry of the kernel first."""
    outputs, inputs, *kernel = shape
    count = math.prod(kernel)
    if count > 1:
        w = reversed_rows(tape, w, outputs * inputs, count)
    apart = tape.op("Reshape", w, tape.integers(groups, outputs // groups, inputs, count))
    swapped = tape.op("Transpose", apart, perm=[0, 2, 1, 3])
    return str(tape.op("Reshape", swapped, tape.integers(groups * inputs, outputs // groups, *kernel)))
