"""Gradients of trigonometric, hyperbolic and special functions. In docstrings, g is the gradient of the output y."""

import math
from typing import Any

import numpy as np

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule, register_slopes
from edgefl.onnxgrad.gradients.tape import Tape, composite, put


def _with_square(tape: Tape, value: str, sign: str) -> str:
    """Return 1 + v² or 1 − v²."""
    return tape.op(sign, tape.number(1.0), tape.op("Mul", value, value))


def _over_root(tape: Tape, op: Op, gradient: str, sign: str) -> str:
    return tape.op("Div", gradient, tape.op("Sqrt", _with_square(tape, op.inputs[0], sign)))


register_slopes(
    {
        "Tan": lambda tape, op, g: tape.op("Mul", g, _with_square(tape, op.outputs[0], "Add")),
        "Sinh": lambda tape, op, g: tape.op("Mul", g, tape.op("Cosh", op.inputs[0])),
        "Cosh": lambda tape, op, g: tape.op("Mul", g, tape.op("Sinh", op.inputs[0])),
        "Asin": lambda tape, op, g: _over_root(tape, op, g, "Sub"),
        "Acos": lambda tape, op, g: tape.op("Neg", _over_root(tape, op, g, "Sub")),
        "Asinh": lambda tape, op, g: _over_root(tape, op, g, "Add"),
        "Atanh": lambda tape, op, g: tape.op("Div", g, _with_square(tape, op.inputs[0], "Sub")),
    }
)


def _special(tape: Tape, kind: str, x: str, **attributes: Any) -> str:
    """Append a function of one value at a time that ONNX has no operator for."""
    return composite(tape, kind, [x], [tape.shape(x)], **attributes)[0]


def _polygamma(tape: Tape, op: Op, gradient: str) -> str:
    """Return g·ψₙ₊₁(x)."""
    return tape.op("Mul", gradient, _special(tape, "Polygamma", op.inputs[0], order=op.get("order") + 1))


def _inverse_slope(tape: Tape, gradient: str, y: str, factor: float, share: float) -> str:
    """Return g·factor·exp(share·y²), the slope of the inverse of a distribution function at its result y."""
    bell = tape.op("Exp", tape.op("Mul", tape.op("Mul", y, y), tape.number(share)))
    return str(tape.op("Mul", gradient, tape.op("Mul", bell, tape.number(factor))))


def _erfcx(tape: Tape, op: Op, gradient: str) -> str:
    """Return g·(2xy − 2/√π)."""
    slope = tape.op("Mul", tape.op("Mul", op.inputs[0], op.outputs[0]), tape.number(2.0))
    return tape.op("Mul", gradient, tape.op("Sub", slope, tape.number(2 / math.sqrt(math.pi))))


def _log_ndtr(tape: Tape, op: Op, gradient: str) -> str:
    """Return g·φ(x)/Φ(x) as g·√(2/π) / erfcx(−x/√2), which has no difference of large numbers."""
    below = _special(tape, "Erfcx", put(tape, tape.shape(op.inputs[0]), "Mul", op.inputs[0], tape.number(-math.sqrt(0.5))))
    return tape.op("Mul", gradient, tape.op("Div", tape.number(math.sqrt(2 / math.pi)), below))


def _acosh(tape: Tape, op: Op, gradient: str) -> str:
    """Return g / √(x² − 1)."""
    x = op.inputs[0]
    return tape.op("Div", gradient, tape.op("Sqrt", tape.op("Sub", tape.op("Mul", x, x), tape.number(1.0))))


register_slopes(
    {
        "Acosh": _acosh,
        "Lgamma": lambda tape, op, g: tape.op("Mul", g, _special(tape, "Polygamma", op.inputs[0], order=0)),
        "Polygamma": _polygamma,
        "Erfinv": lambda tape, op, g: _inverse_slope(tape, g, op.outputs[0], math.sqrt(math.pi) / 2, 1.0),
        "Ndtri": lambda tape, op, g: _inverse_slope(tape, g, op.outputs[0], math.sqrt(2 * math.pi), 0.5),
        "Erfcx": _erfcx,
        "LogNdtr": _log_ndtr,
    }
)


@register_rule("BesselI")
def bessel_i(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """With the other order's function z: g·z for I₀, and g·(z − y/x) for I₁, ½ at 0; scaled by exp(−|x|) also − sign(x)·y."""
    (x,), (y,), order, scaled = op.inputs, op.outputs, op.get("order"), op.get("scaled")
    slope = _special(tape, "BesselI", x, order=1 - order, scaled=scaled)
    if scaled:
        slope = tape.op("Sub", slope, tape.op("Mul", tape.op("Sign", x), y))
    if order:
        tiny = tape.op("LessOrEqual", tape.op("Abs", x), tape.number(float(np.finfo(tape.real).eps)))
        safe = tape.op("Where", tiny, tape.number(1.0), x)
        slope = tape.op("Where", tiny, tape.number(0.5), tape.op("Sub", slope, tape.op("Div", y, safe)))
    return [tape.op("Mul", gradient, slope)]


@register_rule("Hypot")
def hypot(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = √(a² + b²): g·a/y and g·b/y, which is NaN where both are 0, as in torch."""
    share = [tape.op("Mul", gradient, tape.op("Div", name, op.outputs[0])) if tape.needs(name) else None for name in op.inputs]
    return [part and tape.unbroadcast(part, name, op.outputs[0]) for part, name in zip(share, op.inputs, strict=True)]
