"""Gradients of picking entries by their index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, register_rule


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
