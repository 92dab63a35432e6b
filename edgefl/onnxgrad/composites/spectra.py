"""Eigenvalues of symmetric matrices, singular values and pseudo-inverses, by Jacobi's rotations in float64.

A rotation of two rows and columns makes one entry zero. Each round rotates disjoint pairs of all rows at once, and a sweep has a round for
every pair (Brent and Luk, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays", 1985). The rounds
are the steps of a Scan, so that the graph does not grow with the matrix.
"""

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.composites.matrices import MOST_ROWS
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

_SWEEPS = 10
_EPS = float(np.finfo(np.float32).eps)
"""Singular values below this share of the largest one, times rows or columns, are rounding errors of a matrix in float32."""
_FIRST, _LAST = 0, 2**31 - 1


def _product(a: Formula, b: Formula) -> Formula:
    return a.op("MatMul", b)


def _turned(a: Formula, rank: int) -> Formula:
    return Formula(a.tape, a.tape.swapped(a.name, rank))


def _half(x: Formula, axis: int, first: int, last: int) -> Formula:
    return Formula(x.tape, x.tape.op("Slice", x.name, *(x.tape.integers(value) for value in (first, last, axis))))


def _summed(x: Formula, keep: int = 0) -> Formula:
    return Formula(x.tape, x.tape.op("ReduceSum", x.name, x.tape.integers(-1), keepdims=keep))


def _tournament(size: int) -> list[int]:
    """Return the order of rows after a round: each of the first half meets one of the second, and all but row 0 move on by a place."""
    half = size // 2
    first, second = list(range(half)), list(range(half, size))
    return [first[0], second[0], *first[1:-1], *second[1:], first[-1]] if half > 1 else [0, 1]


def _rotated(x: Formula, axis: int, half: int, cosine: Formula, sine: Formula, order: list[int]) -> Formula:
    """Return the pairs of rows or columns rotated, in the order of the next round."""
    tape = x.tape
    p, q = _half(x, axis, _FIRST, half), _half(x, axis, half, _LAST)
    both = tape.op("Concat", (cosine * p - sine * q).name, (sine * p + cosine * q).name, axis=axis)
    return Formula(tape, tape.op("Gather", both, tape.integers(*order), axis=axis))


def _round(matrix: Formula, vectors: Formula, half: int, rank: int) -> tuple[Formula, Formula]:
    """Return the matrix and the vectors after one round of rotations."""
    tape, order = matrix.tape, _tournament(2 * half)
    one = Formula(tape, tape.constant(np.eye(half)))
    above, below = _half(matrix, -2, _FIRST, half), _half(matrix, -2, half, _LAST)
    first = _summed(_half(above, -1, _FIRST, half) * one, keep=1)
    second = _summed(_half(below, -1, half, _LAST) * one, keep=1)
    beside = _summed(_half(above, -1, half, _LAST) * one, keep=1)
    zero = beside.op("Equal", 0.0)
    ratio = (second - first) / (zero.where(1.0, beside) * 2)
    tangent = 1 / (ratio.abs() + (ratio * ratio + 1).sqrt())
    tangent = zero.where(0.0, (ratio < 0).where(-tangent, tangent))
    cosine = 1 / (tangent * tangent + 1).sqrt()
    sine = tangent * cosine
    across = _turned(cosine, rank), _turned(sine, rank)
    rows = _rotated(matrix, -2, half, cosine, sine, order)
    return _rotated(rows, -1, half, *across, order), _rotated(vectors, -1, half, *across, order)


def _decomposed(matrix: Formula, size: int, rank: int) -> tuple[Formula, Formula]:
    """Return the eigenvalues (…, n) of symmetric matrices in ascending order, and their vectors as columns."""
    tape, even = matrix.tape, size + size % 2
    start = Formula(tape, tape.op("Expand", tape.constant(np.eye(size)), tape.op("Shape", matrix.name)))
    if even > size:
        pads = tape.integers(*[0] * (2 * rank - 2), 1, 1)
        matrix, start = (Formula(tape, tape.op("Pad", value.name, pads)) for value in (matrix, start))
    outer, tape.nodes = tape.nodes, []
    try:
        given = [tape.fresh(hint) for hint in ("matrix", "vectors", "round")]
        after = _round(Formula(tape, given[0]), Formula(tape, given[1]), even // 2, rank)
        body, nodes = [value.name for value in after], tape.nodes
    finally:
        tape.nodes = outer
    kinds = [onnx.TensorProto.DOUBLE] * 2
    declared = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(given, kinds, strict=False)]
    declared.append(onnx.helper.make_tensor_value_info(given[2], onnx.TensorProto.INT64, None))
    results = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(body, kinds, strict=True)]
    graph = onnx.helper.make_graph(nodes, "rotations", declared, results)
    rounds = tape.constant(np.arange((even - 1) * _SWEEPS))
    found, vectors = tape.op("Scan", matrix.name, start.name, rounds, count=2, body=graph, num_scan_inputs=1)
    # The shapes of a loop's results are not inferred.
    found, vectors = (tape.op("Reshape", value, tape.op("Shape", matrix.name)) for value in (found, vectors))
    values = _summed(Formula(tape, found) * Formula(tape, tape.constant(np.eye(even))))
    columns = Formula(tape, vectors)
    if even > size:
        values, columns = _half(values, -1, _FIRST, size), _half(_half(columns, -1, _FIRST, size), -2, _FIRST, size)
    ordered, places = tape.op("TopK", values.name, tape.integers(size), count=2, axis=-1, largest=0)
    wide = tape.op("Expand", tape.op("Unsqueeze", places, tape.integers(-2)), tape.op("Shape", columns.name))
    return Formula(tape, ordered), Formula(tape, tape.op("GatherElements", columns.name, wide, axis=rank - 1))


