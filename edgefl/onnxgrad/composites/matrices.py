"""Factorizations of small matrices and triangular systems, written out row by row in float64.

The last two axes are those of the matrices, all others a batch. The number of nodes grows with the number of rows, which is limited.
"""

from typing import Any

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.formula import Double
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape, composite

MOST_ROWS = 32
"""A larger matrix is refused: its graph would have thousands of nodes."""
_END = 2**31 - 1


def sizes_of(tape: Tape, op: Op) -> tuple[int, int]:
    """Return rows and columns of the first input; refuse the node if there are too many."""
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    if min(rows, columns) > MOST_ROWS:
        op.refuse(f"{rows} x {columns} is too large to be written in ONNX operators, at most {MOST_ROWS} rows or columns are")
    return rows, columns


def _cut(x: Double, rows: tuple[int, int] = (0, _END), columns: tuple[int, int] = (0, _END)) -> Double:
    """Return the rows and columns from a first to before a last one."""
    whole = (0, _END)
    axes = [(axis, *ends) for axis, ends in ((-2, rows), (-1, columns)) if ends != whole]
    if not axes:
        return x
    return x.op(
        "Slice", *(x.tape.integers(*ends) for ends in zip(*((first, last, axis) for axis, first, last in axes), strict=True))
    )


def _joined(axis: int, *parts: Double) -> Double:
    return parts[0] if len(parts) == 1 else parts[0].op("Concat", *parts[1:], axis=axis)


def _reversed(x: Double, *axes: int) -> Double:
    ends = [-1] * len(axes), [-(2**62)] * len(axes), axes, [-1] * len(axes)
    return x.op("Slice", *(x.tape.integers(*values) for values in ends))


def _behind_zeros(x: Double, rows: int, rank: int) -> Double:
    """Return a column with zeros above it.

    The pads are those of all axes: onnxruntime moves a Transpose over a Pad, and misreads pads of some axes.
    """
    before = [0] * (rank - 2) + [rows, 0]
    return x if rows == 0 else x.op("Pad", x.tape.integers(*before, *[0] * rank))


@form("Cholesky")
def cholesky(tape: Tape, op: Op) -> None:
    """The lower triangle L with LLᵀ = A, column by column; reads the lower triangle of A. NaN if A is not positive definite."""
    size, _ = sizes_of(tape, op)
    rank = len(tape.shape(op.inputs[0]))
    rest, columns = Double.of(tape, op.inputs[0]), []
    for column in range(size):
        root = _cut(rest, (0, 1), (0, 1)).sqrt()
        below = _cut(rest, (1, _END), (0, 1)) / root
        columns.append(_behind_zeros(_joined(-2, root, below) if column < size - 1 else root, column, rank))
        if column < size - 1:
            rest = _cut(rest, (1, _END), (1, _END)) - below * below.turned(rank)
    _joined(-1, *columns).result(op.outputs[0])


@form("TriangularSolve")
def triangular_solve(tape: Tape, op: Op) -> None:
    """The X with AX = B, row by row; reads the lower triangle of A, or with ``upper`` the upper one, with ``unit`` without its diagonal."""
    size, _ = sizes_of(tape, op)
    a, rest = (Double.of(tape, name) for name in op.inputs)
    if op.get("upper"):
        a, rest = _reversed(a, -2, -1), _reversed(rest, -2)
    found = []
    for row in range(size):
        value = _cut(rest, (0, 1)) if row < size - 1 else rest
        if not op.get("unit"):
            value = value / _cut(a, (row, row + 1), (row, row + 1))
        found.append(value)
        if row < size - 1:
            rest = _cut(rest, (1, _END)) - _cut(a, (row + 1, _END), (row, row + 1)) * value
    x = _joined(-2, *found)
    (_reversed(x, -2) if op.get("upper") else x).result(op.outputs[0])


@form("CholeskySolve")
def cholesky_solve(tape: Tape, op: Op) -> None:
    """The X with LLᵀX = B; reads the lower triangle of L."""
    b, low = op.inputs
    upper = tape.swapped(low, len(tape.shape(low)))
    tape.shapes[upper] = tape.shape(low)
    (inner,) = composite(tape, "TriangularSolve", [low, b], [tape.shape(b)], upper=0, unit=0)
    tape.write(Op(op.name, "TriangularSolve", (upper, inner), op.outputs, {"upper": 1, "unit": 0}))


