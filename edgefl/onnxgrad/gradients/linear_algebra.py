"""Gradients of factorizations, systems of equations and spectra, as products and triangular systems of the results.

In docstrings, G is the gradient of the result, and Gᵥ that of a result V; ``low`` is the lower triangle of a matrix, ``half`` the same with
half of the diagonal.
"""

from typing import Any

import numpy as np

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape, composite, put

DIAGONAL, BELOW, ABOVE = 0, -1, 1


def solved(tape: Tape, a: str, b: str, *, upper: bool, unit: bool = False) -> str:
    """Append the X with AX = B for a triangular A."""
    return composite(tape, "TriangularSolve", [a, b], [tape.shape(b)], upper=int(upper), unit=int(unit))[0]


def _matmul(tape: Tape, a: str, b: str) -> str:
    return put(tape, (*tape.shape(a)[:-1], tape.shape(b)[-1]), "MatMul", a, b)


def _turned(tape: Tape, a: str) -> str:
    shape = tape.shape(a)
    name = tape.swapped(a, len(shape))
    tape.shapes[name] = (*shape[:-2], shape[-1], shape[-2])
    return name


def _low(tape: Tape, a: str, diagonal: int = DIAGONAL) -> str:
    return put(tape, tape.shape(a), "Trilu", a, tape.constant(np.array(diagonal)), upper=0)


def _high(tape: Tape, a: str, diagonal: int = DIAGONAL) -> str:
    return put(tape, tape.shape(a), "Trilu", a, tape.constant(np.array(diagonal)), upper=1)


def _both(tape: Tape, kind: str, a: str, b: str) -> str:
    return put(tape, tape.shape(a), kind, a, b)


def _given(tape: Tape, gradient: str, like: str) -> str:
    """Return a gradient, whose shape is that of a value of the forward graph."""
    tape.shapes.setdefault(gradient, tape.shape(like))
    return gradient


