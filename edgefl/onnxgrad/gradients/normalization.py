"""Gradients of normalizations; those by channel are brought to BatchNormalization.

With batch statistics the operator in training mode is several times faster than the means written out: it is one node that returns
mean and variance too. Its momentum is set to 0, so that these are the batch's own.
"""

from __future__ import annotations

import math
from itertools import zip_longest

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.products import axes_of, share_of
from edgefl.onnxgrad.gradients.tape import Gradient, Op, Shape, Tape, channel_sum, made_by, prepared, product, put, register_rule

EPSILON = 1e-5


@prepared("BatchNormalization")
def batch_statistics(tape: Tape, op: Op) -> None:
    """Put the node on the tape as it is, or in training mode where it normalises with the mean and the variance of its own input."""
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
    """Normalise (batch, channels, …) by the statistics over all but the channels; return the result, mean and (population) variance.

    ``out`` gives names to some of them.
    """
    channels = tape.shape(x)[1]
    # Momentum 0 takes nothing of these, but onnxruntime writes the statistics over them. It makes one tensor of equal ones, and keeps
    # what is constant for the next step: so each is computed, and unlike any other, or one layer's statistics would end up in another's
    # and a step that diverged would spoil all that follow.
    fresh = w if tape.known(w) is None else _first_values(tape, x)
    unused = [tape.op("Mul", fresh, tape.number(2.0 + len(tape.nodes) + i)) for i in range(2)]
    names = [name or tape.fresh(hint) for name, hint in zip_longest(out, ("normalised", "mean", "variance"))]
    tape.op("BatchNormalization", x, w, b, *unused, out=names, training_mode=1, momentum=0.0, epsilon=epsilon)
    tape.shapes |= {names[0]: tape.shape(x), names[1]: (channels,), names[2]: (channels,)}
    return names[0], names[1], names[2]


def _first_values(tape: Tape, x: str) -> str:
    """Return one value of ``x`` for each channel."""
    axes = [0, *range(2, len(tape.shape(x)))]
    zeros, ones = (tape.integers(*[at] * len(axes)) for at in (0, 1))
    return str(tape.op("Reshape", tape.op("Slice", x, zeros, ones, tape.integers(*axes)), tape.integers(-1)))


def _put_running(tape: Tape, op: Op, own: tuple[str, str, str]) -> None:
    """Write the running statistics of a node in training mode: old · momentum + batch's · (1 − momentum)."""
    kept = op.get("momentum", 0.9)
    for old, new, out in zip(op.inputs[3:], own[1:], op.outputs[1:], strict=False):
        if out:
            shape = tape.shape(new)
            before = put(tape, shape, "Mul", old, tape.number(kept))
            now = put(tape, shape, "Mul", new, tape.number(1.0 - kept))
            tape.op("Add", before, now, out=out)
            tape.shapes[out] = shape


def _measured_of(tape: Tape, x: str, mean: str, variance: str) -> bool:
    """Whether ``mean`` and ``variance`` are those of ``x`` by channel, as torch's exporter writes them out."""
    square = _mean_of(tape, variance, x)
    if square is None or _mean_of(tape, mean, x) != x:
        return False
    times = made_by(tape, square, "Mul")
    apart = made_by(tape, times.inputs[0], "Sub") if times and times.inputs[0] == times.inputs[1] else None
    return apart is not None and apart.inputs[0] == x and _mean_of(tape, apart.inputs[1], x) == x


def _mean_of(tape: Tape, value: str, x: str) -> str | None:
    """Return what ``value`` is the mean of, if it is one over the batch and the map."""
    op = made_by(tape, value, "ReduceMean")
    rank = len(tape.shape(x))
    if op is None or op.inputs[0] not in tape.shapes or len(tape.shape(op.inputs[0])) != rank:
        return None
    return op.inputs[0] if sorted(axes_of(tape, op)) == [0, *range(2, rank)] else None


