"""Gradients of trigonometric, hyperbolic and special functions. In docstrings, g is the gradient of the output y."""

import math
from typing import Any

import numpy as np

from edgefl.onnxgrad.gradients.formula import Formula, register_slopes
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape, composite


def _special(kind: str, x: Formula, **attributes: Any) -> Formula:
    """Return a function of one value at a time that ONNX has no operator for."""
    return Formula(x.tape, composite(x.tape, kind, [x.name], [x.tape.shape(x.name)], **attributes)[0])


def _log_ndtr(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """Return g·φ(x)/Φ(x) as g·√(2/π) / erfcx(−x/√2), which has no difference of large numbers."""
    turned = x * -math.sqrt(0.5)
    x.tape.shapes[turned.name] = x.tape.shape(x.name)
    return g * (math.sqrt(2 / math.pi) / _special("Erfcx", turned))


def _bessel_i(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """With the other order's function z: g·z for I₀, and g·(z − y/x) for I₁, ½ at 0; scaled by exp(−|x|) also − sign(x)·y."""
    slope = _special("BesselI", x, order=1 - op.get("order"), scaled=op.get("scaled"))
    if op.get("scaled"):
        slope = slope - x.op("Sign") * y
    if op.get("order"):
        tiny = x.abs().op("LessOrEqual", float(np.finfo(x.tape.real).eps))
        safe = tiny.where(1.0, x)
        slope = tiny.where(0.5, slope - y / safe)
    return g * slope


register_slopes(
    {
        "Tan": lambda op, x, y, g: g * (1 + y * y),
        "Sinh": lambda op, x, y, g: g * x.op("Cosh"),
        "Cosh": lambda op, x, y, g: g * x.op("Sinh"),
        "Asin": lambda op, x, y, g: g / (1 - x * x).sqrt(),
        "Acos": lambda op, x, y, g: -(g / (1 - x * x).sqrt()),
        "Asinh": lambda op, x, y, g: g / (1 + x * x).sqrt(),
        "Acosh": lambda op, x, y, g: g / (x * x - 1).sqrt(),
        "Atanh": lambda op, x, y, g: g / (1 - x * x),
        "Lgamma": lambda op, x, y, g: g * _special("Polygamma", x, order=0),
        "Polygamma": lambda op, x, y, g: g * _special("Polygamma", x, order=op.get("order") + 1),
        # The inverse of a distribution function: one over the density at its result.
        "Erfinv": lambda op, x, y, g: g * ((y * y * 1.0).exp() * (math.sqrt(math.pi) / 2)),
        "Ndtri": lambda op, x, y, g: g * ((y * y * 0.5).exp() * math.sqrt(2 * math.pi)),
        "Erfcx": lambda op, x, y, g: g * (x * y * 2 - 2 / math.sqrt(math.pi)),
        "LogNdtr": _log_ndtr,
        "BesselI": _bessel_i,
    }
)


@register_rule("Hypot")
def hypot(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = √(a² + b²): g·a/y and g·b/y, which is NaN where both are 0, as in torch."""
    share = [tape.op("Mul", gradient, tape.op("Div", name, op.outputs[0])) if tape.needs(name) else None for name in op.inputs]
    return [part and tape.unbroadcast(part, name, op.outputs[0]) for part, name in zip(share, op.inputs, strict=True)]
