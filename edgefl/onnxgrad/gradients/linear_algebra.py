"""Gradients of factorizations, systems of equations and spectra, as products and triangular systems of the results.

In docstrings, G is the gradient of the result, and Gᵥ that of a result V; ``low`` is the lower triangle of a matrix, ``half`` the same with
half of the diagonal.
"""

from typing import Any, Self

import numpy as np

from edgefl.onnxgrad.gradients.formula import Formula
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Shape, Tape, composite

BELOW = -1


class Matrix(Formula):
    """Matrices (…, rows, columns) with a known shape, which the forms of composites read."""

    @classmethod
    def given(cls, tape: Tape, gradient: str, like: str) -> Self:
        """Return a gradient, whose shape is that of a value of the forward graph."""
        tape.shapes.setdefault(gradient, tape.shape(like))
        return cls(tape, gradient)

    @property
    def shape(self) -> Shape:
        """The sizes."""
        return self.tape.shape(self.name)

    def made(self, kind: str, *operands: Any, **attributes: Any) -> Self:
        """Append a node, and return its output; the shape is that of these matrices, or of a product."""
        found = super().made(kind, *operands, **attributes)
        return found.of_shape((*self.shape[:-1], operands[1].shape[-1]) if kind == "MatMul" else self.shape)

    def of_shape(self, shape: Shape) -> Self:
        """Return the matrices themselves, of which this shape is known from now on."""
        self.tape.shapes[self.name] = shape
        return self

    @property
    def T(self) -> Self:  # noqa: N802 - the field's own sign
        """The matrices with rows and columns swapped."""
        return self.turned(len(self.shape)).of_shape((*self.shape[:-2], self.shape[-1], self.shape[-2]))

    def triangle(self, diagonal: int = 0, *, upper: bool) -> Self:
        """Return the triangle above or below a diagonal, with it."""
        return self.op("Trilu", self.tape.constant(np.array(diagonal)), upper=int(upper))

    def cut(self, axis: int, first: int, last: int) -> Self:
        """Return the rows or columns from a first to before a last one."""
        shape = list(self.shape)
        shape[axis] = last - first
        return self.part(axis, first, last).of_shape(tuple(shape))

    def joined(self, other: "Matrix", axis: int, size: int) -> Self:
        """Return the matrices with others beside or below them, which makes this ``size``."""
        shape = list(self.shape)
        shape[axis] = size
        return self.op("Concat", other, axis=axis).of_shape(tuple(shape))

    def solved(self, b: "Matrix", *, upper: bool, unit: bool = False) -> Self:
        """Return the X with AX = B, for these triangular A."""
        names = composite(self.tape, "TriangularSolve", [self.name, b.name], [b.shape], upper=int(upper), unit=int(unit))
        return type(self)(self.tape, names[0])

    def over(self, u: "Matrix") -> "Matrix":
        """Return A·U⁻ᵀ."""
        return u.solved(self.T, upper=True).T


