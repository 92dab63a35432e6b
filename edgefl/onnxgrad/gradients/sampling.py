"""The gradient of sampling a map at computed places."""

from dataclasses import dataclass

import onnx

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


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
        zeros = tape.zeros(tape.op("Shape", values))
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
    return str(tape.op("Expand", index, tape.op("Shape", like)))