@form("LU")
def lu(tape: Tape, op: Op) -> None:
    """L and U of PA = LU in one matrix, the row that each step swaps with its own, and the rows of A in the order of PA.

    As in LAPACK, the pivot of a step is the first of the largest entries, and a column of zeros is left as it is.
    """
    rows, columns = sizes_of(tape, op)
    steps = min(rows, columns)
    whole = Double.of(tape, op.inputs[0])
    own = tape.constant(np.arange(rows).reshape(rows, 1))
    first = tape.op("Cast", _cut(whole, columns=(0, 1)).name, to=onnx.TensorProto.INT64)
    order: Any = tape.op("Add", tape.op("Mul", first, tape.integers(0)), own)
    pivots = []
    for step in range(steps):
        below = _cut(whole, (step, _END), (step, step + 1)).abs()
        largest = tape.op("Add", tape.op("ArgMax", below.name, axis=-2, keepdims=1), tape.integers(step))
        pivots.append(largest)
        if step < rows - 1:
            whole, order = _with_rows_swapped(tape, whole, order, own, step, largest)
            whole = _eliminated(whole, step, columns)
    whole.result(op.outputs[0])
    axis = tape.integers(-1)
    tape.op("Squeeze", tape.op("Concat", *pivots, axis=-2), axis, out=op.outputs[1])
    tape.op("Squeeze", order, axis, out=op.outputs[2])


def _with_rows_swapped(tape: Tape, whole: Double, order: str, own: str, step: int, largest: str) -> tuple[Double, str]:
    """Return the matrix and the order of its rows with row ``step`` and row ``largest`` swapped."""
    number = tape.integers(step)
    places = tape.op("Where", tape.op("Equal", own, largest), number, own)
    places = tape.op("Where", tape.op("Equal", own, number), largest, places)
    wide = tape.expanded(places, whole.name)
    return whole.op("GatherElements", wide, axis=-2), tape.op("GatherElements", order, places, axis=-2)


def _eliminated(whole: Double, step: int, columns: int) -> Double:
    """Return the matrix after the elimination of column ``step`` below the diagonal, where the factors take its place."""
    pivot = _cut(whole, (step, step + 1), (step, step + 1))
    factors = _cut(whole, (step + 1, _END), (step, step + 1)) / pivot.op("Equal", 0.0).where(1.0, pivot)
    parts = [_cut(whole, (step + 1, _END), (0, step))] if step else []
    parts.append(factors)
    if step < columns - 1:
        rest = _cut(whole, (step + 1, _END), (step + 1, _END))
        parts.append(rest - factors * _cut(whole, (step, step + 1), (step + 1, _END)))
    return _joined(-2, _cut(whole, (0, step + 1)), _joined(-1, *parts))


@form("QR")
def qr(tape: Tape, op: Op) -> None:
    """Q and R of A = QR with orthonormal columns of Q, by reflections with the signs of LAPACK; A has no more columns than rows."""
    rows, columns = sizes_of(tape, op)
    rank = len(tape.shape(op.inputs[0]))
    rest, lines, reflections = Double.of(tape, op.inputs[0]), [], []
    corner = _cut(rest, (0, 1), (0, 1))
    one = Double(tape, tape.expanded(tape.constant(np.ones((1, 1))), corner.name))
    for step in range(columns):
        if step == rows - 1:  # a single number is not reflected
            lines.append(_behind_zeros(rest.turned(rank), step, rank))
            break
        vector, factor = _reflection(_cut(rest, columns=(0, 1)), one)
        reflections.append((vector, factor))
        rest = _reflected(rest, vector, factor)
        lines.append(_behind_zeros(_cut(rest, (0, 1)).turned(rank), step, rank))
        rest = _cut(rest, (1, _END), (1, _END)) if step < columns - 1 else rest
    _joined(-1, *lines).turned(rank).result(op.outputs[1])
    found = Double(tape, tape.expanded(tape.constant(np.eye(rows, columns)), op.inputs[0]))
    for step, (vector, factor) in reversed(list(enumerate(reflections))):
        below = _reflected(_cut(found, (step, _END)), vector, factor)
        found = _joined(-2, _cut(found, (0, step)), below) if step else below
    found.result(op.outputs[0])


def _reflection(column: Double, one: Double) -> tuple[Double, Double]:
    """Return v and τ of the reflection I − τvvᵀ that brings a column to a multiple of the first unit vector."""
    first, tail = _cut(column, (0, 1)), _cut(column, (1, _END))
    squares = (tail * tail).reduced("Sum", -2)
    length = (first * first + squares).sqrt()
    turned = (first < 0).where(length, -length)
    plain = squares.op("Equal", 0.0)
    vector = _joined(-2, one, tail / plain.where(1.0, first - turned))
    return vector, plain.where(0.0, (turned - first) / plain.where(1.0, turned))


def _reflected(x: Double, vector: Double, factor: Double) -> Double:
    """Return (I − τvvᵀ)X."""
    along = (vector * x).reduced("Sum", -2)
    return x - factor * vector * along
