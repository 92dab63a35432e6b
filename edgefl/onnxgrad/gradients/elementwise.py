"""Gradients of arithmetic on every entry, with broadcasting undone."""

from __future__ import annotations

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.tape import Gradient, Op, Slope, Tape, register_rule, register_slopes

_SLOPES: dict[str, Slope] = {
    "Identity": lambda tape, op, g: g,
    "Neg": lambda tape, op, g: tape.op("Neg", g),
    "Abs": lambda tape, op, g: tape.op("Mul", g, tape.op("Sign", op.inputs[0])),  # 0 at 0, as in torch
    "Reciprocal": lambda tape, op, g: tape.op("Neg", tape.op("Mul", g, tape.op("Mul", op.outputs[0], op.outputs[0]))),
    "Sqrt": lambda tape, op, g: tape.op("Mul", g, tape.op("Div", tape.number(0.5), op.outputs[0])),
    "Exp": lambda tape, op, g: tape.op("Mul", g, op.outputs[0]),
    "Log": lambda tape, op, g: tape.op("Div", g, op.inputs[0]),
    "Sin": lambda tape, op, g: tape.op("Mul", g, tape.op("Cos", op.inputs[0])),
    "Cos": lambda tape, op, g: tape.op("Neg", tape.op("Mul", g, tape.op("Sin", op.inputs[0]))),
}
register_slopes(_SLOPES)


@register_rule("Cast")
def cast(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The same between types of real numbers, of which graphs have one; integers and truth values have no slope."""
    return [gradient if onnx.helper.tensor_dtype_to_np_dtype(op.get("to")).kind == "f" else None]


@register_rule("Add", "Sum")
def add(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of a sum: to every operand."""
    return [tape.unbroadcast(gradient, name, op.outputs[0]) if tape.needs(name) else None for name in op.inputs]


@register_rule("Sub")
def sub(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of a − b: 1 and −1."""
    a, b = op.inputs
    return [
        tape.unbroadcast(gradient, a, op.outputs[0]) if tape.needs(a) else None,
        tape.op("Neg", tape.unbroadcast(gradient, b, op.outputs[0])) if tape.needs(b) else None,
    ]


@register_rule("Mul")
def mul(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of a · b: b and a."""
    a, b = op.inputs
    return [_of_product(tape, op, gradient, a, b), _of_product(tape, op, gradient, b, a)]


def _of_product(tape: Tape, op: Op, gradient: str, own: str, other: str) -> Gradient:
    return tape.unbroadcast(tape.op("Mul", gradient, other), own, op.outputs[0]) if tape.needs(own) else None


@register_rule("Div")
def div(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of q = a / b: 1/b and −q/b."""
    a, b = op.inputs
    share = tape.op("Div", gradient, b)
    return [
        tape.unbroadcast(share, a, op.outputs[0]) if tape.needs(a) else None,
        tape.op("Neg", tape.unbroadcast(tape.op("Mul", share, op.outputs[0]), b, op.outputs[0])) if tape.needs(b) else None,
    ]


@register_rule("Pow")
def power(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Of xⁿ with a constant n: n·xⁿ⁻¹."""
    x, exponent = op.inputs
    known = tape.known(exponent)
    if known is None or known.size != 1:
        op.refuse("its exponent must be one constant")
    n = float(known.reshape(()))
    if n == 1:
        return [gradient, None]
    lower = x if n == 2 else tape.op("Pow", x, tape.number(n - 1))
    return [tape.op("Mul", gradient, tape.op("Mul", tape.number(n), lower)), None]


@register_rule("Where")
def where(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Each entry's gradient goes to whichever operand it came from."""
    condition, a, b = op.inputs
    zero = tape.number(0.0)
    return [
        None,
        tape.unbroadcast(tape.op("Where", condition, gradient, zero), a, op.outputs[0]) if tape.needs(a) else None,
        tape.unbroadcast(tape.op("Where", condition, zero, gradient), b, op.outputs[0]) if tape.needs(b) else None,
    ]


@register_rule("Min", "Max")
def extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient goes to the operand that was taken; where several are equal, in equal parts, as in torch."""
    zero, (taken,) = tape.number(0.0), op.outputs
    hits = [tape.op("Where", tape.op("Equal", name, taken), tape.number(1.0), zero) for name in op.inputs]
    share = tape.op("Div", gradient, tape.total(hits))
    parts = zip(op.inputs, hits, strict=True)
    return [tape.unbroadcast(tape.op("Mul", share, hit), name, taken) if tape.needs(name) else None for name, hit in parts]


@register_rule("Clip")
def clip(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """1 inside the bounds, them included, 0 outside."""
    x = op.inputs[0]
    for bound, outside in ((op.input(1), "Less"), (op.input(2), "Greater")):
        if bound is not None:
            gradient = tape.op("Where", tape.op(outside, x, bound), tape.number(0.0), gradient)
    return [gradient, None, None]


@register_rule("Dropout")
def dropout(tape: Tape, op: Op, gradient: str, of_mask: Gradient = None) -> list[Gradient]:
    """What was kept counts 1/(1 − ratio); without a mask in use it is the identity."""
    training = tape.known(op.input(2))
    if training is None or not bool(np.asarray(training).all()):
        return [gradient, None, None]
    if len(op.outputs) < 2:
        op.refuse("in training mode its mask must be an output")
    ratio = tape.known(op.input(1))
    scale = 1.0 / (1.0 - (0.5 if ratio is None else float(ratio.reshape(()))))
    return [tape.op("Where", op.outputs[1], tape.op("Mul", gradient, tape.number(scale)), tape.number(0.0)), None, None]
