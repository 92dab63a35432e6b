"""Gradients of what moves values or picks entries by their index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, register_rule, register_slopes


def _back_in_order(tape: Tape, op: Op, gradient: str) -> str:
    """Return the gradient of a transpose: the inverse permutation."""
    perm = op.get("perm")
    return str(tape.op("Transpose", gradient, perm=None if perm is None else [int(axis) for axis in np.argsort(perm)]))


register_slopes(
    {
        **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), lambda tape, op, g: tape.like(g, op.inputs[0])),
        "Transpose": _back_in_order,
        "Expand": lambda tape, op, g: tape.unbroadcast(g, op.inputs[0], op.outputs[0]),
    }
)


@register_rule("Concat")
def concat(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Cut apart again."""
    axis = op.attributes["axis"]
    sizes = [tape.fixed(op, name, [axis])[0] for name in op.inputs]
    if len(sizes) == 1:
        return [gradient]
    parts: tuple[str, ...] = tape.op("Split", gradient, tape.integers(*sizes), count=len(sizes), axis=axis)
    return list(parts)


@register_rule("Split")
def split(tape: Tape, op: Op, *gradients: Gradient) -> list[Gradient]:
    """The parts put together again; an unused part counts zero."""
    parts = [tape.op("Sub", name, name) if g is None else g for g, name in zip(gradients, op.outputs, strict=True)]
    return [tape.op("Concat", *parts, axis=op.get("axis", 0)), None]


