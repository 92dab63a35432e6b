"""Gradients of operators that move values. In docstrings, g is the gradient of the output."""

import numpy as np

from edgefl.onnxgrad.gradients.linear_maps import padded_back
from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("Transpose")
def transpose(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g with the inverse permutation of axes."""
    perm = op.get("perm")
    return [tape.op("Transpose", gradient, perm=None if perm is None else [int(axis) for axis in np.argsort(perm)])]


register_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")(lambda tape, op, g: [tape.like(g, op.inputs[0])])
register_rule("Expand")(lambda tape, op, g: [tape.unbroadcast(g, op.inputs[0], op.outputs[0])])


@register_rule("Concat")
def concat(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g split into the sizes of the inputs."""
    axis = op.attributes["axis"]
    sizes = [tape.fixed(op, name, [axis])[0] for name in op.inputs]
    if len(sizes) == 1:
        return [gradient]
    parts: tuple[str, ...] = tape.op("Split", gradient, tape.integers(*sizes), count=len(sizes), axis=axis)
    return list(parts)


@register_rule("Split")
def split(tape: Tape, op: Op, *gradients: Gradient) -> list[Gradient]:
    """The gradients of the parts concatenated; zeros for an unused part."""
    parts = [tape.zeros_like(name) if g is None else g for g, name in zip(gradients, op.outputs, strict=True)]
    return [tape.op("Concat", *parts, axis=op.get("axis", 0)), None]


@register_rule("Slice")
def slice_(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g padded with zeros, also between entries if a step is not 1; g is reversed along axes with a negative step."""
    x = op.inputs[0]
    shape = tape.shape(x)
    starts, ends, axes, steps = _slices(tape, op)
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, stride = slice(start, end, step).indices(tape.fixed(op, x, [axis])[0])
        taken = len(range(first, last, stride))
        size = tape.fixed(op, x, [axis])[0]
        if taken == 0:
            return [None] * 5
        if stride < 0:
            gradient = tape.op("Slice", gradient, *(tape.integers(v) for v in (-1, -(2**62), axis, -1)))
            first, stride = first + (taken - 1) * stride, -stride
        if stride > 1 and taken > 1:
            gradient = _spaced(tape, gradient, axis, stride)
        before[axis], after[axis] = first, size - first - (taken - 1) * stride - 1
    if any(before) or any(after):
        gradient = tape.op("Pad", gradient, tape.integers(*before, *after))
    return [gradient, None, None, None, None]


def _slices(tape: Tape, op: Op) -> tuple[list[int], list[int], list[int], list[int]]:
    known = [tape.known(op.input(slot)) for slot in range(1, 5)]
    if any(value is None and op.input(slot) is not None for slot, value in enumerate(known, 1)):
        op.refuse("its starts, ends, axes and steps must be known")
    starts, ends, axes, steps = ([] if value is None else [int(v) for v in value] for value in known)
    rank = len(tape.shape(op.inputs[0]))
    return starts, ends, [axis % rank for axis in axes] or list(range(len(starts))), steps or [1] * len(starts)


def _spaced(tape: Tape, value: str, axis: int, stride: int) -> str:
    """Return ``value`` with ``stride`` − 1 zeros between its entries along ``axis``."""
    wide = tape.op("Unsqueeze", value, tape.integers(axis + 1))
    padded = tape.op("Pad", wide, tape.integers(0, stride - 1), tape.number(0.0), tape.integers(axis + 1))
    shape = tape.op("Shape", value)
    rows = tape.op("Slice", shape, tape.integers(axis), tape.integers(axis + 1))
    merged = tape.op("Mul", rows, tape.integers(stride))
    head = [tape.op("Slice", shape, tape.integers(0), tape.integers(axis))] if axis else []
    target = tape.op("Concat", *head, merged, tape.op("Slice", shape, tape.integers(axis + 1), tape.integers(2**31 - 1)), axis=0)
    flat = tape.op("Reshape", padded, target)
    return tape.op("Slice", flat, tape.integers(0), tape.integers(1 - stride), tape.integers(axis))


@register_rule("Pad")
def pad(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g without the padded entries; in other modes than constant they are added to the entries that they repeat."""
    pads, axes = tape.known(op.input(1)), tape.known(op.input(3))
    if pads is None or (axes is None and op.input(3) is not None):
        op.refuse("its pads must be known")
    rank = len(tape.shape(op.inputs[0]))
    where = range(rank) if axes is None else [int(a) % rank for a in axes]
    count = len(pads) // 2
    ends = [-int(p) if p else 2**31 - 1 for p in pads[count:]]
    cut = (tape.integers(*map(int, pads[:count])), tape.integers(*ends), tape.integers(*where))
    constant = op.get("mode", "constant") == "constant"
    if min(pads) < 0 and not constant:
        op.refuse("negative pads have a rule for mode constant only")
    if min(pads) < 0:
        back = [tape.integers(*(-int(p) for p in pads)), tape.number(0.0), tape.integers(*where)]
        gradient = tape.op("Pad", gradient, *back)
    elif not constant:
        gradient = padded_back(tape, op, gradient, [*map(int, pads[:count])], [*map(int, pads[count:])], list(where))
    elif any(pads):
        gradient = tape.op("Slice", gradient, *cut)
    return [gradient, None, None, None]


@register_rule("Tile")
def tile(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g summed over the copies."""
    repeats, shape = tape.known(op.input(1)), tape.shape(op.inputs[0])
    axes = tape.integers(*range(0, 2 * len(shape), 2))
    if repeats is None or sum(size is None for size in shape) > 1:
        both = [tape.op("Unsqueeze", value, tape.integers(1)) for value in (op.inputs[1], tape.op("Shape", op.inputs[0]))]
        target = tape.op("Reshape", tape.op("Concat", *both, axis=1), tape.integers(-1))
    else:
        target = tape.integers(*(n for times, size in zip(repeats, shape, strict=True) for n in (int(times), size or -1)))
    return [tape.op("ReduceSum", tape.op("Reshape", gradient, target), axes, keepdims=0), None]
