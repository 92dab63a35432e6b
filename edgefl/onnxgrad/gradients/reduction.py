"""Gradients of sums, means and other reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, register_rule


def axes_of(tape: Tape, op: Op) -> list[int]:
    """Return the axes that a Reduce* node reduces, counted from 0."""
    rank = len(tape.shape(op.inputs[0]))
    axes = op.get("axes") if op.input(1) is None else tape.known(op.input(1))
    if axes is None and op.input(1) is not None:
        op.refuse("its axes must be known")
    if axes is None or len(axes) == 0:
        return [] if op.get("noop_with_empty_axes", 0) else list(range(rank))
    return [int(axis) % rank for axis in axes]


def widened(tape: Tape, op: Op, value: str, axes: list[int]) -> str:
    """Return ``value``, of the shape of the node's output, with size 1 along the reduced axes, ready to be broadcast."""
    if op.get("keepdims", 1) or not axes:
        return value
    return str(tape.op("Unsqueeze", value, tape.integers(*axes)))


@register_rule("ReduceSum")
def reduce_sum(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The same gradient for every summand."""
    axes = axes_of(tape, op)
    return [_spread(tape, widened(tape, op, gradient, axes), op.inputs[0]), None]


@register_rule("ReduceMean")
def reduce_mean(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """An n-th of it for each of n."""
    axes, shape = axes_of(tape, op), tape.shape(op.inputs[0])
    wide = widened(tape, op, gradient, axes)
    share = tape.op("Mul", wide, share_of(tape, op.inputs[0], op.outputs[0], [shape[axis] for axis in axes]))
    return [_spread(tape, share, op.inputs[0]), None]


def share_of(tape: Tape, whole: str, part: str, sizes: Sequence[int | None]) -> str:
    """Return 1/n, n being how many entries of ``whole`` come to one of ``part``: the product of ``sizes``, where none is free."""
    if None not in sizes:
        return tape.number(1 / math.prod(size or 1 for size in sizes))
    count = tape.op("Div", tape.op("Size", whole), tape.op("Size", part))
    return str(tape.op("Reciprocal", tape.op("Cast", count, to=tape.element_type)))


def _spread(tape: Tape, value: str, like: str) -> str:
    return str(tape.op("Expand", value, tape.op("Shape", like)))


@register_rule("ReduceSumSquare")
def reduce_sum_square(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of x²: 2x."""
    (x, *_), axes = op.inputs, axes_of(tape, op)
    return [tape.op("Mul", tape.op("Mul", x, tape.number(2.0)), widened(tape, op, gradient, axes)), None]


@register_rule("ReduceL1")
def reduce_l1(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The sign."""
    return [tape.op("Mul", tape.op("Sign", op.inputs[0]), widened(tape, op, gradient, axes_of(tape, op))), None]


@register_rule("ReduceL2")
def reduce_l2(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of n = ‖x‖: x/n, and 0 at 0, as in torch."""
    axes = axes_of(tape, op)
    norm = widened(tape, op, op.outputs[0], axes)
    share = tape.op("Div", widened(tape, op, gradient, axes), norm)
    safe = tape.op("Where", tape.op("Equal", norm, tape.number(0.0)), tape.number(0.0), share)
    return [tape.op("Mul", op.inputs[0], safe), None]


@register_rule("ReduceLogSumExp")
def reduce_log_sum_exp(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The softmax."""
    axes = axes_of(tape, op)
    shares = tape.op("Exp", tape.op("Sub", op.inputs[0], widened(tape, op, op.outputs[0], axes)))
    return [tape.op("Mul", shares, widened(tape, op, gradient, axes)), None]


@register_rule("ReduceMax", "ReduceMin")
def reduce_extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """In equal parts to the entries that are as large, as torch's amax does."""
    axes = axes_of(tape, op)
    hits = tape.op("Equal", op.inputs[0], widened(tape, op, op.outputs[0], axes))
    ones = tape.op("Where", hits, tape.number(1.0), tape.number(0.0))
    share = tape.op("Div", widened(tape, op, gradient, axes), tape.op("ReduceSum", ones, tape.integers(*axes), keepdims=1))
    return [tape.op("Where", hits, share, tape.number(0.0)), None]