def _size_of(tape: Tape, op: Op) -> tuple[int, int, int]:
    """Return the rank, rows and columns of the matrix; refuse the node if it is too large."""
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    if min(rows, columns) > MOST_ROWS:
        op.refuse(f"{rows} x {columns} is too large to be written in ONNX operators, at most {MOST_ROWS} rows or columns are")
    return len(tape.shape(op.inputs[0])), rows, columns


def _symmetric(matrix: Formula, rank: int) -> Formula:
    """Return the symmetric matrix with this lower triangle."""
    tape = matrix.tape
    low = Formula(tape, tape.op("Trilu", matrix.name, upper=0))
    below = Formula(tape, tape.op("Trilu", matrix.name, tape.constant(np.array(-1)), upper=0))
    return low + _turned(below, rank)


@form("Eigh")
def eigh(tape: Tape, op: Op) -> None:
    """Eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices, of which the lower triangle is read."""
    rank, size, _ = _size_of(tape, op)
    values, vectors = _decomposed(_symmetric(Formula.of(tape, op.inputs[0]), rank), size, rank)
    values.result(op.outputs[0])
    vectors.result(op.outputs[1])


def _squares(tape: Tape, op: Op) -> tuple[Formula, Formula, Formula, int]:
    """Return A with no more columns than rows, the eigenvalues and vectors of AᵀA, and the rank."""
    rank, rows, columns = _size_of(tape, op)
    matrix = Formula.of(tape, op.inputs[0])
    if op.get("symmetric"):
        matrix = _symmetric(matrix, rank)
    if columns > rows:
        matrix = _turned(matrix, rank)
    return matrix, *_decomposed(_product(_turned(matrix, rank), matrix), min(rows, columns), rank), rank


@form("SVD")
def svd(tape: Tape, op: Op) -> None:
    """U, the singular values in descending order, and Vᵀ, reduced; by the eigenvalues of AᵀA, or AAᵀ if that is smaller.

    Of a matrix of lower rank, the vectors on the larger side are zeros where the singular value is: nothing defines their direction. So the
    gradient of a nuclear norm is bounded there.
    """
    matrix, squares, vectors, rank = _squares(tape, op)
    backwards = [tape.integers(value) for value in (-1, -(2**62), -1, -1)]
    squares, vectors = (Formula(tape, tape.op("Slice", value.name, *backwards)) for value in (squares, vectors))
    values = squares.op("Max", 0.0).sqrt()
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    largest = Formula(tape, tape.op("ReduceMax", values.name, tape.integers(-1), keepdims=1))
    factors = (values > largest * (max(rows, columns) * _EPS)).where(1 / values, 0.0)
    others = _product(matrix, vectors) * Formula(tape, tape.op("Unsqueeze", factors.name, tape.integers(-2)))
    left, right = (others, vectors) if rows >= columns else (vectors, others)
    left.result(op.outputs[0])
    values.result(op.outputs[1])
    _turned(right, rank).result(op.outputs[2])


@form("PInv")
def pseudo_inverse(tape: Tape, op: Op) -> None:
    """V S⁻² Vᵀ Aᵀ, without the singular values of A up to a bound: the larger of an absolute one and a share of the largest value.

    Of ``symmetric`` matrices the lower triangle is read.
    """
    matrix, squares, vectors, rank = _squares(tape, op)
    least, share = (Formula.of(tape, name) for name in op.inputs[1:])
    values = squares.op("Max", 0.0).sqrt()
    largest = Formula(tape, tape.op("ReduceMax", values.name, tape.integers(-1), keepdims=1))
    bound = (largest * share).op("Max", least)
    factors = (values > bound).where(1 / squares, 0.0)
    scaled = vectors * Formula(tape, tape.op("Unsqueeze", factors.name, tape.integers(-2)))
    found = _product(_product(scaled, _turned(vectors, rank)), _turned(matrix, rank))
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    (found if rows >= columns else _turned(found, rank)).result(op.outputs[0])