@register_rule("Cholesky")
def cholesky(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The symmetric part of L⁻ᵀ·half(LᵀG)·L⁻¹."""
    (low,) = op.outputs
    size = tape.fixed(op, low, [-1])[0]
    half = tape.constant((np.tri(size) - np.eye(size) / 2).astype(tape.real))
    turned = Matrix(tape, low).T
    inner = turned @ Matrix.given(tape, gradient, low) * half
    right = turned.solved(inner.T, upper=True)
    found = turned.solved(right.T, upper=True)
    return [((found + found.T) * 0.5).name]


@register_rule("TriangularSolve")
def triangular_solve(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For AX = B: A⁻ᵀG for B, and −A⁻ᵀG·Xᵀ for A, in the triangle that is read."""
    a, x, upper, unit = Matrix(tape, op.inputs[0]), Matrix(tape, op.outputs[0]), bool(op.get("upper")), bool(op.get("unit"))
    of_b = a.T.solved(Matrix.given(tape, gradient, x.name), upper=not upper, unit=unit)
    if not tape.needs(a.name):
        return [None, of_b.name]
    product = of_b @ x.T
    return [(-product.triangle(int(unit) * (1 if upper else -1), upper=upper)).name, of_b.name]


@register_rule("CholeskySolve")
def cholesky_solve(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For LLᵀX = B: H = (LLᵀ)⁻¹G for B, and −(HXᵀ + XHᵀ)L for L, all of its entries, as in torch."""
    (_, low), (x,) = op.inputs, op.outputs
    g = Matrix.given(tape, gradient, x)
    of_b = Matrix(tape, composite(tape, "CholeskySolve", [g.name, low], [tape.shape(x)])[0])
    of_low = None
    if tape.needs(low):
        product = of_b @ Matrix(tape, x).T
        of_low = (-((product + product.T) @ Matrix(tape, low))).name
    return [of_b.name, of_low]


def in_first_order(rows: Matrix, order: str) -> str:
    """Return rows, which stand in the order ``order`` of a pivoted matrix, in the matrix's own order."""
    tape = rows.tape
    back = tape.op("TopK", order, tape.integers(rows.shape[-2] or 0), count=2, axis=-1, largest=0, sorted=1)[1]
    wide = tape.expanded(tape.op("Unsqueeze", back, tape.integers(-1)), rows.name)
    return rows.op("GatherElements", wide, axis=len(rows.shape) - 2).name


@register_rule("LU")
def lu(tape: Tape, op: Op, gradient: Gradient, *of_places: Any) -> list[Gradient]:
    """For PA = LU of square A: Pᵀ·L⁻ᵀ(low of LᵀG strictly below, plus the rest of GUᵀ)U⁻ᵀ; other shapes have parts of their own."""
    if op.get("once"):
        op.refuse("the gradient of a determinant has no gradient of its own")
    if gradient is None:
        return [None]
    rows, columns = tape.fixed(op, op.outputs[0], [-2, -1])
    least = min(rows, columns)

    def leading(a: Matrix, axis: int) -> Matrix:
        return a if (rows, columns)[axis] == least else a.cut(axis, 0, least)

    packed, g = Matrix(tape, op.outputs[0]), Matrix.given(tape, gradient, op.outputs[0])
    left, right = leading(packed, -1), leading(packed, -2)
    ones = tape.constant(np.eye(rows, least, dtype=tape.real))
    low, u = left.triangle(BELOW, upper=False) + ones, right.triangle(upper=True)
    square_l, square_u, of_top = leading(low, -2), leading(u, -1), leading(g, -2)
    of_square = leading(of_top, -1)
    of_l, of_u = of_square.triangle(BELOW, upper=False), of_square.triangle(upper=True)
    below, above = square_l.T @ of_l, of_u @ square_u.T
    if columns > least:
        of_right = of_top.cut(-1, least, columns)
        below = below - of_right @ u.cut(-1, least, columns).T
    if rows > least:
        of_bottom = g.cut(-2, least, rows)
        above = above - low.cut(-2, least, rows).T @ of_bottom
    inner = below.triangle(BELOW, upper=False) + above.triangle(upper=True)
    if columns > least:  # [inner · U₁⁻ᵀ | G₂], then L⁻ᵀ in front of both
        inner = inner.over(square_u).joined(of_right, -1, columns)
    found = square_l.T.solved(inner, upper=True, unit=True)
    if rows > least:
        found = found.joined(of_bottom, -2, rows)
    return [in_first_order(found.over(square_u) if columns == least else found, op.outputs[2])]


@register_rule("Det")
def determinant(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """g·det(A)·A⁻ᵀ, by the factors of A; as in torch, a zero on the diagonal of U counts as the smallest number next to 1, less 1."""
    (a,), (y,) = op.inputs, op.outputs
    shape, size = tape.shape(a), tape.fixed(op, a, [-1])[0]
    packed, _, order = composite(tape, "LU", [a], [shape, shape[:-1], shape[:-1]], once=1)
    eye = np.eye(size)
    zero = tape.op("And", tape.op("Equal", packed, tape.number(0.0)), tape.constant(eye > 0))
    regular = Matrix(tape, tape.op("Where", zero, tape.number(float(np.finfo(tape.real).eps)), packed)).of_shape(shape)
    scale = tape.op("Unsqueeze", tape.op("Mul", gradient, y), tape.integers(-2, -1))
    turned = regular.T
    scaled = Matrix(tape, tape.op("Mul", scale, tape.constant(eye.astype(tape.real)))).of_shape(shape)
    inner = turned.solved(scaled, upper=False)
    return [in_first_order(turned.solved(inner, upper=True, unit=True), order)]


@register_rule("QR")
def qr(tape: Tape, op: Op, of_q: Gradient, of_r: Gradient) -> list[Gradient]:
    """(G + Q·M)·R⁻ᵀ, G the gradient of Q, and M symmetric with the upper triangle of (gradient of R)·Rᵀ − Qᵀ·G."""
    q, r = (Matrix(tape, name) for name in op.outputs)
    size = tape.fixed(op, r.name, [-1])[0]
    parts = [] if of_r is None else [Matrix.given(tape, of_r, r.name) @ r.T]
    g = None if of_q is None else Matrix.given(tape, of_q, q.name)
    if g is not None:
        parts.append(-(q.T @ g))
    high = (parts[0] if len(parts) == 1 else parts[0] + parts[1]).triangle(upper=True)
    off = tape.constant((1 - np.eye(size)).astype(tape.real))
    found = q @ (high + high.T * off)
    return [(found if g is None else g + found).over(r).name]


def _over_gaps(value: Matrix, numbers: str, size: int) -> Matrix:
    """Return entries (j, k) over nₖ − nⱼ, and zeros on the diagonal."""
    tape = value.tape
    rows, columns = (tape.op("Unsqueeze", numbers, tape.integers(axis)) for axis in (-1, -2))
    eye = np.eye(size).astype(tape.real)
    gaps = tape.op("Add", tape.op("Sub", columns, rows), tape.constant(eye))
    return value / gaps * tape.constant(1 - eye)


def _diagonal(tape: Tape, values: str, size: int, shape: Shape) -> Matrix:
    """Return diagonal matrices."""
    eye = tape.constant(np.eye(size).astype(tape.real))
    return Matrix(tape, tape.op("Mul", tape.op("Unsqueeze", values, tape.integers(-2)), eye)).of_shape(shape)


@register_rule("Eigh")
def eigh(tape: Tape, op: Op, of_values: Gradient, of_vectors: Gradient) -> list[Gradient]:
    """The symmetric part of V(diag(Gₗ) + VᵀGᵥ / (lₖ − lⱼ))Vᵀ, for eigenvalues l and eigenvectors V."""
    values, vectors = op.outputs[0], Matrix(tape, op.outputs[1])
    size = tape.fixed(op, vectors.name, [-1])[0]
    turned, parts = vectors.T, []
    if of_values is not None:
        parts.append(_diagonal(tape, of_values, size, vectors.shape))
    if of_vectors is not None:
        parts.append(_over_gaps(turned @ Matrix.given(tape, of_vectors, vectors.name), values, size))
    found = vectors @ (parts[0] if len(parts) == 1 else parts[0] + parts[1]) @ turned
    return [found.name if of_vectors is None else ((found + found.T) * 0.5).name]


@register_rule("SVD")
def svd(tape: Tape, op: Op, of_u: Gradient, of_s: Gradient, of_vh: Gradient) -> list[Gradient]:
    """U·M·Vᵀ, and for rectangular A the parts of Gᵤ and Gᵥ outside of the span of U and V, over S.

    M is diag(Gₛ) + skew(UᵀGᵤ)/E·S + S·skew(VᵀGᵥ)/E with skew(X) = X − Xᵀ and Eⱼₖ = sₖ² − sⱼ².
    """
    (u, vh), s = (Matrix(tape, name) for name in op.outputs[::2]), op.outputs[1]
    size = tape.fixed(op, u.name, [-1])[0]
    v, turned = vh.T, u.T
    shape = (turned @ u).shape
    squares = tape.op("Mul", s, s)
    parts, beside = [], []

    def numbers(axis: int) -> str:
        return tape.op("Unsqueeze", s, tape.integers(axis))

    if of_s is not None:
        parts.append(_diagonal(tape, of_s, size, shape))
    if of_u is not None:
        g = Matrix.given(tape, of_u, u.name)
        along = turned @ g
        parts.append(_over_gaps(along - along.T, squares, size) * numbers(-2))
        beside.append((g - u @ along) / numbers(-2) @ vh)
    if of_vh is not None:
        g = Matrix.given(tape, of_vh, vh.name).T
        along = vh @ g
        parts.append(_over_gaps(along - along.T, squares, size) * numbers(-1))
        beside.append(u @ ((g - v @ along).T / numbers(-1)))
    inner = parts[0] if len(parts) == 1 else parts[0].op("Sum" if len(parts) > 2 else "Add", *parts[1:])
    found = u @ inner @ vh
    return [(found.op("Sum", *beside) if beside else found).name]


@register_rule("PInv")
def pseudo_inverse(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For P of A, G and K = GᵀP: −(PK)ᵀ + KPᵀ − AP·KPᵀ + PᵀP·(Gᵀ − KA); if A has more rows than columns, of Aᵀ."""
    a, p, g = Matrix(tape, op.inputs[0]), Matrix(tape, op.outputs[0]), Matrix.given(tape, gradient, op.outputs[0])
    rows, columns = tape.fixed(op, a.name, [-2, -1])
    if rows > columns:
        a, p, g = a.T, p.T, g.T
    g, across = g.T, p.T
    k = g @ p
    first = (p @ k).T
    second = k @ across
    third = a @ p @ second
    fourth = across @ p @ (g - k @ a)
    found = second + fourth - (first + third)
    return [(found.T if rows > columns else found).name, None, None]
