"""The logarithm of the gamma function and its derivatives, by Stirling's series after a shift of the argument, and by reflection.

The computation is in float64, in which the differences of large terms near zeros of the functions keep all digits of float32.
"""

import math
from typing import Any

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

_BERNOULLI = 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730
"""The Bernoulli numbers B₂, B₄, …"""
_SHIFT = 7
"""Stirling's series is used from here on."""
_LARGEST = 1e300
HIGHEST_ORDER = 16
"""The derivatives of higher order than this overflow float32 for nearly all arguments."""


@form("Lgamma")
def lgamma(tape: Tape, op: Op) -> None:
    """For x > 0, log Γ(x) = log Γ(x + n) − log x(x + 1)…; else log |Γ(x)| = log |π / (x sin πx)| − log Γ(−x)."""
    x = Formula.of(tape, op.inputs[0])
    size = x.abs()
    product: Any = size
    for step in range(1, _SHIFT):
        product = product * (size + step)
    y = size + _SHIFT
    over = 1 / y
    series = (over * over).polynomial([b / ((2 * j) * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1)]) * over
    positive = (y - 0.5) * y.log() - y + (math.log(2 * math.pi) / 2 + series) - product.log()
    beside = x - x.op("Round")
    negative = (math.pi / (size * (math.pi * beside).op("Sin").abs())).log() - positive
    found = (x < 0).where(negative, positive)
    (size > _LARGEST).where(math.inf, found).result(op.outputs[0])


@form("Polygamma")
def polygamma(tape: Tape, op: Op) -> None:
    """The derivative ψₙ of order n + 1 of log Γ; for x < 0 by ψₙ(x) = (−1)ⁿ ψₙ(1 − x) − (π cot πx)⁽ⁿ⁾."""
    order = int(op.get("order"))
    x = Formula.of(tape, op.inputs[0])
    below = x < 0
    positive = _of_positive(below.where(1 - x, x.abs() if order else x), order)  # torch tells 0 from −0 in ψ alone
    beside = x - x.op("Round")
    angle = math.pi * beside
    cotangent = angle.op("Cos") / angle.op("Sin")  # onnxruntime has no tangent in float64
    mirrored = -positive if order % 2 else positive
    negative = mirrored - cotangent.polynomial(_derivative_of_cotangent(order))
    if order == 0:  # as torch, whose other derivatives are infinite there
        negative = beside.op("Equal", 0.0).where(math.nan, negative)
    below.where(negative, positive).result(op.outputs[0])


def _of_positive(x: Formula, order: int) -> Formula:
    """Return ψ for x ≥ 0: the terms of x, x + 1, …, and the series of Euler and Maclaurin for the rest."""
    shift, power = _SHIFT + order, order + 1
    terms = [1 / (x + step if step else x) for step in range(shift)]
    head = sum((_power(term, power) for term in terms[1:]), _power(terms[0], power))
    y = x + shift
    over = 1 / y
    squares = over * over
    if order == 0:
        series = squares.polynomial([b / (2 * j) for j, b in enumerate(_BERNOULLI, 1)]) * squares
        return y.log() - over * 0.5 - series - head
    rising = [math.prod(range(power, power + 2 * j - 1)) / math.factorial(2 * j) for j in range(1, len(_BERNOULLI) + 1)]
    series = squares.polynomial([b * factor for b, factor in zip(_BERNOULLI, rising, strict=True)]) * squares
    rest = _power(over, order) * (1 / order + over * 0.5 + series)
    return (head + rest) * (math.factorial(order) * (-1 if order % 2 == 0 else 1))


def _power(x: Formula, exponent: int) -> Formula:
    return x if exponent == 1 else x.op("Pow", exponent)


def _derivative_of_cotangent(order: int) -> list[float]:
    """Return the polynomial in cot πx, lowest power first, that is the derivative of π cot πx."""
    found = [0.0, math.pi]
    for _ in range(order):  # the derivative of cⁿ is −π n cⁿ⁻¹ (1 + c²)
        slope = [-math.pi * power * factor for power, factor in enumerate(found)][1:]
        found = [a + b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    return found
