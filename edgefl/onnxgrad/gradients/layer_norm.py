"""Gradients of LayerNormalization and LpNormalization."""

from __future__ import annotations

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.normalization import EPSILON
from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, prepared, put, register_rule


@prepared("LayerNormalization")
def with_statistics(tape: Tape, op: Op) -> None:
    """Ask for the mean and 1/deviation too, which the gradient is computed with; they are float32 whatever the rest is."""
    names = list(op.outputs)
    if tape.real == np.float32:
        names = [name or tape.fresh("layer") for name in (*op.outputs, "", "")[:3]]
        shape = tape.shape(op.inputs[0])
        axis = op.get("axis", -1) % len(shape)
        tape.shapes |= {name: (*shape[:axis], *[1] * (len(shape) - axis)) for name in names[1:]}
    tape.nodes.append(onnx.helper.make_node("LayerNormalization", op.inputs, names, name=op.name, **op.attributes))


@register_rule("LayerNormalization")
def layer_normalization(
    tape: Tape, op: Op, gradient: Gradient, of_mean: Gradient = None, of_inverse: Gradient = None
) -> list[Gradient]:
    """For y = w·z + b with z = (x − mean)·r: with h = g·w, ∂x = r(h − mean of h − z · mean of h·z)."""
    if of_mean is not None or of_inverse is not None or gradient is None:
        op.refuse("its mean and deviation have no gradient; only its first output may be used")
    (x, w), b = op.inputs[:2], op.input(2)
    shape = tape.shape(x)
    axes = list(range(op.get("axis", -1) % len(shape), len(shape)))
    known = tape.known(w)
    plain = known is not None and bool((known == 1).all()) and b is None
    mean, inverse = op.outputs[1:3] if len(op.outputs) == 3 else _statistics(tape, x, axes, op.get("epsilon", EPSILON))
    z = op.outputs[0] if plain else tape.op("Mul", tape.op("Sub", x, mean), inverse)
    matched = tape.op("Mul", gradient, z)
    of_x = None
    if tape.needs(x):
        h, hz = (gradient, matched) if plain else (tape.op("Mul", gradient, w), tape.op("Mul", matched, w))
        means = [tape.op("ReduceMean", value, tape.integers(*axes), keepdims=1) for value in (h, hz)]
        rest = tape.op("Sub", tape.op("Sub", h, means[0]), tape.op("Mul", z, means[1]))
        of_x = tape.op("Mul", rest, inverse)
    found = [
        of_x,
        tape.unbroadcast(matched, w, op.outputs[0]) if tape.needs(w) else None,
        tape.unbroadcast(gradient, b, op.outputs[0]) if b is not None and tape.needs(b) else None,
    ]
    return found[: len(op.inputs)]


def _statistics(tape: Tape, x: str, axes: list[int], epsilon: float) -> tuple[str, str]:
    """Return mean and 1/deviation along ``axes``, written out."""
    mean = tape.op("ReduceMean", x, tape.integers(*axes), keepdims=1)
    apart = tape.op("Sub", x, mean)
    variance = tape.op("ReduceMean", tape.op("Mul", apart, apart), tape.integers(*axes), keepdims=1)
    return mean, tape.op("Reciprocal", tape.op("Sqrt", tape.op("Add", variance, tape.number(epsilon))))


@prepared("LpNormalization")
def lp_normalization(tape: Tape, op: Op) -> None:
    """Written out: x / ‖x‖."""
    (x,), (out,), shape = op.inputs, op.outputs, list(tape.shape(op.inputs[0]))
    axis = op.get("axis", -1) % len(shape)
    shape[axis] = 1
    norm = put(tape, tuple(shape), f"ReduceL{op.get('p', 2)}", x, tape.integers(axis), keepdims=1)
    tape.op("Div", x, norm, out=out)