@register_rule("BatchNormalization")
def batch_normalization(
    tape: Tape, op: Op, gradient: Gradient, of_mean: Gradient = None, of_variance: Gradient = None
) -> list[Gradient]:
    """For y = w(x − mean)/s + b with s² = variance + ε; in training mode mean and variance are results, which depend on x too.

    With Σ over all but the channels: ∂w = Σ g(x − mean)/s, ∂b = Σ g, ∂mean = −w/s Σ g, ∂variance = −w/(2s³) Σ g(x − mean), and
    ∂x = g·w/s, in training mode with ∂mean/n + 2(x − mean) ∂variance/n added, which is one more normalisation.
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
    """Return a number for each channel so that it multiplies (batch, channels, …)."""
    return values if rank == 2 else str(tape.op("Reshape", values, tape.integers(-1, *[1] * (rank - 2))))


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


@prepared("InstanceNormalization")
def instance_normalization(tape: Tape, op: Op) -> None:
    """Normalise each map; scale and shift, where there are any, come in the pass that normalises."""
    x, scale, shift = op.inputs
    shape = tape.shape(x)
    batch, channels = shape[:2]
    size = math.prod(tape.fixed(op, x, range(2, len(shape))))
    rows = put(tape, (1, product(batch, channels), size), "Reshape", x, tape.integers(1, -1, size))
    result, mean, variance = _row_statistics(tape, rows, op.get("epsilon", EPSILON))
    if not (_is(tape, scale, 1.0) and _is(tape, shift, 0.0)):
        each = [_for_each(tape, vector, x) for vector in (scale, shift)]
        mean = _released(tape, result, mean)
        result = put(
            tape, tape.shape(rows), "BatchNormalization", rows, *each, mean, variance, epsilon=op.get("epsilon", EPSILON)
        )
    _back(tape, result, x, shape, op.outputs[0])


def _row_statistics(tape: Tape, rows: str, epsilon: float) -> tuple[str, str, str]:
    count, shape = tape.op("Shape", rows, start=1, end=2), tape.shape(rows)[1:2]
    ones, zeros = (put(tape, shape, "ConstantOfShape", count, value=tape.filling(number)) for number in (1.0, 0.0))
    return normalised(tape, rows, ones, zeros, epsilon)


def _released(tape: Tape, unused: str, mean: str) -> str:
    """Return ``mean`` as it is, with a reader for a result that has no other: onnxruntime would hold that one until the step ends."""
    return put(tape, tape.shape(mean), "Reshape", mean, tape.op("Shape", unused, start=1, end=2))


def _is(tape: Tape, vector: str, value: float) -> bool:
    known = tape.known(vector)
    return known is not None and bool((known == value).all())


def _for_each(tape: Tape, vector: str, x: str) -> str:
    """Return numbers of the channels of ``x``, repeated for each sample."""
    batch, channels = tape.shape(x)[:2]
    wide = put(tape, (batch, channels), "Expand", vector, tape.op("Shape", x, start=0, end=2))
    return put(tape, (product(batch, channels),), "Reshape", wide, tape.integers(-1))


def _back(tape: Tape, rows: str, x: str, shape: Shape, out: str) -> None:
    free = [size is None for size in shape]
    sizes = tape.op("Shape", x) if sum(free) > 1 else tape.integers(*(-1 if size is None else size for size in shape))
    tape.op("Reshape", rows, sizes, out=out)
    tape.shapes[out] = shape


@prepared("Add")
def affine_of_groups(tape: Tape, op: Op) -> None:
    """Put GroupNorm, which torch exports as InstanceNormalization of (batch, groups, …) · scale + shift, on the tape as a whole.

    Scale and shift then come in one pass over the map, and only the map itself is kept for the gradient.
    """
    found = _group_norm(tape, op)
    if found is None:
        tape.nodes.append(onnx.helper.make_node("Add", op.inputs, op.outputs, name=op.name))
        return
    x, by_group, scale, shift = found
    batch, channels, *sides = tape.shape(x)
    lines, epsilon = product(batch, channels), by_group.get("epsilon")
    inner = math.prod(tape.fixed(op, by_group.inputs[0], [2])) // math.prod(tape.fixed(op, x, range(2, len(sides) + 2)))
    each = [_for_each(tape, put(tape, (channels,), "Reshape", vector, tape.integers(-1)), x) for vector in (scale, shift)]
    normal, mean, variance = by_group.outputs
    statistics = [_repeated(tape, value, inner, lines) for value in (_released(tape, normal, mean), variance)]
    rows = put(tape, (1, lines, product(*sides)), "Reshape", x, tape.integers(1, -1, product(*sides) or 0))
    result = put(tape, tape.shape(rows), "BatchNormalization", rows, *each, *statistics, epsilon=epsilon)
    _back(tape, result, x, tape.shape(x), op.outputs[0])


def _repeated(tape: Tape, values: str, inner: int, lines: int | None) -> str:
    """Return the number of each group for each of its ``inner`` channels."""
    (groups,) = tape.shape(values)
    column = put(tape, (groups, 1), "Reshape", values, tape.integers(-1, 1))
    wide = put(tape, (groups, inner), "Expand", column, tape.integers(1, inner))
    return put(tape, (lines,), "Reshape", wide, tape.integers(-1))


def _group_norm(tape: Tape, op: Op) -> tuple[str, Op, str, str] | None:
    """Return the map, the node that normalises its groups, scale and shift, if ``op`` is the end of a GroupNorm."""
    for scaled, shift in (op.inputs, op.inputs[::-1]):
        times = made_by(tape, scaled, "Mul")
        for normal, scale in (times.inputs, times.inputs[::-1]) if times else ():
            by_group = _source(tape, normal, ("Reshape", "Reshape", "BatchNormalization"))
            x = _source(tape, by_group.inputs[0], ("Reshape", "Reshape")) if by_group and len(by_group.outputs) == 3 else None
            if by_group is None or x is None:
                continue
            shape = tape.shape(x.inputs[0])
            by_channel = all(_by_channel(tape, vector, shape) for vector in (scale, shift))
            if by_channel and len(shape) > 2 and tape.shapes.get(op.outputs[0]) == shape:
                return x.inputs[0], by_group, scale, shift
    return None


def _source(tape: Tape, value: str, kinds: tuple[str, ...]) -> Op | None:
    """Go back through nodes of these kinds, last one first, and return the first; None where there is another kind."""
    op = None
    for kind in kinds:
        op = made_by(tape, value, kind)
        if op is None:
            return None
        value = op.inputs[0]
    return op


def _by_channel(tape: Tape, vector: str, shape: Shape) -> bool:
    """Whether a tensor has one number for each channel of (batch, channels, …)."""
    sizes = tape.shapes.get(vector, ())
    ones = (1,) * (len(shape) - 2)
    return sizes in ((shape[1], *ones), (1, shape[1], *ones))
