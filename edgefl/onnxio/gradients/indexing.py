"""Gradients of picking entries by their index."""

from __future__ import annotations

import onnx

from edgefl.onnxio.gradients.tape import Gradient, Op, Tape, rule


@rule("Gather")
def gather(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """One known index: zeros around it. Otherwise, as for an embedding, each row's gradients are added up where it was taken from."""
    x, index = op.inputs
    shape = tape.shape(x)
    axis = op.get("axis", 0) % len(shape)
    known = tape.known(index)
    if known is not None and known.size == 1:
        size = tape.fixed(op, x, [axis])[0]
        place = int(known.reshape(())) % size
        kept = tape.op("Unsqueeze", gradient, tape.integers(axis)) if known.ndim == 0 else gradient
        if size == 1:
            return [kept, None]
        before, after = [0] * len(shape), [0] * len(shape)
        before[axis], after[axis] = place, size - 1 - place
        return [tape.op("Pad", kept, tape.integers(*before, *after)), None]
    if axis != 0:
        op.refuse(f"axis {axis} has no rule for indices that depend on data, expected 0")
    rows, *widths = tape.fixed(op, x)
    # One element at a time: onnxruntime adds the slices of ScatterND from several threads, and loses some where a row is taken twice.
    parts = tape.reshape(gradient, (None, *widths))
    places = tape.op("Reshape", tape.op("Cast", index, to=onnx.TensorProto.INT32), tape.integers(-1, *[1] * len(widths)))
    places = tape.op("Expand", places, tape.op("Shape", parts))
    zeros = tape.op("ConstantOfShape", tape.integers(rows, *widths), value=tape.filling(0.0))
    return [tape.op("ScatterElements", zeros, places, parts, axis=0, reduction="add"), None]


@rule("GatherElements")
def gather_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Each entry's gradient is added up where it was taken from."""
    x, index = op.inputs
    zeros = tape.op("Sub", x, x)
    return [tape.op("ScatterElements", zeros, index, gradient, axis=op.get("axis", 0), reduction="add"), None]


@rule("ScatterElements")
def scatter_elements(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """What was added has the gradient of where it went; only where it is added up."""
    if op.get("reduction", "none") != "add":
        op.refuse(f"reduction {op.get('reduction', 'none')!r} has no rule, expected 'add'")
    return [gradient, None, tape.op("GatherElements", gradient, op.inputs[1], axis=op.get("axis", 0))]
