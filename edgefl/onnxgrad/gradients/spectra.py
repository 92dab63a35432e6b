"""Gradients of eigenvalues, singular values and pseudo-inverses. In docstrings, Gᵥ is the gradient of a result V."""

import numpy as np

from edgefl.onnxgrad.gradients.linear_algebra import _both, _given, _matmul, _turned
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape, put


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
