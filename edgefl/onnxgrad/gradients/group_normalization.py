"""Gradients of InstanceNormalization and GroupNorm, which are computed as BatchNormalization of maps laid out as channels."""

import math

import onnx.helper

from edgefl.onnxgrad.gradients.normalization import EPSILON, normalised
from edgefl.onnxgrad.gradients.op import Op, prepared
from edgefl.onnxgrad.gradients.tape import Shape, Tape, made_by, product, put


@prepared("InstanceNormalization")
def instance_normalization(tape: Tape, op: Op) -> None:
    """Write it as BatchNormalization of (1, batch · channels, map); a second node applies scale and shift, if they are not 1 and 0."""
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
    tape.shapes[tape.reshape(result, shape, x, op.outputs[0])] = shape


def _row_statistics(tape: Tape, rows: str, epsilon: float) -> tuple[str, str, str]:
    count, shape = tape.op("Shape", rows, start=1, end=2), tape.shape(rows)[1:2]
    ones, zeros = (put(tape, shape, "ConstantOfShape", count, value=tape.filling(number)) for number in (1.0, 0.0))
    return normalised(tape, rows, ones, zeros, epsilon)


def _released(tape: Tape, unused: str, mean: str) -> str:
    """Return ``mean``, computed so that it also reads ``unused``: onnxruntime holds a value without a reader until the step ends."""
    return put(tape, tape.shape(mean), "Reshape", mean, tape.op("Shape", unused, start=1, end=2))


def _is(tape: Tape, vector: str, value: float) -> bool:
    known = tape.known(vector)
    return known is not None and bool((known == value).all())


def _for_each(tape: Tape, vector: str, x: str) -> str:
    """Return ``vector`` (channels) repeated for each sample of ``x``: (batch · channels)."""
    batch, channels = tape.shape(x)[:2]
    wide = put(tape, (batch, channels), "Expand", vector, tape.op("Shape", x, start=0, end=2))
    return put(tape, (product(batch, channels),), "Reshape", wide, tape.integers(-1))


@prepared("Add")
def affine_of_groups(tape: Tape, op: Op) -> None:
    """Recognise the end of a GroupNorm, which torch exports as InstanceNormalization of (batch, groups, …), times scale, plus shift.

    It is written as one BatchNormalization with all four, so that only the map itself is stored for the gradient.
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
    tape.shapes[tape.reshape(result, tape.shape(x), x, op.outputs[0])] = tape.shape(x)


def _repeated(tape: Tape, values: str, inner: int, lines: int | None) -> str:
    """Return ``values`` (batch · groups), each repeated for the ``inner`` channels of its group."""
    (groups,) = tape.shape(values)
    column = put(tape, (groups, 1), "Reshape", values, tape.integers(-1, 1))
    wide = put(tape, (groups, inner), "Expand", column, tape.integers(1, inner))
    return put(tape, (lines,), "Reshape", wide, tape.integers(-1))


def _group_norm(tape: Tape, op: Op) -> tuple[str, Op, str, str] | None:
    """Return the map, the node that normalises its groups, scale and shift, if ``op`` is the end of a GroupNorm; else None."""
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
    """Follow first inputs back through nodes of these ``kinds``, and return the last one reached; None if a node is of another kind."""
    op = None
    for kind in kinds:
        op = made_by(tape, value, kind)
        if op is None:
            return None
        value = op.inputs[0]
    return op


def _by_channel(tape: Tape, vector: str, shape: Shape) -> bool:
    """Whether the shape of ``vector`` is one number for each channel of ``shape`` (batch, channels, …)."""
    sizes = tape.shapes.get(vector, ())
    ones = (1,) * (len(shape) - 2)
    return sizes in ((shape[1], *ones), (1, shape[1], *ones))
