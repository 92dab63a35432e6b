"""Gradients of BatchNormalization, LayerNormalization and LpNormalization.

Normalization by batch statistics is written as one BatchNormalization in training mode, which returns mean and variance too. This is
several times faster than separate nodes. Momentum is 0, so that the returned statistics are those of the batch.
"""

from itertools import zip_longest

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.op import Gradient, Op, prepared, register_rule
from edgefl.onnxgrad.gradients.products import axes_of, share_of
from edgefl.onnxgrad.gradients.tape import Tape, channel_sum, made_by, put

EPSILON = 1e-5


@prepared("BatchNormalization")
def batch_statistics(tape: Tape, op: Op) -> None:
    """Put the node on the tape as it is, or in training mode if its mean and variance are computed from its own input."""
    x, w, b, mean, variance = op.inputs
    epsilon = op.get("epsilon", EPSILON)
    if op.get("training_mode", 0):
        if op.get("momentum", 0.9) == 0.0:
            normalised(tape, x, w, b, epsilon, *op.outputs)
        else:
            _put_running(tape, op, normalised(tape, x, w, b, epsilon, op.outputs[0]))
    elif _measured_of(tape, x, mean, variance):
        normalised(tape, x, w, b, epsilon, op.outputs[0])
    else:
        tape.nodes.append(onnx.helper.make_node("BatchNormalization", op.inputs, op.outputs, name=op.name, epsilon=epsilon))


def normalised(tape: Tape, x: str, w: str, b: str, epsilon: float, *out: str) -> tuple[str, str, str]:
    """Normalise ``x`` (batch, channels, …) by the statistics of each channel; return result, mean and variance (over n).

    ``out`` has names for some or all of these; "" or a missing name is made up.
    """
    channels = tape.shape(x)[1]
    # With momentum 0 the running statistics have no effect, but onnxruntime overwrites them. It also merges equal constants and stores
    # them for the next step: one layer's statistics would reach other layers, and NaN would reach all later steps. So each node gets
    # computed inputs that no other node has.
    fresh = w if tape.known(w) is None else _first_values(tape, x)
    unused = [tape.op("Mul", fresh, tape.number(2.0 + len(tape.nodes) + i)) for i in range(2)]
    names = [name or tape.fresh(hint) for name, hint in zip_longest(out, ("normalised", "mean", "variance"))]
    tape.op("BatchNormalization", x, w, b, *unused, out=names, training_mode=1, momentum=0.0, epsilon=epsilon)
    tape.shapes |= {names[0]: tape.shape(x), names[1]: (channels,), names[2]: (channels,)}
    return names[0], names[1], names[2]


def _first_values(tape: Tape, x: str) -> str:
    """Return one entry of ``x`` for each channel: (channels)."""
    axes = [0, *range(2, len(tape.shape(x)))]
    zeros, ones = (tape.integers(*[at] * len(axes)) for at in (0, 1))
    return tape.op("Reshape", tape.op("Slice", x, zeros, ones, tape.integers(*axes)), tape.integers(-1))


def _put_running(tape: Tape, op: Op, own: tuple[str, str, str]) -> None:
    """Append the update of a node's running statistics: old · momentum + (batch statistics ``own``) · (1 − momentum)."""
    kept = op.get("momentum", 0.9)
    for old, new, out in zip(op.inputs[3:], own[1:], op.outputs[1:], strict=False):
        if out:
            shape = tape.shape(new)
            before = put(tape, shape, "Mul", old, tape.number(kept))
            now = put(tape, shape, "Mul", new, tape.number(1.0 - kept))
            tape.op("Add", before, now, out=out)
            tape.shapes[out] = shape


def _measured_of(tape: Tape, x: str, mean: str, variance: str) -> bool:
    """Whether ``mean`` and ``variance`` are those of each channel of ``x``, in the nodes that torch's exporter writes for them."""
    square = _mean_of(tape, variance, x)
    if square is None or _mean_of(tape, mean, x) != x:
        return False
    times = made_by(tape, square, "Mul")
    apart = made_by(tape, times.inputs[0], "Sub") if times and times.inputs[0] == times.inputs[1] else None
    return apart is not None and apart.inputs[0] == x and _mean_of(tape, apart.inputs[1], x) == x


