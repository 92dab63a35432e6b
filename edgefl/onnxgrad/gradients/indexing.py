"""Gradients of operators that select, replace or sample entries by index or place. In docstrings, g is the gradient of the output."""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.linear_maps import mapped
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("Gather")
def gather(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For one constant index g padded with zeros; for computed indices, such as an embedding's, g added at its indices."""
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
        return [_added_along(tape, op, gradient, axis), None]
    return [_summed_rows(tape, gradient, index, shape[0], x, 1), None]


def _added_along(tape: Tape, op: Op, gradient: str, axis: int) -> str:
    """Return zeros in the shape of the input, with g added at its indices along an ``axis`` that is not the first."""
    x, index = op.inputs
    rank = len(tape.shape(x))
    if len(tape.shape(index)) > 1:
        op.refuse(f"axis {axis} has no rule for indices {tape.shape(index)} that depend on data, expected one dimension")
    if not tape.shape(index):
        gradient = tape.op("Unsqueeze", gradient, tape.integers(axis))
    places = tape.op("Reshape", index, tape.integers(-1, *[1] * (rank - axis - 1)))
    places = tape.expanded(places, gradient)
    return str(tape.op("ScatterElements", tape.zeros_like(x), places, gradient, axis=axis, reduction="add"))


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
    depth = tape.fixed(op, index, [-1])[0]
    if depth == 1:
        return [_summed_rows(tape, gradient, index, tape.shape(x)[0], x, 1), None]
    sizes = tape.fixed(op, x, range(depth))
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(depth)]
    known = tape.known(index)
    if known is None:
        # A negative index counts from the end; the result of Mod has the sign of the divisor.
        places = tape.op("Mul", tape.op("Mod", index, tape.integers(*sizes)), tape.integers(*strides))
        places = tape.op("ReduceSum", places, tape.integers(-1), keepdims=0)
    else:
        places = tape.constant((known % sizes * strides).sum(-1))
    return [tape.like(_summed_rows(tape, gradient, places, math.prod(sizes), x, depth), x), None]


@register_rule("GatherElements")
def gather_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The entries of g added at their indices."""
    x, index = op.inputs
    zeros = tape.zeros_like(x)
    return [tape.op("ScatterElements", zeros, index, gradient, axis=op.get("axis", 0), reduction="add"), None]


@register_rule("ScatterElements")
def scatter_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g for the data, without the entries that updates replaced, and the entries of g at the indices for the updates."""
    data, index, updates = op.inputs
    reduction, axis = op.get("reduction", "none"), op.get("axis", 0)
    if reduction in ("max", "min"):
        return _of_extremes(tape, op, gradient)
    if reduction not in ("none", "add"):
        op.refuse(f"reduction {reduction!r} has no rule, expected 'none', 'add', 'max' or 'min'")
    of_data = gradient
    if reduction == "none" and tape.needs(data):
        of_data = tape.op("ScatterElements", gradient, index, tape.zeros_like(updates), axis=axis)
    return [of_data, None, tape.op("GatherElements", gradient, index, axis=axis) if tape.needs(updates) else None]


