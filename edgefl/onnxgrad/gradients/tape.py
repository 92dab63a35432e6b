"""The tape: the graph under construction. Gradient rules read the forward pass from it and write the backward pass to it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from edgefl.onnxgrad.errors import InputError
from edgefl.onnxgrad.gradients.op import FORMS, PREPARED, RULES, Op
from edgefl.onnxgrad.graphs import inferred_shapes

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
"""Sizes of a value; None: it depends on the batch size."""

_BATCHES = (5, 7)  # a size that differs between these two batch sizes depends on the batch


class Tape:
    """Nodes in the order of execution, with the constants and shapes of their values. A value is known by its name, a str.

    Args:
        model: the forward graph. Its constants and shapes are read at once; its nodes are appended later, by :meth:`put`.
        real: the type of the graph's real numbers, float32 or float64, in which rules write constants.

    Attributes:
        nodes: the nodes so far.
        constants: name → array.
        shapes: name → sizes, of values of the forward graph.
        needed: the tensors whose gradients are wanted, and all values that depend on them.
        barriers: values that count as constants, although they were computed from others.
        unbounded: whether a gradient may be infinite, because an operator such as Sqrt was differentiated; rules then select entries
            where they would multiply by 0.
    """

    def __init__(self, model: onnx.ModelProto, real: Any = np.float32) -> None:
        self.real = np.dtype(real)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
        self.shapes: dict[str, Shape] = {}
        self.needed: set[str] = set()
        self.barriers: set[str] = set()
        self.unbounded = False
        self._wholes: dict[int, tuple[int, Op]] = {}
        self._own: dict[tuple[bytes, tuple[int, ...], str], str] = {}
        self._taken = {name for node in model.graph.node for name in node.output} | set(self.constants)
        self._taken |= {value.name for value in model.graph.input}
        self._count = 0
        self.learn_shapes(model)

    def learn_shapes(self, model: onnx.ModelProto) -> None:
        """Add the shapes of values of ``model`` that are not known yet."""
        self.shapes = shapes_of(model) | self.shapes

    def put(self, node: onnx.NodeProto) -> None:
        """Append a node of the forward graph; if :data:`PREPARED` has its operator, in the form that the function there chooses."""
        if node.op_type == "Constant":
            array = _constant_of(node)
            self.constants[node.output[0]] = array
            self.shapes[node.output[0]] = array.shape
        elif node.op_type in PREPARED:
            PREPARED[node.op_type](self, Op.of(node))
        else:
            self.nodes.append(node)

    def write(self, op: Op) -> None:
        """Append an operator of :data:`FORMS`; with a gradient rule it is differentiated as a whole."""
        start = len(self.nodes)
        FORMS[op.kind](self, op)
        if op.kind in RULES:
            self._wholes[start] = len(self.nodes), op

    def ops(self) -> list[Op]:
        """Return the nodes as gradient rules see them: those of an operator with a rule of its own as one."""
        found, place = [], 0
        while place < len(self.nodes):
            end, op = self._wholes.get(place) or (place + 1, Op.of(self.nodes[place]))
            found.append(op)
            place = end
        return found

    def reserve(self, names: Iterable[str]) -> None:
        """Give no new value one of these names."""
        self._taken.update(names)

    # Writing.

    def op(self, kind: str, *inputs: str | None, out: str | Sequence[str] = (), count: int = 1, **attributes: Any) -> Any:
        """Append a node of operator ``kind``, and return the name of its output, or a tuple of names if it has several.

        Inputs that are None are omitted, attributes that are None are not written. ``out`` names the outputs, else ``count`` are made up.
        """
        outputs = [out] if isinstance(out, str) else list(out) or [self.fresh(kind) for _ in range(count)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(kind, [i or "" for i in inputs], outputs, name=f"{kind}_{outputs[0]}", **given))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def fresh(self, hint: str) -> str:
        """Return a new name, which begins with ``hint``."""
        while True:
            self._count += 1
            name = f"{hint.lower()}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def constant(self, array: Array) -> str:
        """Return the name of a constant; equal constants are stored once."""
        array = np.ascontiguousarray(array) if array.ndim else array
        key = (array.tobytes(), array.shape, str(array.dtype))
        if key not in self._own:
            name = self._own[key] = self.fresh("c")
            self.constants[name] = array
            self.shapes[name] = array.shape
        return self._own[key]

    def number(self, value: float) -> str:
        """Return the name of a constant scalar of type ``real``."""
        return self.constant(np.array(value, self.real))

    @property
    def element_type(self) -> int:
        """ONNX's number of the type ``real``, for Cast."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self.real))

    def zeros(self, shape: str) -> str:
        """Return zeros of a shape, the name of an int64 vector."""
        return self.op("ConstantOfShape", shape, value=self.filling(0.0))

    def zeros_like(self, value: str) -> str:
        """Return zeros in the shape of ``value``, which may hold infinity: a difference with itself would be NaN."""
        return self.zeros(str(self.op("Shape", value)))

    def filling(self, value: float) -> onnx.TensorProto:
        """Return the attribute ``value`` of a ConstantOfShape."""
        return onnx.numpy_helper.from_array(np.full(1, value, self.real))

    def integers(self, *values: int) -> str:
        """Return the name of a constant vector of int64, for axes, sizes or pads."""
        return self.constant(np.array(values, np.int64))

    # Reading.

    def needs(self, name: str | None) -> bool:
        """Whether the gradient of a value is needed; rules skip the others."""
        return name is not None and name in self.needed

    def known(self, name: str | None) -> Array | None:
        """Return the array of a constant, None for other values."""
        return self.constants.get(name) if name else None

    def shape(self, name: str) -> Shape:
        """Return the sizes of a value of the forward graph; InputError if shape inference does not find them."""
        if name not in self.shapes:
            raise InputError(f"value {name!r} of the graph has no known shape; its gradient cannot be written")
        return self.shapes[name]

    def fixed(self, op: Op, name: str, axes: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return the sizes of a value, all or those at ``axes``; refuse the node if one depends on the batch size."""
        shape = self.shape(name)
        sizes = [shape[axis] for axis in (range(len(shape)) if axes is None else axes)]
        if any(size is None for size in sizes):
            op.refuse(f"size {shape} of {name!r} depends on the batch; its rule needs a fixed one")
        return tuple(size for size in sizes if size is not None)

    # What several rules need.

    def reshape(self, value: str, shape: Shape, like: str | None = None, out: str | Sequence[str] = ()) -> str:
        """Return ``value`` in ``shape``, with at most one free size; with more, ``value`` gets the shape of the value ``like``."""
        if sum(size is None for size in shape) > 1 and like is not None:
            return self.op("Reshape", value, self.op("Shape", like), out=out)
        return self.op("Reshape", value, self.integers(*(-1 if size is None else size for size in shape)), out=out)

    def like(self, value: str, other: str) -> str:
        """Return ``value`` in the shape of the forward value ``other``."""
        return self.reshape(value, self.shape(other), other)

    def expanded(self, value: str, like: str) -> str:
        """Return ``value`` repeated to the shape of the value ``like``."""
        return self.op("Expand", value, self.op("Shape", like))

    def unbroadcast(self, gradient: str, operand: str, result: str) -> str:
        """Return the gradient of a broadcast ``operand``: ``gradient``, in the shape of ``result``, summed over the broadcast axes."""
        return self.sum_of_copies(gradient, operand, self.shape(operand), self.shape(result))

    def sum_of_copies(self, gradient: str, operand: str, small: Shape, large: Shape) -> str:
        """Return ``gradient`` summed over the axes along which sizes ``small`` were broadcast to ``large``; both may be leading sizes."""
        if small == large:
            return gradient
        extra = len(large) - len(small)
        axes = [i for i, size in enumerate(large) if i < extra or (small[i - extra] == 1 and size != 1)]
        if not axes:
            return gradient
        summed = self.op("ReduceSum", gradient, self.integers(*axes), keepdims=int(extra == 0))
        return self.like(summed, operand) if extra and len(axes) > extra else summed

    def swapped(self, value: str, rank: int) -> str:
        """Return ``value`` with its last two axes swapped."""
        return self.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])

    def total(self, parts: Sequence[str]) -> str:
        """Return the sum of values of equal shape."""
        return parts[0] if len(parts) == 1 else self.op("Add" if len(parts) == 2 else "Sum", *parts)


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Return name → sizes, for every value whose sizes ONNX's shape inference finds."""
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
                dim.ClearField("dim_param")  # to be inferred again
    return inferred_shapes(fixed)


def _constant_of(node: onnx.NodeProto) -> Array:
    (attribute,) = node.attribute
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.array(value, np.int64 if attribute.name.startswith("value_int") else np.float32)


def made_by(tape: Tape, value: str, kind: str) -> Op | None:
    """Return the node on the tape that computes ``value`` if its operator is ``kind``; else, and for inputs and constants, None."""
    node = next((node for node in reversed(tape.nodes) if value in node.output), None)
    return None if node is None or node.op_type != kind else Op.of(node)


def put(tape: Tape, shape: Shape, kind: str, *inputs: str | None, **attributes: Any) -> str:
    """Append a node of the forward graph whose output has this shape, and return the output."""
    name = tape.op(kind, *inputs, **attributes)
    tape.shapes[name] = shape
    return name


def composite(tape: Tape, kind: str, inputs: Sequence[str], shapes: Sequence[Shape], **attributes: Any) -> tuple[str, ...]:
    """Append an operator of :data:`FORMS` whose outputs have these shapes, and return the outputs."""
    names = tuple(tape.fresh(kind) for _ in shapes)
    tape.shapes |= dict(zip(names, shapes, strict=True))
    tape.write(Op("", kind, tuple(inputs), names, attributes))
    return names


def product(*sizes: int | None) -> int | None:
    """Return the product of sizes; None if one is None."""
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def channel_sum(tape: Tape, value: str, shape: Shape) -> str:
    """Return the sums (channels) of a value (batch, channels, …): first over each map, which is contiguous, then over the batch."""
    if len(shape) > 2:
        value = tape.op("ReduceSum", value, tape.integers(*range(2, len(shape))), keepdims=0)
    if shape[0] == 1:
        return tape.op("Reshape", value, tape.integers(-1))
    return tape.op("ReduceSum", value, tape.integers(0), keepdims=0)