@register_rule("Slice")
def slice_(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Zeros around, and between where the step is not 1; a negative step is turned round first."""
    x = op.inputs[0]
    shape = tape.shape(x)
    starts, ends, axes, steps = _slices(tape, op)
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, stride = slice(start, end, step).indices(tape.fixed(op, x, [axis])[0])
        taken = len(range(first, last, stride))
        size = tape.fixed(op, x, [axis])[0]
        if taken == 0:
            op.refuse("it takes nothing; there is no gradient to give back")
        if stride < 0:
            gradient = tape.op("Slice", gradient, *(tape.integers(v) for v in (-1, -(2**62), axis, -1)))
            first, stride = first + (taken - 1) * stride, -stride
        if stride > 1 and taken > 1:
            gradient = _spaced(tape, gradient, axis, stride)
        before[axis], after[axis] = first, size - first - (taken - 1) * stride - 1
    if any(before) or any(after):
        gradient = tape.op("Pad", gradient, tape.integers(*before, *after))
    return [gradient, None, None, None, None]


def _slices(tape: Tape, op: Op) -> tuple[list[int], list[int], list[int], list[int]]:
    known = [tape.known(op.input(slot)) for slot in range(1, 5)]
    if any(value is None and op.input(slot) is not None for slot, value in enumerate(known, 1)):
        op.refuse("its starts, ends, axes and steps must be known")
    starts, ends, axes, steps = ([] if value is None else [int(v) for v in value] for value in known)
    rank = len(tape.shape(op.inputs[0]))
    return starts, ends, [axis % rank for axis in axes] or list(range(len(starts))), steps or [1] * len(starts)


def _spaced(tape: Tape, value: str, axis: int, stride: int) -> str:
    """Return ``value`` with ``stride`` − 1 zeros between its entries along ``axis``."""
    wide = tape.op("Unsqueeze", value, tape.integers(axis + 1))
    padded = tape.op("Pad", wide, tape.integers(0, stride - 1), tape.number(0.0), tape.integers(axis + 1))
    shape = tape.op("Shape", value)
    rows = tape.op("Slice", shape, tape.integers(axis), tape.integers(axis + 1))
    merged = tape.op("Mul", rows, tape.integers(stride))
    head = [tape.op("Slice", shape, tape.integers(0), tape.integers(axis))] if axis else []
    target = tape.op("Concat", *head, merged, tape.op("Slice", shape, tape.integers(axis + 1), tape.integers(2**31 - 1)), axis=0)
    flat = tape.op("Reshape", padded, target)
    return str(tape.op("Slice", flat, tape.integers(0), tape.integers(1 - stride), tape.integers(axis)))


@register_rule("Pad")
def pad(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Cut off what was added; only constant padding."""
    if op.get("mode", "constant") != "constant":
        op.refuse(f"mode {op.get('mode')!r} has no rule, expected 'constant'")
    pads, axes = tape.known(op.input(1)), tape.known(op.input(3))
    if pads is None or (axes is None and op.input(3) is not None):
        op.refuse("its pads must be known")
    rank = len(tape.shape(op.inputs[0]))
    where = range(rank) if axes is None else [int(a) % rank for a in axes]
    count = len(pads) // 2
    ends = [-int(p) if p else 2**31 - 1 for p in pads[count:]]
    cut = (tape.integers(*map(int, pads[:count])), tape.integers(*ends), tape.integers(*where))
    if min(pads) < 0:
        op.refuse("negative pads have no rule")
    return [tape.op("Slice", gradient, *cut) if any(pads) else gradient, None, None, None]


@register_rule("Tile")
def tile(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The sum over copies."""
    repeats = tape.known(op.input(1))
    if repeats is None:
        op.refuse("its repeats must be known")
    shape = tape.shape(op.inputs[0])
    apart: list[int] = []
    for size, times in zip(shape, repeats, strict=True):
        apart += [int(times), -1 if size is None else size]
    if apart.count(-1) > 1:
        op.refuse("more than one free size")
    copies = tape.op("Reshape", gradient, tape.integers(*apart))
    return [tape.op("ReduceSum", copies, tape.integers(*range(0, 2 * len(shape), 2)), keepdims=0), None]


@register_rule("Gather")
def gather(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """One known index: zeros around it. Otherwise, as for an embedding, each row's gradients are added up where it was taken from."""
    x, index = op.inputs
    shape = tape.shape(x)
    axis = op.get("axis", 0) % len(shape)
    known = tape.known(index)
    if known is not None and known.size == 1:
        size = tape.fixed(op, x, [axis])[0]
        place = int(known.reshape(())) % size
        kept = tape.op("Unsqueeze", gradient, tape.integers(axis)) if known.ndim == 0 else gradient
        if size == 1:
            return [kept, None]
        before, after = [0] * len(shape), [0] * len(shape)
        before[axis], after[axis] = place, size - 1 - place
        return [tape.op("Pad", kept, tape.integers(*before, *after)), None]
    if axis != 0:
        op.refuse(f"axis {axis} has no rule for indices that depend on data, expected 0")
    rows, *widths = tape.fixed(op, x)
    return [_summed_rows(tape, gradient, index, rows, widths), None]


@register_rule("GatherND")
def gather_nd(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """What an index of the first axes picked is a row of all those axes as one: gradients of a row are added up."""
    x, index = op.inputs
    if op.get("batch_dims", 0):
        op.refuse(f"batch_dims {op.get('batch_dims')} has no rule, expected 0")
    sizes, depth = tape.fixed(op, x), tape.fixed(op, index, [-1])[0]
    strides = [math.prod(sizes[axis + 1 : depth]) for axis in range(depth)]
    # An index below 0 counts from the end; Mod has the sign of the divisor.
    places = tape.op("Mul", tape.op("Mod", index, tape.integers(*sizes[:depth])), tape.integers(*strides))
    places = tape.op("ReduceSum", places, tape.integers(-1), keepdims=0)
    summed = _summed_rows(tape, gradient, places, math.prod(sizes[:depth]), sizes[depth:])
    return [tape.reshape(summed, sizes), None]


@register_rule("GatherElements")
def gather_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Each entry's gradient is added up where it was taken from."""
    x, index = op.inputs
    zeros = tape.op("Sub", x, x)
    return [tape.op("ScatterElements", zeros, index, gradient, axis=op.get("axis", 0), reduction="add"), None]


@register_rule("ScatterElements")
def scatter_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """What was added has the gradient of where it went; only where it is added up."""
    if op.get("reduction", "none") != "add":
        op.refuse(f"reduction {op.get('reduction', 'none')!r} has no rule, expected 'add'")
    return [gradient, None, tape.op("GatherElements", gradient, op.inputs[1], axis=op.get("axis", 0))]


def _summed_rows(tape: Tape, gradient: str, index: str, rows: int, widths: Sequence[int]) -> str:
    """Return zeros (rows, *widths) with every row of ``gradient`` added at its ``index``.

    One element at a time: onnxruntime adds the slices of ScatterND from several threads, and loses some where a row is taken twice.
    """
    parts = tape.reshape(gradient, (None, *widths))
    places = tape.op("Reshape", tape.op("Cast", index, to=onnx.TensorProto.INT32), tape.integers(-1, *[1] * len(widths)))
    places = tape.op("Expand", places, tape.op("Shape", parts))
    zeros = tape.op("ConstantOfShape", tape.integers(rows, *widths), value=tape.filling(0.0))
    return str(tape.op("ScatterElements", zeros, places, parts, axis=0, reduction="add"))
