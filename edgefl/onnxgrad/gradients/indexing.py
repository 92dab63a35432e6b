"""Gradients of operators that select or replace entries by index. In docstrings, g is the gradient of the output."""

import math
from collections.abc import Sequence

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.linear_maps import mapped
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("Gather")
def gather(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For one constant index g padded with zeros; for computed indices (an embedding), the rows of g added at their indices."""
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
    if known is not None and axis != 0:
        return [_selected_back(tape, op, gradient, known, axis), None]
    if axis != 0:
        op.refuse(f"axis {axis} has no rule for indices that depend on data, expected 0")
    rows, *widths = tape.fixed(op, x)
    return [_summed_rows(tape, gradient, index, rows, widths), None]


def _selected_back(tape: Tape, op: Op, gradient: str, index: np.ndarray, axis: int) -> str:
    """Return g added at its constant indices along ``axis``, as a product with a matrix of zeros and ones."""
    shape = tape.shape(op.inputs[0])
    size = tape.fixed(op, op.inputs[0], [axis])[0]
    chosen = np.eye(size)[index.reshape(-1) % size]
    flat = gradient if index.ndim == 1 else tape.reshape(gradient, (*shape[:axis], index.size, *shape[axis + 1 :]))
    return mapped(tape, flat, len(shape), axis, chosen)


@register_rule("GatherND")
def gather_nd(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """As for Gather, with the indexed axes flattened to one: the rows of g are added at their indices."""
    x, index = op.inputs
    if op.get("batch_dims", 0):
        op.refuse(f"batch_dims {op.get('batch_dims')} has no rule, expected 0")
    sizes, depth = tape.fixed(op, x), tape.fixed(op, index, [-1])[0]
    strides = [math.prod(sizes[axis + 1 : depth]) for axis in range(depth)]
    # A negative index counts from the end; the result of Mod has the sign of the divisor.
    places = tape.op("Mul", tape.op("Mod", index, tape.integers(*sizes[:depth])), tape.integers(*strides))
    places = tape.op("ReduceSum", places, tape.integers(-1), keepdims=0)
    summed = _summed_rows(tape, gradient, places, math.prod(sizes[:depth]), sizes[depth:])
    return [tape.reshape(summed, sizes), None]


@register_rule("GatherElements")
def gather_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The entries of g added at their indices."""
    x, index = op.inputs
    zeros = tape.op("Sub", x, x)
    return [tape.op("ScatterElements", zeros, index, gradient, axis=op.get("axis", 0), reduction="add"), None]


@register_rule("ScatterElements")
def scatter_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g for the data, without the entries that updates replaced, and the entries of g at the indices for the updates."""
    data, index, updates = op.inputs
    reduction, axis = op.get("reduction", "none"), op.get("axis", 0)
    if reduction not in ("none", "add"):
        op.refuse(f"reduction {reduction!r} has no rule, expected 'none' or 'add'")
    of_data = gradient
    if reduction == "none" and tape.needs(data):
        of_data = tape.op("ScatterElements", gradient, index, tape.zeros(tape.op("Shape", updates)), axis=axis)
    return [of_data, None, tape.op("GatherElements", gradient, index, axis=axis) if tape.needs(updates) else None]


@register_rule("ScatterND")
def scatter_nd(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """As for ScatterElements. Only reduction none: onnxruntime's ScatterND loses sums if an index repeats."""
    data, index, updates = op.inputs
    if op.get("reduction", "none") != "none":
        op.refuse(f"reduction {op.get('reduction')!r} has no rule, expected 'none'")
    return [
        tape.op("ScatterND", gradient, index, tape.zeros(tape.op("Shape", updates))) if tape.needs(data) else None,
        None,
        tape.op("GatherND", gradient, index) if tape.needs(updates) else None,
    ]


def _summed_rows(tape: Tape, gradient: str, index: str, rows: int, widths: Sequence[int]) -> str:
    """Return zeros (rows, *widths) with every row of ``gradient`` added at its ``index``.

    ScatterElements adds single entries. onnxruntime's ScatterND adds rows from several threads, and loses some if an index repeats.
    """
    parts = tape.reshape(gradient, (None, *widths))
    places = tape.op("Reshape", tape.op("Cast", index, to=onnx.TensorProto.INT32), tape.integers(-1, *[1] * len(widths)))
    places = tape.op("Expand", places, tape.op("Shape", parts))
    zeros = tape.zeros(tape.integers(rows, *widths))
    return tape.op("ScatterElements", zeros, places, parts, axis=0, reduction="add")
