"""Gradients of arithmetic and activations. In docstrings, g is the gradient of the output."""

import math

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.formula import Formula, register_slopes
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""ONNX's default attributes."""


@register_rule("Cast")
def cast(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g, if the output is of floating-point type; integers and booleans have no gradient."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(op.get("to"))
    if kind.kind in "iub":
        return [None]
    if kind != tape.real:
        op.refuse(f"its result has type {kind}, gradients have {tape.real}; leave out .double(), .half() or .bfloat16()")
    return [gradient]


@register_rule("Add", "Sum")
def add(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = a + b + …: g for every operand."""
    return [tape.unbroadcast(gradient, name, op.outputs[0]) if tape.needs(name) else None for name in op.inputs]


@register_rule("Sub")
def sub(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = a − b: g and −g."""
    a, b = op.inputs
    return [
        tape.unbroadcast(gradient, a, op.outputs[0]) if tape.needs(a) else None,
        tape.op("Neg", tape.unbroadcast(gradient, b, op.outputs[0])) if tape.needs(b) else None,
    ]


@register_rule("Mul")
def mul(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = a·b: g·b and g·a."""
    a, b = op.inputs
    pairs = ((a, b), (b, a))
    return [tape.unbroadcast(tape.op("Mul", gradient, n), own, op.outputs[0]) if tape.needs(own) else None for own, n in pairs]


@register_rule("Div")
def div(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = a/b: g/b and −g·y/b."""
    a, b = op.inputs
    share = tape.op("Div", gradient, b)
    return [
        tape.unbroadcast(share, a, op.outputs[0]) if tape.needs(a) else None,
        tape.op("Neg", tape.unbroadcast(tape.op("Mul", share, op.outputs[0]), b, op.outputs[0])) if tape.needs(b) else None,
    ]


@register_rule("Pow")
def power(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = xⁿ: g·n·xⁿ⁻¹, which is 0 where n is 0, and g·y·log x, which is 0 where x is 0."""
    x, exponent = op.inputs
    of_x = of_exponent = None
    if tape.needs(x):
        known = tape.known(exponent)
        if known is not None and known.size == 1:
            n = float(known.reshape(()))
            if n in (0, 1):
                return [gradient if n else None, None]
            factor, lower = tape.number(n), x if n == 2 else tape.op("Pow", x, tape.number(n - 1))
        else:
            factor, lower = exponent, tape.op("Pow", x, tape.op("Sub", exponent, tape.number(1.0)))
            if known is None or not known.all():  # 0·x⁻¹ would be NaN for x = 0
                lower = tape.op("Where", tape.op("Equal", exponent, tape.number(0.0)), tape.number(0.0), lower)
        of_x = tape.unbroadcast(tape.op("Mul", gradient, tape.op("Mul", factor, lower)), x, op.outputs[0])
    if tape.needs(exponent):
        zero = tape.number(0.0)
        slope = tape.op("Where", tape.op("Equal", x, zero), zero, tape.op("Mul", op.outputs[0], tape.op("Log", x)))
        of_exponent = tape.unbroadcast(tape.op("Mul", gradient, slope), exponent, op.outputs[0])
    return [of_x, of_exponent]


@register_rule("Mod")
def remainder(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = a − n·b with the whole number n = ⌊a/b⌋, rounded to 0 in place of down with fmod: g and −g·n."""
    a, b = op.inputs
    of_b = None
    if tape.needs(b):
        times = tape.op("Round", tape.op("Div", tape.op("Sub", a, op.outputs[0]), b))
        of_b = tape.op("Neg", tape.unbroadcast(tape.op("Mul", gradient, times), b, op.outputs[0]))
    return [tape.unbroadcast(gradient, a, op.outputs[0]) if tape.needs(a) else None, of_b]


@register_rule("Where")
def where(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient g of each entry goes to the operand that the entry came from."""
    condition, a, b = op.inputs
    zero = tape.number(0.0)
    return [
        None,
        tape.unbroadcast(tape.op("Where", condition, gradient, zero), a, op.outputs[0]) if tape.needs(a) else None,
        tape.unbroadcast(tape.op("Where", condition, zero, gradient), b, op.outputs[0]) if tape.needs(b) else None,
    ]


@register_rule("Min", "Max")
def extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient g goes to the operand that is the extreme; several equal operands share it equally, as in torch."""
    zero, (taken,) = tape.number(0.0), op.outputs
    hits = [tape.op("Equal", name, taken) for name in op.inputs]
    share = tape.op("Div", gradient, tape.total([tape.op("Cast", hit, to=tape.element_type) for hit in hits]))
    parts = zip(op.inputs, hits, strict=True)
    return [
        tape.unbroadcast(tape.op("Where", hit, share, zero), name, taken) if tape.needs(name) else None for name, hit in parts
    ]


@register_rule("Clip")
def clip(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g inside the bounds and on them, 0 outside."""
    x = op.inputs[0]
    for bound, outside in ((op.input(1), "Less"), (op.input(2), "Greater")):
        if bound is not None:
            gradient = tape.op("Where", tape.op(outside, x, bound), tape.number(0.0), gradient)
    return [gradient, None, None]


@register_rule("Dropout")
def dropout(tape: Tape, op: Op, gradient: str, of_mask: Gradient = None) -> list[Gradient]:
    """Return g/(1 − ratio) for kept entries, 0 for dropped ones; outside of training, g."""
    training = tape.known(op.input(2))
    if training is None or not bool(np.asarray(training).all()):
        return [gradient, None, None]
    if len(op.outputs) < 2:
        op.refuse("in training mode its mask must be an output")
    ratio = tape.known(op.input(1))
    scale = 1.0 / (1.0 - (0.5 if ratio is None else float(ratio.reshape(()))))
    return [tape.op("Where", op.outputs[1], tape.op("Mul", gradient, tape.number(scale)), tape.number(0.0)), None, None]


def _where_positive(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g where y = max(x, 0) is not 0, else 0, by a cast to bool and back: a third faster than Where, but 0·∞ would be NaN."""
    positive = tape.op("Cast", op.outputs[0], to=onnx.TensorProto.BOOL)
    if tape.unbounded:
        return [tape.op("Where", positive, gradient, tape.number(0.0))]
    return [tape.op("Mul", gradient, tape.op("Cast", positive, to=tape.element_type))]


register_rule("Relu")(_where_positive)


@register_rule("PRelu")
def p_relu(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = x where x > 0, else s·x: g or g·s for x; g·min(x, 0) for s."""
    x, slope, g = (Formula(tape, name) for name in (*op.inputs, gradient))
    below = g * slope
    found = (g * x.op("Min", 0.0)).name if tape.needs(slope.name) else None
    return [_above(x, g, below).name, found and tape.unbroadcast(found, slope.name, op.outputs[0])]


def _inside(value: Formula) -> Formula:
    """Return a bool value: 0 < ``value`` < 1."""
    return (value > 0).op("And", value < 1)


def _above(x: Formula, gradient: Formula, below: Formula) -> Formula:
    """Return ``gradient`` where ``x`` is positive, elsewhere ``below``."""
    return (x > 0).where(gradient, below)


def _selu(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """For x < 0: y = γα(eˣ − 1), with the slope y + γα; else γ."""
    gamma, alpha = op.get("gamma", SELU_GAMMA), op.get("alpha", SELU_ALPHA)
    return _above(x, g * gamma, g * (y + gamma * alpha))


def _mish(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """For y = x·t with t = tanh(log(1 + eˣ)): g·(t + x·(1 − t²)·sigmoid(x))."""
    t = x.op("Softplus").op("Tanh")
    return g * (t + x * x.op("Sigmoid") * (1 - t * t))


def _hard_swish(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """For y = x·h with h = clip(x/6 + 1/2, 0, 1): g·(h + x/6) where 0 < h < 1, elsewhere g·h."""
    h = x.op("HardSigmoid", alpha=1 / 6, beta=0.5)
    return g * (h + _inside(h).where(x * (1 / 6), 0))


def _gelu(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """For y = x·Φ(x), Φ the normal distribution with density φ: g·(Φ(x) + x·φ(x)); with approximate="tanh" the derivative of that."""
    if op.get("approximate", "none") == "tanh":
        return g * _tanh_slope(x)
    below = (x * math.sqrt(0.5)).op("Erf") + 1
    dense = x * (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return g * (below * 0.5 + dense)


def _tanh_slope(x: Formula) -> Formula:
    """Return the derivative of ½x(1 + tanh(c(x + 0.044715x³))), c = √(2/π)."""
    c = math.sqrt(2 / math.pi)
    square = x * x
    y = (x * (square * (0.044715 * c) + c)).op("Tanh")
    inner_slope = square * (3 * 0.044715 * c) + c
    rise = x * (1 - y * y) * inner_slope
    return (y + 1 + rise) * 0.5


def _log_softmax(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """Return g − softmax(x)·Σ g, summed along the axis."""
    total = g.reduced("Sum", op.get("axis", -1))
    return g - y.exp() * total


register_slopes(
    {
        "Identity": lambda op, x, y, g: g,
        "Neg": lambda op, x, y, g: -g,
        "Abs": lambda op, x, y, g: g * x.op("Sign"),  # 0 at 0, as in torch
        "Reciprocal": lambda op, x, y, g: -(g * (y * y)),
        "Sqrt": lambda op, x, y, g: g * (0.5 / y),
        "Exp": lambda op, x, y, g: g * y,
        "Log": lambda op, x, y, g: g / x,
        "Sin": lambda op, x, y, g: g * x.op("Cos"),
        "Cos": lambda op, x, y, g: -(g * x.op("Sin")),
        "Atan": lambda op, x, y, g: g / (x * x + 1),
        "Tanh": lambda op, x, y, g: g - g * y * y,
        **dict.fromkeys(("Sigmoid", "ExactSigmoid"), lambda op, x, y, g: g * (y - y * y)),
        "Softplus": lambda op, x, y, g: g * x.op("Sigmoid"),
        "HardSigmoid": lambda op, x, y, g: _inside(y).where(g * op.get("alpha", 0.2), 0),
        "Erf": lambda op, x, y, g: g * ((-(x * x)).exp() * (2 / math.sqrt(math.pi))),
        "Softmax": lambda op, x, y, g: y * (g - (g * y).reduced("Sum", op.get("axis", -1))),
        "LogSoftmax": _log_softmax,
        "LeakyRelu": lambda op, x, y, g: _above(x, g, g * op.get("alpha", 0.01)),
        # For x < 0: y = α(eˣ − 1), with the slope y + α.
        "Elu": lambda op, x, y, g: _above(x, g, g * (y + op.get("alpha", 1.0))),
        # For x < 0: y = α(exp(x/α) − 1), with the slope y/α + 1.
        "Celu": lambda op, x, y, g: _above(x, g, g * (y * (1 / op.get("alpha", 1.0)) + 1)),
        "Selu": _selu,
        "Mish": _mish,
        "HardSwish": _hard_swish,
        "Gelu": _gelu,
    }
)
