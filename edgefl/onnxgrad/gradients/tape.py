"""A graph under construction: what gradient rules read of the forward pass, and how they write the backward one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from edgefl.errors import InputError
from edgefl.onnxgrad.graphs import inferred_shapes

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
"""Sizes of a value; None where it grows with the batch."""

_BATCHES = (5, 7)  # two sizes: what differs between them grows with the batch


@dataclass(frozen=True)
class Op:
    """A node of the forward graph; ``inputs`` holds "" for one that is left out and, last, what bodies of loops read from outside."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    @staticmethod
    def of(node: onnx.NodeProto) -> Op:
        """Return the node as a record; texts of attributes are str."""
        values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
        return Op(node.name, node.op_type, (*node.input, *outer_reads(node)), tuple(node.output), texts)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default``."""
        return self.attributes.get(name, default)

    def input(self, slot: int) -> str | None:
        """Return the value at an input's place, None where there is none."""
        return self.inputs[slot] if slot < len(self.inputs) and self.inputs[slot] else None

    def refuse(self, what: str) -> NoReturn:
        """Raise an :class:`InputError` that names this node."""
        raise InputError(f"node {self.name or self.outputs[0]!r} ({self.kind}): {what}")


def outer_reads(node: onnx.NodeProto) -> list[str]:
    """Return the values of the surrounding graph that the bodies of a node read."""
    found: dict[str, None] = {}
    for graph in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        own = {""} | {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            found |= dict.fromkeys(name for name in (*inner.input, *outer_reads(inner)) if name not in own)
            own.update(inner.output)
    return list(found)


Gradient = str | None
"""The name of a gradient; None: there is none."""
Slope = Callable[["Tape", Op, str], str]
Rule = Callable[..., Sequence[Gradient]]
"""(tape, op, gradient of each output) → gradient of each input, None where there is none."""

RULES: dict[str, Rule] = {}
"""Operator → rule: the table that :mod:`edgefl.onnxgrad.autodiff` differentiates by."""
Prepare = Callable[["Tape", Op], None]
PREPARED: dict[str, Prepare] = {}
"""Operator → how it is put on the tape instead, where its rule needs more than its output."""
CONSTANT = frozenset(
    """
    Shape Size Equal Greater Less GreaterOrEqual LessOrEqual Not And Or Xor ArgMax ArgMin ConstantOfShape OneHot Range Sign Floor Ceil Round
    IsNaN IsInf NonZero EyeLike
    """.split()  # noqa: SIM905 - one word per operator reads better than as many quoted ones
)
"""Operators whose outputs do not change with small changes of their inputs."""


def register_rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Enter a function into the table under the names of operators."""
    return lambda rule: RULES.update(dict.fromkeys(kinds, rule)) or rule


def register_slopes(slopes: Mapping[str, Slope]) -> None:
    """Enter operators of one input into the table, each with a function that returns its input's gradient."""
    for kind, slope in slopes.items():
        register_rule(kind)(lambda tape, op, gradient, slope=slope: [slope(tape, op, gradient)])


def prepared(*kinds: str) -> Callable[[Prepare], Prepare]:
    """Enter a function that puts operators on the tape in the form that their rules, or those of their parts, can differentiate."""
    return lambda prepare: PREPARED.update(dict.fromkeys(kinds, prepare)) or prepare


class Tape:
    """Nodes in the order of execution, with constants and shapes of the values.

    Args:
        model: the graph whose nodes will be put on the tape; its constants and shapes are taken at once.
        real: the type of the constants that rules make: the graph's own type of numbers.

    Attributes:
        needed: the values whose gradients are wanted, and all that depends on them.
        barriers: values that count as constants, whatever they were computed from.
    """

    def __init__(self, model: onnx.ModelProto, real: Any = np.float32) -> None:
        self.real = np.dtype(real)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
        self.shapes: dict[str, Shape] = {}
        self.needed: set[str] = set()
        self.barriers: set[str] = set()
        self._own: dict[tuple[bytes, tuple[int, ...], str], str] = {}
        self._taken = {name for node in model.graph.node for name in node.output} | set(self.constants)
        self._taken |= {value.name for value in model.graph.input}
        self._count = 0
        self.learn_shapes(model)

    def learn_shapes(self, model: onnx.ModelProto) -> None:
        """Learn the shapes of the values of ``model`` that are not known yet."""
        self.shapes = shapes_of(model) | self.shapes

    def put(self, node: onnx.NodeProto) -> None:
        """Append a node of the forward graph, as it is or as :data:`PREPARED` says."""
        if node.op_type == "Constant":
            array = _constant_of(node)
            self.constants[node.output[0]] = array
            self.shapes[node.output[0]] = array.shape
        elif node.op_type in PREPARED:
            PREPARED[node.op_type](self, Op.of(node))
        else:
            self.nodes.append(node)

    # Writing.

    def op(self, kind: str, *inputs: str | None, out: str | Sequence[str] = (), count: int = 1, **attributes: Any) -> Any:
        """Append a node without its inputs and attributes of None; return its output's name (``out``), or a tuple of ``count``."""
        outputs = [out] if isinstance(out, str) else list(out) or [self.fresh(kind) for _ in range(count)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(kind, [i or "" for i in inputs], outputs, name=f"{kind}_{outputs[0]}", **given))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def fresh(self, hint: str) -> str:
        """Return a name that no value has."""
        while True:
            self._count += 1
            name = f"{hint.lower()}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def constant(self, array: Array) -> str:
        """Return the name of a constant; equal ones are stored once."""
        array = np.ascontiguousarray(array) if array.ndim else array
        key = (array.tobytes(), array.shape, str(array.dtype))
        if key not in self._own:
            name = self._own[key] = self.fresh("c")
            self.constants[name] = array
            self.shapes[name] = array.shape
        return self._own[key]

    def number(self, value: float) -> str:
        """Return the name of a scalar of the graph's type of numbers."""
        return self.constant(np.array(value, self.real))

    @property
    def element_type(self) -> int:
        """What ONNX calls the graph's type of numbers."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self.real))

    def filling(self, value: float) -> onnx.TensorProto:
        """Return the attribute of a ConstantOfShape that fills with ``value``."""
        return onnx.numpy_helper.from_array(np.full(1, value, self.real))

    def integers(self, *values: int) -> str:
        """Return the name of a vector of int64: axes, sizes, pads."""
        return self.constant(np.array(values, np.int64))

    # Reading.

    def needs(self, name: str | None) -> bool:
        """Whether the gradient of a value is needed, or that of a value that it is computed from."""
        return name is not None and name in self.needed

    def known(self, name: str | None) -> Array | None:
        """Return the value of a constant, None for others."""
        return self.constants.get(name) if name else None

    def shape(self, name: str) -> Shape:
        """Return the sizes of a value of the forward graph.

        Raises:
            InputError: shape inference does not tell them.
        """
        if name not in self.shapes:
            raise InputError(f"value {name!r} of the graph has no known shape; its gradient cannot be written")
        return self.shapes[name]

    def fixed(self, op: Op, name: str, axes: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return sizes that a rule must know (all, or those at ``axes``), or refuse the node where one depends on the batch."""
        shape = self.shape(name)
        sizes = [shape[axis] for axis in (range(len(shape)) if axes is None else axes)]
        if any(size is None for size in sizes):
            op.refuse(f"size {shape} of {name!r} depends on the batch; its rule needs a fixed one")
        return tuple(size for size in sizes if size is not None)

    # What several rules need.

    def reshape(self, value: str, shape: Shape, like: str | None = None) -> str:
        """Return ``value`` in ``shape``, of which one size may be free; more are taken from the value ``like``."""
        if sum(size is None for size in shape) > 1 and like is not None:
            return str(self.op("Reshape", value, self.op("Shape", like)))
        return str(self.op("Reshape", value, self.integers(*(-1 if size is None else size for size in shape))))

    def like(self, value: str, other: str) -> str:
        """Return ``value`` in the shape of the forward value ``other``."""
        return self.reshape(value, self.shape(other), other)

    def unbroadcast(self, gradient: str, operand: str, result: str) -> str:
        """Sum a gradient that has the shape of ``result`` over the axes along which ``operand`` was repeated."""
        return self.sum_of_copies(gradient, operand, self.shape(operand), self.shape(result))

    def sum_of_copies(self, gradient: str, operand: str, small: Shape, large: Shape) -> str:
        """Sum a gradient over the axes along which sizes ``small`` were repeated to ``large``; both may be leading sizes only."""
        if small == large:
            return gradient
        extra = len(large) - len(small)
        axes = [i for i, size in enumerate(large) if i < extra or (small[i - extra] == 1 and size != 1)]
        if not axes:
            return gradient
        summed = str(self.op("ReduceSum", gradient, self.integers(*axes), keepdims=int(extra == 0)))
        return self.like(summed, operand) if extra and len(axes) > extra else summed

    def swapped(self, value: str, rank: int) -> str:
        """Return ``value`` with its last two axes swapped."""
        return str(self.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2]))

    def total(self, parts: Sequence[str]) -> str:
        """Return the sum of values of one shape."""
        return parts[0] if len(parts) == 1 else str(self.op("Add" if len(parts) == 2 else "Sum", *parts))


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Return value → sizes, for every value whose sizes the operators' own rules tell."""
    first, second = (_at_batch(model, batch) for batch in _BATCHES)
    return {
        name: tuple(a if a == b and isinstance(a, int) else None for a, b in zip(sizes, second[name], strict=True))
        for name, sizes in first.items()
        if len(sizes) == len(second.get(name, ())) and name in second
    }


def _at_batch(model: onnx.ModelProto, batch: int) -> dict[str, tuple[int | str, ...]]:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = batch
    for value in (*fixed.graph.value_info, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.ClearField("dim_param")  # worked out anew, or else free
    return inferred_shapes(fixed)


def _constant_of(node: onnx.NodeProto) -> Array:
    (attribute,) = node.attribute
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.array(value, np.int64 if attribute.name.startswith("value_int") else np.float32)


def made_by(tape: Tape, value: str, kind: str) -> Op | None:
    """Return the node on the tape that computes ``value`` if it is of this kind; None for inputs, constants and other nodes."""
    node = next((node for node in reversed(tape.nodes) if value in node.output), None)
    return None if node is None or node.op_type != kind else Op.of(node)


def put(tape: Tape, shape: Shape, kind: str, *inputs: str | None, **attributes: Any) -> str:
    """Append a node of the forward graph whose output has this shape, and return that output."""
    name = str(tape.op(kind, *inputs, **attributes))
    tape.shapes[name] = shape
    return name


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
