"""Eigenvalues of symmetric matrices, singular values and pseudo-inverses, by Jacobi's rotations in float64.

A rotation of two rows and columns makes one entry zero. Each round rotates disjoint pairs of all rows at once, and a sweep has a round for
every pair (Brent and Luk, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays", 1985). The rounds
are the steps of a Scan, so that the graph does not grow with the matrix.
"""

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.composites.matrices import sizes_of
from edgefl.onnxgrad.gradients.formula import Double
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

_SWEEPS = 10
_EPS = float(np.finfo(np.float32).eps)
"""Singular values below this share of the largest one, times rows or columns, are rounding errors of a matrix in float32."""
_FIRST, _LAST = 0, 2**31 - 1


def _tournament(size: int) -> list[int]:
    """Return the order of rows after a round: each of the first half meets one of the second, and all but row 0 move on by a place."""
    half = size // 2
    first, second = list(range(half)), list(range(half, size))
    return [first[0], second[0], *first[1:-1], *second[1:], first[-1]] if half > 1 else [0, 1]


def _rotated(x: Double, axis: int, half: int, cosine: Double, sine: Double, order: list[int]) -> Double:
    """Return the pairs of rows or columns rotated, in the order of the next round."""
    p, q = x.part(axis, _FIRST, half), x.part(axis, half, _LAST)
    both = (cosine * p - sine * q).op("Concat", sine * p + cosine * q, axis=axis)
    return both.op("Gather", x.tape.integers(*order), axis=axis)


def _round(matrix: Double, vectors: Double, half: int, rank: int) -> tuple[Double, Double]:
    """Return the matrix and the vectors after one round of rotations."""
    tape, order = matrix.tape, _tournament(2 * half)
    one = Double(tape, tape.constant(np.eye(half)))
    above, below = matrix.part(-2, _FIRST, half), matrix.part(-2, half, _LAST)
    first = (above.part(-1, _FIRST, half) * one).reduced("Sum", -1)
    second = (below.part(-1, half, _LAST) * one).reduced("Sum", -1)
    beside = (above.part(-1, half, _LAST) * one).reduced("Sum", -1)
    zero = beside.op("Equal", 0.0)
    ratio = (second - first) / (zero.where(1.0, beside) * 2)
    tangent = 1 / (ratio.abs() + (ratio * ratio + 1).sqrt())
    tangent = zero.where(0.0, (ratio < 0).where(-tangent, tangent))
    cosine = 1 / (tangent * tangent + 1).sqrt()
    sine = tangent * cosine
    across = cosine.turned(rank), sine.turned(rank)
    rows = _rotated(matrix, -2, half, cosine, sine, order)
    return _rotated(rows, -1, half, *across, order), _rotated(vectors, -1, half, *across, order)


def _decomposed(matrix: Double, size: int, rank: int) -> tuple[Double, Double]:
    """Return the eigenvalues (…, n) of symmetric matrices in ascending order, and their vectors as columns."""
    tape, even = matrix.tape, size + size % 2
    start = Double(tape, tape.expanded(tape.constant(np.eye(size)), matrix.name))
    if even > size:
        pads = tape.integers(*[0] * (2 * rank - 2), 1, 1)
        matrix, start = (value.op("Pad", pads) for value in (matrix, start))
    outer, tape.nodes = tape.nodes, []
    try:
        given = [tape.fresh(hint) for hint in ("matrix", "vectors", "round")]
        after = _round(Double(tape, given[0]), Double(tape, given[1]), even // 2, rank)
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
    values = (Double(tape, found) * Double(tape, tape.constant(np.eye(even)))).reduced("Sum", -1, keepdims=0)
    columns = Double(tape, vectors)
    if even > size:
        values, columns = values.part(-1, _FIRST, size), columns.part(-1, _FIRST, size).part(-2, _FIRST, size)
    ordered, places = tape.op("TopK", values.name, tape.integers(size), count=2, axis=-1, largest=0)
    wide = tape.expanded(tape.op("Unsqueeze", places, tape.integers(-2)), columns.name)
    return Double(tape, ordered), columns.op("GatherElements", wide, axis=rank - 1)


def _symmetric(matrix: Double, rank: int) -> Double:
    """Return the symmetric matrix with this lower triangle."""
    low = matrix.op("Trilu", upper=0)
    below = matrix.op("Trilu", matrix.tape.constant(np.array(-1)), upper=0)
    return low + below.turned(rank)


@form("Eigh")
def eigh(tape: Tape, op: Op) -> None:
    """Eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices, of which the lower triangle is read."""
    (size, _), rank = sizes_of(tape, op), len(tape.shape(op.inputs[0]))
    values, vectors = _decomposed(_symmetric(Double.of(tape, op.inputs[0]), rank), size, rank)
    values.result(op.outputs[0])
    vectors.result(op.outputs[1])


def _squares(tape: Tape, op: Op) -> tuple[Double, Double, Double, int]:
    """Return A with no more columns than rows, the eigenvalues and vectors of AᵀA, and the rank."""
    (rows, columns), rank = sizes_of(tape, op), len(tape.shape(op.inputs[0]))
    matrix = Double.of(tape, op.inputs[0])
    if op.get("symmetric"):
        matrix = _symmetric(matrix, rank)
    if columns > rows:
        matrix = matrix.turned(rank)
    return matrix, *_decomposed(matrix.turned(rank) @ matrix, min(rows, columns), rank), rank


@form("SVD")
def svd(tape: Tape, op: Op) -> None:
    """U, the singular values in descending order, and Vᵀ, reduced; by the eigenvalues of AᵀA, or AAᵀ if that is smaller.

    Of a matrix of lower rank, the vectors on the larger side are zeros where the singular value is: nothing defines their direction. So the
    gradient of a nuclear norm is bounded there.
    """
    matrix, squares, vectors, rank = _squares(tape, op)
    squares, vectors = (value.part(-1, -1, -(2**62), -1) for value in (squares, vectors))
    values = squares.op("Max", 0.0).sqrt()
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    largest = values.reduced("Max", -1)
    factors = (values > largest * (max(rows, columns) * _EPS)).where(1 / values, 0.0)
    others = (matrix @ vectors) * factors.op("Unsqueeze", tape.integers(-2))
    left, right = (others, vectors) if rows >= columns else (vectors, others)
    left.result(op.outputs[0])
    values.result(op.outputs[1])
    right.turned(rank).result(op.outputs[2])


@form("PInv")
def pseudo_inverse(tape: Tape, op: Op) -> None:
    """V S⁻² Vᵀ Aᵀ, without the singular values of A up to a bound: the larger of an absolute one and a share of the largest value.

    Of ``symmetric`` matrices the lower triangle is read.
    """
    matrix, squares, vectors, rank = _squares(tape, op)
    least, share = (Double.of(tape, name) for name in op.inputs[1:])
    values = squares.op("Max", 0.0).sqrt()
    largest = values.reduced("Max", -1)
    bound = (largest * share).op("Max", least)
    factors = (values > bound).where(1 / squares, 0.0)
    scaled = vectors * factors.op("Unsqueeze", tape.integers(-2))
    found = (scaled @ vectors.turned(rank)) @ matrix.turned(rank)
    rows, columns = tape.fixed(op, op.inputs[0], [-2, -1])
    (found if rows >= columns else found.turned(rank)).result(op.outputs[0])