def _of_extremes(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient g goes to the entries that equal the extreme of their place, in equal parts, as in torch's scatter_reduce."""
    (data, index, updates), (y,), axis = op.inputs, op.outputs, op.get("axis", 0)
    found = [tape.op("Equal", data, y), tape.op("Equal", updates, tape.op("GatherElements", y, index, axis=axis))]
    own, hits = (tape.op("Cast", equal, to=tape.element_type) for equal in found)
    share = tape.op("Div", gradient, tape.op("ScatterElements", own, index, hits, axis=axis, reduction="add"))
    return [tape.op("Mul", share, own), None, tape.op("Mul", tape.op("GatherElements", share, index, axis=axis), hits)]


@register_rule("ScatterND")
def scatter_nd(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """As for ScatterElements. Only reduction none: onnxruntime's ScatterND loses sums if an index repeats."""
    data, index, updates = op.inputs
    if op.get("reduction", "none") != "none":
        op.refuse(f"reduction {op.get('reduction')!r} has no rule, expected 'none'")
    return [
        tape.op("ScatterND", gradient, index, tape.zeros_like(updates)) if tape.needs(data) else None,
        None,
        tape.op("GatherND", gradient, index) if tape.needs(updates) else None,
    ]


def _summed_rows(tape: Tape, gradient: str, index: str, rows: int | None, x: str, depth: int) -> str:
    """Return zeros (rows, *widths) with every row of ``gradient`` added at its ``index``; widths are the sizes of ``x`` from ``depth``.

    ScatterElements adds single entries. onnxruntime's ScatterND adds rows from several threads, and loses some if an index repeats.
    """
    widths = tape.shape(x)[depth:]
    if rows is None or None in widths:
        own = tape.op("Shape", x)
        rest = tape.op("Slice", own, tape.integers(depth), tape.integers(len(tape.shape(x))))
        parts = tape.op("Reshape", gradient, tape.op("Concat", tape.integers(-1), rest, axis=0))
        whole = own if rows is None or depth == 1 else tape.op("Concat", tape.integers(rows), rest, axis=0)
        zeros = tape.zeros(whole)
    else:
        parts, zeros = tape.reshape(gradient, (None, *widths)), tape.zeros(tape.integers(rows, *(size or 0 for size in widths)))
    places = tape.op("Reshape", tape.op("Cast", index, to=onnx.TensorProto.INT32), tape.integers(-1, *[1] * len(widths)))
    places = tape.expanded(places, parts)
    return str(tape.op("ScatterElements", zeros, places, parts, axis=0, reduction="add"))


@dataclass(frozen=True)
class _Ends:
    """Along one axis, the neighbours of each place (batch, 1, places): one for mode nearest, else two.

    Attributes:
        at: their indices, as real numbers inside the map.
        weights: their weights in the sample.
        slopes: the derivatives of the weights by the coordinate in the grid.
    """

    at: list[str]
    weights: list[str]
    slopes: list[str]


@register_rule("GridSample")
def grid_sample(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For the map, g times its weight added at each neighbour. For the grid, g times the values of the neighbours and their slopes."""
    x, grid = op.inputs
    mode, padding = op.get("mode", "linear"), op.get("padding_mode", "zeros")
    if mode not in ("linear", "bilinear", "nearest") or padding == "reflection" or len(tape.shape(x)) != 4:
        op.refuse(
            f"mode {mode!r}, padding_mode {padding!r}: only linear and nearest with zeros or border has a rule, for 2-d maps"
        )
    sizes = tape.fixed(op, x, [2, 3])
    coordinates = tape.op("Split", grid, tape.integers(1, 1), count=2, axis=3)[::-1]  # a grid has columns first
    rows, columns = (_ends(tape, op, place, size) for place, size in zip(coordinates, sizes, strict=True))
    g, values = (tape.op("Reshape", value, tape.integers(0, 0, -1)) for value in (gradient, x))
    pairs = [(i, j) for i in range(len(rows.at)) for j in range(len(columns.at))]
    indices = [_index(tape, rows.at[i], columns.at[j], sizes[1], g) for i, j in pairs]
    of_x = of_grid = None
    if tape.needs(x):
        shares = [tape.op("Mul", g, tape.op("Mul", rows.weights[i], columns.weights[j])) for i, j in pairs]
        index, parts = (tape.op("Concat", *values, axis=2) for values in (indices, shares))
        zeros = tape.zeros_like(values)
        of_x = tape.like(tape.op("ScatterElements", zeros, index, parts, axis=2, reduction="add"), x)
    if tape.needs(grid) and mode != "nearest":
        seen = [tape.op("Mul", g, tape.op("GatherElements", values, index, axis=2)) for index in indices]
        sums = [tape.op("ReduceSum", value, tape.integers(1), keepdims=1) for value in seen]
        slopes = [
            [(columns.slopes[j], rows.weights[i]) for i, j in pairs],
            [(columns.weights[j], rows.slopes[i]) for i, j in pairs],
        ]
        by_axis = [
            tape.total([tape.op("Mul", s, tape.op("Mul", *pair)) for s, pair in zip(sums, of, strict=True)]) for of in slopes
        ]
        of_grid = tape.like(tape.op("Transpose", tape.op("Concat", *by_axis, axis=1), perm=[0, 2, 1]), grid)
    return [of_x, of_grid]


def _ends(tape: Tape, op: Op, coordinate: str, size: int) -> _Ends:
    """Return the neighbours of each ``coordinate`` in [−1, 1] along an axis of the map."""
    aligned, last = bool(op.get("align_corners", 0)), tape.number(size - 1)
    scale = (size - 1 if aligned else size) / 2
    place = tape.op("Reshape", coordinate, tape.integers(0, 1, -1))
    place = tape.op("Add", tape.op("Mul", place, tape.number(scale)), tape.number((size - 1) / 2))
    slope, zero = tape.number(scale), tape.number(0.0)
    if op.get("padding_mode", "zeros") == "border":
        inside = tape.op("And", tape.op("Greater", place, zero), tape.op("Less", place, last))
        slope, place = tape.op("Where", inside, slope, zero), tape.op("Clip", place, zero, last)
    if op.get("mode", "linear") == "nearest":
        low, shares, slopes = tape.op("Round", place), [tape.number(1.0)], [zero]
    else:
        low = tape.op("Floor", place)
        share = tape.op("Sub", place, low)
        shares, slopes = [tape.op("Sub", tape.number(1.0), share), share], [tape.op("Neg", slope), slope]
    found = _Ends([], [], [])
    for step, (own, rise) in enumerate(zip(shares, slopes, strict=True)):
        at = tape.op("Add", low, tape.number(step))
        clipped = tape.op("Clip", at, zero, last)
        kept = tape.op("Cast", tape.op("Equal", at, clipped), to=tape.element_type)  # padding counts as zeros
        found.at.append(clipped)
        found.weights.append(tape.op("Mul", own, kept))
        found.slopes.append(tape.op("Mul", rise, kept))
    return found


def _index(tape: Tape, row: str, column: str, columns: int, like: str) -> str:
    """Return the indices of neighbours in the flattened map, once for each channel."""
    index = tape.op("Cast", tape.op("Add", tape.op("Mul", row, tape.number(columns)), column), to=onnx.TensorProto.INT64)
    return str(tape.expanded(index, like))
