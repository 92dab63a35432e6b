"""Small tools for rules that look at more than one node, or put several on the tape in the place of one."""

from __future__ import annotations

import math
from typing import Any

from edgefl.onnxgrad.gradients.tape import Op, Shape, Tape


def made_by(tape: Tape, value: str, kind: str) -> Op | None:
    """Return the node on the tape that computes ``value`` if it is of this kind; None for inputs, constants and other nodes."""
    node = next((node for node in reversed(tape.nodes) if value in node.output), None)
    return None if node is None or node.op_type != kind else Op.of(node)


def put(tape: Tape, shape: Shape, kind: str, *inputs: str | None, **attributes: Any) -> str:
    """Append a node of the forward graph whose output has this shape, and return that output."""
    name = str(tape.op(kind, *inputs, **attributes))
    tape.shapes[name] = shape
    return name


def filled(tape: Tape, value: float, count: str, shape: Shape) -> str:
    """Return a tensor of one number, with sizes that are only known when the graph runs."""
    return put(tape, shape, "ConstantOfShape", count, value=tape.filling(value))


def product(*sizes: int | None) -> int | None:
    """Return the product of sizes; None if one is free."""
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def channel_sum(tape: Tape, value: str, shape: Shape) -> str:
    """Sum (batch, channels, …) over everything but the channels: first each map, which lies in one piece, then the batch."""
    if len(shape) > 2:
        value = str(tape.op("ReduceSum", value, tape.integers(*range(2, len(shape))), keepdims=0))
    if shape[0] == 1:
        return str(tape.op("Reshape", value, tape.integers(-1)))
    return str(tape.op("ReduceSum", value, tape.integers(0), keepdims=0))
