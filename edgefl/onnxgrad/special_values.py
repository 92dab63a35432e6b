"""Finds special values of the inputs of a loss in its graph, which ordinary samples never have, such as an ignored label."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgefl.onnxgrad.gradients.op import DOMAIN

_SAME = {
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
"""Operators that hand entries of their first input on, together with :data:`_CHOICE`."""
_CHOICE = "Where"
_CROSS_ENTROPY = frozenset(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
_COMPARISONS = frozenset(("Clip", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"))
_BOUNDS = {"HardSigmoid": 3.0, "HardSwish": 3.0}
_MOST_BOUNDS = 4


@dataclass(frozen=True)
class Indices:
    """What an input of whole numbers may be.

    Attributes:
        sizes: of the dimensions that it is an index of, such as the number of classes.
        ignored: values that a loss leaves out, or compares it with.
    """

    sizes: tuple[int, ...]
    ignored: tuple[int, ...]


def indices(model: ir.Model, name: str) -> Indices:
    """Return what the input ``name`` of a loss's graph may be, from the operators that read it."""
    sizes: list[int | None] = []
    ignored: list[int] = []
    for node, place in _readers(model, name):
        if node.op_type in _CROSS_ENTROPY and place == 1:
            sizes.append(_size(node.inputs[0], 1))
            if "ignore_index" in node.attributes:
                ignored.append(node.attributes["ignore_index"].as_int())
        elif node.op_type in ("Gather", "GatherElements") and place == 1:
            axis = node.attributes.get("axis")
            sizes.append(_size(node.inputs[0], axis.as_int() if axis else 0))
        elif node.op_type == "OneHot" and place == 0:
            sizes += [int(number) for number in _numbers(node.inputs[1])]
        elif node.op_type == "Equal":
            ignored += [int(number) for number in _numbers(node.inputs[1 - place]) if number % 1 == 0]
    return Indices(tuple(size for size in sizes if size), tuple(dict.fromkeys(ignored)))


def bounds(model: ir.Model) -> tuple[float, ...]:
    """Return the numbers, except 0, that a loss's graph clips or compares floats with, such as 6 of ReLU6; at most four."""
    found: list[float] = []
    for node in model.graph:
        if node.op_type in _BOUNDS:
            found += [_BOUNDS[node.op_type], -_BOUNDS[node.op_type]]
        if node.domain == DOMAIN:
            found += [attribute.as_float() for attribute in node.attributes.values() if attribute.type == ir.AttributeType.FLOAT]
        if node.op_type in _COMPARISONS:
            found += [number for value in node.inputs for number in _numbers(value)]
    return tuple(number for number in dict.fromkeys(found) if number and abs(number) < 1e6)[:_MOST_BOUNDS]


def _readers(model: ir.Model, name: str) -> Iterator[tuple[ir.Node, int]]:
    """Yield (node, which of its inputs) of the operators that read entries of an input, perhaps of another shape or type."""
    waiting, seen = [value for value in model.graph.inputs if value.name == name], set()
    while waiting:
        value = waiting.pop()
        for node, place in value.uses():
            yield node, place
            hands_on = (node.op_type in _SAME and (place == 0 or node.op_type == "Concat")) or (node.op_type == _CHOICE and place)
            if hands_on and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])


def _size(value: ir.Value | None, axis: int) -> int | None:
    shape = None if value is None else value.shape
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def _numbers(value: ir.Value | None) -> list[float]:
    """Return the number that a value always has, in a list; an empty one if it has none, or several."""
    constant: Any = None if value is None else value.const_value
    if constant is None and value is not None and (node := value.producer()) is not None and node.op_type == "Constant":
        constant = next(iter(node.attributes.values())).value
    if isinstance(constant, ir.TensorProtocol):
        constant = constant.numpy()
    array = np.asarray([] if constant is None else constant)
    return [float(array.reshape(-1)[0])] if array.size == 1 and array.dtype.kind in "fi" else []