@register_rule("Cholesky")
def cholesky(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The symmetric part of L⁻ᵀ·half(LᵀG)·L⁻¹."""
    (low,) = op.outputs
    size = tape.fixed(op, low, [-1])[0]
    gradient = _given(tape, gradient, low)
    half = tape.constant((np.tri(size) - np.eye(size) / 2).astype(tape.real))
    turned = _turned(tape, low)
    inner = _both(tape, "Mul", _matmul(tape, turned, gradient), half)
    right = solved(tape, turned, _turned(tape, inner), upper=True)
    found = solved(tape, turned, _turned(tape, right), upper=True)
    return [tape.op("Mul", tape.op("Add", found, _turned(tape, found)), tape.number(0.5))]


@register_rule("TriangularSolve")
def triangular_solve(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For AX = B: A⁻ᵀG for B, and −A⁻ᵀG·Xᵀ for A, in the triangle that is read."""
    (a, _), (x,), upper, unit = op.inputs, op.outputs, bool(op.get("upper")), bool(op.get("unit"))
    of_b = solved(tape, _turned(tape, a), _given(tape, gradient, x), upper=not upper, unit=unit)
    of_a = None
    if tape.needs(a):
        product = _matmul(tape, of_b, _turned(tape, x))
        triangle = (
            _high(tape, product, ABOVE if unit else DIAGONAL) if upper else _low(tape, product, BELOW if unit else DIAGONAL)
        )
        of_a = tape.op("Neg", triangle)
    return [of_a, of_b]


@register_rule("CholeskySolve")
def cholesky_solve(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For LLᵀX = B: H = (LLᵀ)⁻¹G for B, and −(HXᵀ + XHᵀ)L for L, all of its entries, as in torch."""
    (_, low), (x,) = op.inputs, op.outputs
    (of_b,) = composite(tape, "CholeskySolve", [_given(tape, gradient, x), low], [tape.shape(x)])
    of_low = None
    if tape.needs(low):
        product = _matmul(tape, of_b, _turned(tape, x))
        of_low = tape.op("Neg", _matmul(tape, _both(tape, "Add", product, _turned(tape, product)), low))
    return [of_b, of_low]


def _factors(tape: Tape, op: Op, packed: str, rows: int, columns: int) -> tuple[str, str]:
    """Return L (rows, n) and U (n, columns) of a packed matrix, n the smaller size."""
    least = min(rows, columns)
    left = packed if columns == least else _part(tape, packed, -1, 0, least)
    right = packed if rows == least else _part(tape, packed, -2, 0, least)
    ones = tape.constant(np.eye(rows, least, dtype=tape.real))
    return _both(tape, "Add", _low(tape, left, BELOW), ones), _high(tape, right)


def _part(tape: Tape, a: str, axis: int, first: int, last: int) -> str:
    shape = list(tape.shape(a))
    shape[axis] = last - first
    return put(tape, tuple(shape), "Slice", a, *(tape.integers(value) for value in (first, last, axis)))


def in_first_order(tape: Tape, value: str, order: str) -> str:
    """Return the rows of ``value``, which stand in the order ``order`` of a pivoted matrix, in the matrix's own order."""
    shape = tape.shape(value)
    back = tape.op("TopK", order, tape.integers(shape[-2] or 0), count=2, axis=-1, largest=0, sorted=1)[1]
    wide = tape.op("Expand", tape.op("Unsqueeze", back, tape.integers(-1)), tape.op("Shape", value))
    return put(tape, shape, "GatherElements", value, wide, axis=len(shape) - 2)


@register_rule("LU")
def lu(tape: Tape, op: Op, gradient: Gradient, *of_places: Any) -> list[Gradient]:
    """For PA = LU of square A: Pᵀ·L⁻ᵀ(low of LᵀG strictly below, plus the rest of GUᵀ)U⁻ᵀ; other shapes have parts of their own."""
    if op.get("once"):
        op.refuse("the gradient of a determinant has no gradient of its own")
    if gradient is None:
        return [None]
    packed, _, order = op.outputs
    rows, columns = tape.fixed(op, packed, [-2, -1])
    least = min(rows, columns)
    gradient = _given(tape, gradient, packed)
    low, u = _factors(tape, op, packed, rows, columns)
    square_l = low if rows == least else _part(tape, low, -2, 0, least)
    square_u = u if columns == least else _part(tape, u, -1, 0, least)
    of_top = gradient if rows == least else _part(tape, gradient, -2, 0, least)
    of_square = of_top if columns == least else _part(tape, of_top, -1, 0, least)
    of_l, of_u = _low(tape, of_square, BELOW), _high(tape, of_square)
    below = _matmul(tape, _turned(tape, square_l), of_l)
    above = _matmul(tape, of_u, _turned(tape, square_u))
    if columns > least:
        of_right = _part(tape, of_top, -1, least, columns)
        below = _both(tape, "Sub", below, _matmul(tape, of_right, _turned(tape, _part(tape, u, -1, least, columns))))
    if rows > least:
        of_bottom = _part(tape, gradient, -2, least, rows)
        above = _both(tape, "Sub", above, _matmul(tape, _turned(tape, _part(tape, low, -2, least, rows)), of_bottom))
    inner = _both(tape, "Add", _low(tape, below, BELOW), _high(tape, above))
    if columns > least:  # [inner · U₁⁻ᵀ | G₂], then L⁻ᵀ in front of both
        inner = _over(tape, inner, square_u)
        inner = put(tape, (*tape.shape(inner)[:-1], columns), "Concat", inner, of_right, axis=-1)
    found = solved(tape, _turned(tape, square_l), inner, upper=True, unit=True)
    if rows > least:
        found = put(tape, (*tape.shape(found)[:-2], rows, least), "Concat", found, of_bottom, axis=-2)
    if columns == least:
        found = _over(tape, found, square_u)
    return [in_first_order(tape, found, order)]


def _over(tape: Tape, a: str, u: str) -> str:
    """Return A·U⁻ᵀ."""
    return _turned(tape, solved(tape, u, _turned(tape, a), upper=True))


@register_rule("Det")
def determinant(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """g·det(A)·A⁻ᵀ, by the factors of A; as in torch, a zero on the diagonal of U counts as the smallest number next to 1, less 1."""
    (a,), (y,) = op.inputs, op.outputs
    shape, size = tape.shape(a), tape.fixed(op, a, [-1])[0]
    packed, _, order = composite(tape, "LU", [a], [shape, shape[:-1], shape[:-1]], once=1)
    eye = np.eye(size)
    zero = tape.op("And", tape.op("Equal", packed, tape.number(0.0)), tape.constant(eye > 0))
    regular = put(tape, shape, "Where", zero, tape.number(float(np.finfo(tape.real).eps)), packed)
    scale = tape.op("Unsqueeze", tape.op("Mul", gradient, y), tape.integers(-2, -1))
    turned = _turned(tape, regular)
    inner = solved(tape, turned, put(tape, shape, "Mul", scale, tape.constant(eye.astype(tape.real))), upper=False)
    return [in_first_order(tape, solved(tape, turned, inner, upper=True, unit=True), order)]


@register_rule("QR")
def qr(tape: Tape, op: Op, of_q: Gradient, of_r: Gradient) -> list[Gradient]:
    """(G + Q·M)·R⁻ᵀ, G the gradient of Q, and M symmetric with the upper triangle of (gradient of R)·Rᵀ − Qᵀ·G."""
    q, r = op.outputs
    size = tape.fixed(op, r, [-1])[0]
    parts = []
    if of_r is not None:
        parts.append(_matmul(tape, _given(tape, of_r, r), _turned(tape, r)))
    if of_q is not None:
        parts.append(put(tape, tape.shape(r), "Neg", _matmul(tape, _turned(tape, q), _given(tape, of_q, q))))
    high = _high(tape, parts[0] if len(parts) == 1 else _both(tape, "Add", *parts))
    off = tape.constant((1 - np.eye(size)).astype(tape.real))
    symmetric = _both(tape, "Add", high, _both(tape, "Mul", _turned(tape, high), off))
    found = _matmul(tape, q, symmetric)
    return [_over(tape, found if of_q is None else _both(tape, "Add", of_q, found), r)]


def _over_gaps(tape: Tape, value: str, numbers: str, size: int) -> str:
    """Return entries (j, k) over nₖ − nⱼ, and zeros on the diagonal."""
    rows, columns = (tape.op("Unsqueeze", numbers, tape.integers(axis)) for axis in (-1, -2))
    eye = np.eye(size).astype(tape.real)
    gaps = tape.op("Add", tape.op("Sub", columns, rows), tape.constant(eye))
    return put(tape, tape.shape(value), "Mul", tape.op("Div", value, gaps), tape.constant(1 - eye))


def _diagonal(tape: Tape, values: str, size: int, shape: tuple[int | None, ...]) -> str:
    """Return diagonal matrices."""
    eye = tape.constant(np.eye(size).astype(tape.real))
    return put(tape, shape, "Mul", tape.op("Unsqueeze", values, tape.integers(-2)), eye)


def _scaled(tape: Tape, kind: str, value: str, numbers: str, axis: int) -> str:
    """Return the columns (axis −2) or rows (axis −1) of a matrix times or over numbers."""
    return put(tape, tape.shape(value), kind, value, tape.op("Unsqueeze", numbers, tape.integers(axis)))


@register_rule("Eigh")
def eigh(tape: Tape, op: Op, of_values: Gradient, of_vectors: Gradient) -> list[Gradient]:
    """The symmetric part of V(diag(Gₗ) + VᵀGᵥ / (lₖ − lⱼ))Vᵀ, for eigenvalues l and eigenvectors V."""
    values, vectors = op.outputs
    size = tape.fixed(op, vectors, [-1])[0]
    shape, turned, parts = tape.shape(vectors), _turned(tape, vectors), []
    if of_values is not None:
        parts.append(_diagonal(tape, of_values, size, shape))
    if of_vectors is not None:
        parts.append(_over_gaps(tape, _matmul(tape, turned, _given(tape, of_vectors, vectors)), values, size))
    inner = parts[0] if len(parts) == 1 else _both(tape, "Add", *parts)
    found = _matmul(tape, _matmul(tape, vectors, inner), turned)
    return [found if of_vectors is None else tape.op("Mul", tape.op("Add", found, _turned(tape, found)), tape.number(0.5))]


@register_rule("SVD")
def svd(tape: Tape, op: Op, of_u: Gradient, of_s: Gradient, of_vh: Gradient) -> list[Gradient]:
    """U·M·Vᵀ, and for rectangular A the parts of Gᵤ and Gᵥ outside of the span of U and V, over S.

    M is diag(Gₛ) + skew(UᵀGᵤ)/E·S + S·skew(VᵀGᵥ)/E with skew(X) = X − Xᵀ and Eⱼₖ = sₖ² − sⱼ².
    """
    u, s, vh = op.outputs
    size = tape.fixed(op, u, [-1])[0]
    v, turned = _turned(tape, vh), _turned(tape, u)
    shape = tape.shape(_matmul(tape, turned, u))
    squares = tape.op("Mul", s, s)
    parts, beside = [], []
    if of_s is not None:
        parts.append(_diagonal(tape, of_s, size, shape))
    if of_u is not None:
        along = _matmul(tape, turned, _given(tape, of_u, u))
        parts.append(_scaled(tape, "Mul", _skew_over_gaps(tape, along, squares, size), s, -2))
        rest = _both(tape, "Sub", of_u, _matmul(tape, u, along))
        beside.append(_matmul(tape, _scaled(tape, "Div", rest, s, -2), vh))
    if of_vh is not None:
        of_v = _turned(tape, _given(tape, of_vh, vh))
        along = _matmul(tape, vh, of_v)
        parts.append(_scaled(tape, "Mul", _skew_over_gaps(tape, along, squares, size), s, -1))
        rest = _turned(tape, _both(tape, "Sub", of_v, _matmul(tape, v, along)))
        beside.append(_matmul(tape, u, _scaled(tape, "Div", rest, s, -1)))
    inner = tape.total(parts) if len(parts) < 3 else tape.op("Sum", *parts)
    tape.shapes.setdefault(inner, shape)
    found = _matmul(tape, _matmul(tape, u, inner), vh)
    return [tape.op("Sum", found, *beside) if beside else found]


def _skew_over_gaps(tape: Tape, value: str, squares: str, size: int) -> str:
    return _over_gaps(tape, _both(tape, "Sub", value, _turned(tape, value)), squares, size)


@register_rule("PInv")
def pseudo_inverse(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For P of A, G and K = GᵀP: −(PK)ᵀ + KPᵀ − AP·KPᵀ + PᵀP·(Gᵀ − KA); if A has more rows than columns, of Aᵀ."""
    a, p, g = op.inputs[0], op.outputs[0], _given(tape, gradient, op.outputs[0])
    rows, columns = tape.fixed(op, a, [-2, -1])
    if rows > columns:
        a, p, g = _turned(tape, a), _turned(tape, p), _turned(tape, g)
    g, across = _turned(tape, g), _turned(tape, p)
    k = _matmul(tape, g, p)
    first = _turned(tape, _matmul(tape, p, k))
    second = _matmul(tape, k, across)
    third = _matmul(tape, _matmul(tape, a, p), second)
    fourth = _matmul(tape, _matmul(tape, across, p), _both(tape, "Sub", g, _matmul(tape, k, a)))
    plus, minus = _both(tape, "Add", second, fourth), _both(tape, "Add", first, third)
    found = _both(tape, "Sub", plus, minus)
    return [_turned(tape, found) if rows > columns else found, None, None]