def _mean_of(tape: Tape, value: str, x: str) -> str | None:
    """Return the name of the input of the mean over batch and map that ``value`` is; None if it is no such mean."""
    op = made_by(tape, value, "ReduceMean")
    rank = len(tape.shape(x))
    if op is None or op.inputs[0] not in tape.shapes or len(tape.shape(op.inputs[0])) != rank:
        return None
    return op.inputs[0] if sorted(axes_of(tape, op)) == [0, *range(2, rank)] else None


@register_rule("BatchNormalization")
def batch_normalization(
    tape: Tape, op: Op, gradient: Gradient, of_mean: Gradient = None, of_variance: Gradient = None
) -> list[Gradient]:
    """Differentiate y = w(x − mean)/s + b with s² = variance + ε. In training mode mean and variance are outputs, computed from x.

    With Σ over samples and places: ∂w = Σ g(x − mean)/s, ∂b = Σ g, ∂mean = −w/s Σ g, ∂variance = −w/(2s³) Σ g(x − mean), ∂x = g·w/s.
    Training mode adds ∂mean/n + 2(x − mean) ∂variance/n to ∂x, which is written as one more BatchNormalization.
    """
    x, w = op.inputs[:2]
    mean, variance = op.outputs[1:3] if op.get("training_mode", 0) else op.inputs[3:5]
    epsilon, shape = op.get("epsilon", EPSILON), tape.shape(x)
    s = tape.op("Sqrt", tape.op("Add", variance, tape.number(epsilon)))
    of_x = of_w = of_b = None
    if gradient is not None:
        of_b = channel_sum(tape, gradient, shape)
        apart = channel_sum(tape, tape.op("Mul", gradient, x), shape)
        of_w = tape.op("Div", tape.op("Sub", apart, tape.op("Mul", mean, of_b)), s)
        scale = tape.op("Div", w, s)
        of_x = tape.op("Mul", gradient, _column(tape, scale, len(shape))) if tape.needs(x) else None
        direct_mean = tape.op("Neg", tape.op("Mul", scale, of_b))
        half = tape.op("Mul", tape.op("Mul", tape.op("Div", scale, s), of_w), tape.number(-0.5))
        of_mean = direct_mean if of_mean is None else tape.op("Add", of_mean, direct_mean)
        of_variance = half if of_variance is None else tape.op("Add", of_variance, half)
    if not op.get("training_mode", 0):
        return [of_x, of_w, of_b, of_mean, of_variance]
    if tape.needs(x):
        share = share_of(tape, x, mean, (shape[0], *shape[2:]))
        zero = tape.op("Sub", mean, mean) if of_mean is None or of_variance is None else ""
        slope = tape.op("Mul", tape.op("Mul", of_variance, s), tape.op("Add", share, share)) if of_variance else zero
        shift = tape.op("Mul", of_mean, share) if of_mean else zero
        spread = tape.op("BatchNormalization", x, slope, shift, mean, variance, epsilon=epsilon)
        of_x = spread if of_x is None else tape.op("Add", of_x, spread)
    return [of_x, of_w, of_b, None, None]


def _column(tape: Tape, values: str, rank: int) -> str:
    """Return ``values`` (channels) in the shape (channels, 1, …), which broadcasts with (batch, channels, …)."""
    return values if rank == 2 else tape.op("Reshape", values, tape.integers(-1, *[1] * (rank - 2)))


@prepared("LayerNormalization")
def with_statistics(tape: Tape, op: Op) -> None:
    """Add the outputs mean and 1/deviation, which the gradient needs. They are always float32, so not for float64 graphs."""
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
    """For y = w·z + b with z = (x − mean)·r, r = 1/deviation. With h = g·w: ∂x = r(h − mean(h) − z·mean(h·z))."""
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
    """Append mean and 1/deviation along ``axes``, and return them."""
    mean = tape.op("ReduceMean", x, tape.integers(*axes), keepdims=1)
    apart = tape.op("Sub", x, mean)
    variance = tape.op("ReduceMean", tape.op("Mul", apart, apart), tape.integers(*axes), keepdims=1)
    return mean, tape.op("Reciprocal", tape.op("Sqrt", tape.op("Add", variance, tape.number(epsilon))))


@prepared("LpNormalization")
def lp_normalization(tape: Tape, op: Op) -> None:
    """Write it as x / ‖x‖."""
    (x,), (out,), shape = op.inputs, op.outputs, list(tape.shape(op.inputs[0]))
    axis = op.get("axis", -1) % len(shape)
    shape[axis] = 1
    norm = put(tape, tuple(shape), f"ReduceL{op.get('p', 2)}", x, tape.integers(axis), keepdims=1)
    tape.op("Div", x, norm, out=out)
