"""Gradients of sums, means and other reductions."""

from __future__ import annotations

import math

import onnx

from edgefl.onnxio.gradients.tape import Gradient, Op, Tape, rule


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


@rule("ReduceSum")
def reduce_sum(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The same gradient for every summand."""
    axes = axes_of(tape, op)
    return [_spread(tape, widened(tape, op, gradient, axes), op.inputs[0]), None]


@rule("ReduceMean")
def reduce_mean(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """An n-th of it for each of n."""
    axes = axes_of(tape, op)
    share = tape.op("Mul", widened(tape, op, gradient, axes), _reciprocal_count(tape, op, axes))
    return [_spread(tape, share, op.inputs[0]), None]


def _reciprocal_count(tape: Tape, op: Op, axes: list[int]) -> str:
    shape = tape.shape(op.inputs[0])
    sizes = [shape[axis] for axis in axes]
    if None not in sizes:
        return tape.number(1 / math.prod(size or 1 for size in sizes))
    count = tape.op("Div", tape.op("Size", op.inputs[0]), tape.op("Size", op.outputs[0]))
    return str(tape.op("Reciprocal", tape.op("Cast", count, to=_element_type(tape))))


def _element_type(tape: Tape) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(tape.real))


def _spread(tape: Tape, value: str, like: str) -> str:
    return str(tape.op("Expand", value, tape.op("Shape", like)))


@rule("ReduceSumSquare")
def reduce_sum_square(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of x²: 2x."""
    (x, *_), axes = op.inputs, axes_of(tape, op)
    return [tape.op("Mul", tape.op("Mul", x, tape.number(2.0)), widened(tape, op, gradient, axes)), None]


@rule("ReduceL1")
def reduce_l1(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The sign."""
    return [tape.op("Mul", tape.op("Sign", op.inputs[0]), widened(tape, op, gradient, axes_of(tape, op))), None]


@rule("ReduceL2")
def reduce_l2(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of n = ‖x‖: x/n, and 0 at 0, as in torch."""
    axes = axes_of(tape, op)
    norm = widened(tape, op, op.outputs[0], axes)
    share = tape.op("Div", widened(tape, op, gradient, axes), norm)
    safe = tape.op("Where", tape.op("Equal", norm, tape.number(0.0)), tape.number(0.0), share)
    return [tape.op("Mul", op.inputs[0], safe), None]


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The softmax."""
    axes = axes_of(tape, op)
    shares = tape.op("Exp", tape.op("Sub", op.inputs[0], widened(tape, op, op.outputs[0], axes)))
    return [tape.op("Mul", shares, widened(tape, op, gradient, axes)), None]


@rule("ReduceMax", "ReduceMin")
def reduce_extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """In equal parts to the entries that are as large, as torch's amax does."""
    axes = axes_of(tape, op)
    hits = tape.op("Equal", op.inputs[0], widened(tape, op, op.outputs[0], axes))
    ones = tape.op("Where", hits, tape.number(1.0), tape.number(0.0))
    share = tape.op("Div", widened(tape, op, gradient, axes), tape.op("ReduceSum", ones, tape.integers(*axes), keepdims=1))
    return [tape.op("Where", hits, share, tape.number(0.0)), None]
