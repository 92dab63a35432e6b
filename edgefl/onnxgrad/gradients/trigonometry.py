"""Gradients of trigonometric and hyperbolic functions: g times the slope at the input x or the output y."""

from edgefl.onnxgrad.gradients.op import Op, register_slopes
from edgefl.onnxgrad.gradients.tape import Tape


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
