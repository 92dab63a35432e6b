"""The node that a rule receives, and helpers of several families of rules."""

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from edgefl.onnxgrad.errors import InputError, first_line
from edgefl.onnxgrad.graphs import attributes_of, label_of

Array = np.ndarray[Any, Any]
Value = Tensor | Array | None

DTYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.UINT16: torch.uint16,
    onnx.TensorProto.UINT32: torch.uint32,
    onnx.TensorProto.UINT64: torch.uint64,
    onnx.TensorProto.BOOL: torch.bool,
}


class Operator(nn.Module):
    """A node of a graph, as rules and checks see it.

    Attributes:
        label: the node's name and operator, for messages.
        op: the operator's name.
        opset: version of the operator set.
        attributes: ONNX attributes, by name.
        present: positions of the inputs that are not omitted.
        wanted: whether each output is read.
    """

    def __init__(self, proto: onnx.NodeProto, label: str, opset: int, read: Container[str] | None = None) -> None:
        super().__init__()
        self.label, self.op, self.opset = label, proto.op_type, opset
        self.attributes = attributes_of(proto)
        self.present = tuple(slot for slot, name in enumerate(proto.input) if name)
        self.wanted = tuple(bool(name) and (read is None or name in read) for name in proto.output)

    def extra_repr(self) -> str:
        """Show the operator and its attributes."""
        return ", ".join([self.op, *(f"{name}={value}" for name, value in self.attributes.items())])

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or ``default``."""
        return self.attributes.get(name, default)

    def refuse(self, what: str) -> NoReturn:
        """Raise an :class:`InputError` that names this node."""
        raise InputError(f"{self.label}: {what}")

    def wants(self, output: int) -> bool:
        """Return whether an output is read."""
        return any(self.wanted[output : output + 1])

    def check_attributes(self, read: Container[str]) -> None:
        """Refuse a node with an attribute that its operator set does not have, or that its rule does not read and is not the default."""
        known = onnx.defs.get_schema(self.op, self.opset).attributes
        for name, value in self.attributes.items():
            if name not in known:
                self.refuse(f"attribute {name!r} is not in operator set {self.opset}")
            if name in read:
                continue
            default = known[name].default_value
            usual = attributes_of(onnx.NodeProto(attribute=[default])).get(name) if default.name else None
            if value != usual:
                expected = f", expected {usual!r}" if usual is not None else ""
                self.refuse(f"attribute {name} = {value!r} has no rule{expected}")

    def check_choices(self, choices: "Choices") -> None:
        """Refuse a node with an attribute whose value is none of its choices."""
        for name, values in choices.items():
            if (value := self.attributes.get(name, values[0])) not in values:
                *first, last = map(repr, values)
                self.refuse(f"{name} {value!r}, expected {', '.join(first)} or {last}")

    def only_first_output(self) -> None:
        """Refuse a node whose second output is read."""
        if any(self.wanted[1:]):
            self.refuse("only its first output has a rule")


Rule = Callable[..., Any]
"""(node, *inputs) → tensor, array (a known value), or tuple of outputs; an omitted input is None."""
Choices = Mapping[str, tuple[str | int, ...]]
"""Attribute → the values that a rule supports."""
Check = Callable[[Operator], None]
"""Raises an InputError for a node with attributes, inputs or outputs that its operator's rule does not support."""


def simple(function: Callable[..., Tensor]) -> Rule:
    """Return a rule that calls a function of tensors, without attributes."""
    return lambda node, *inputs: function(*inputs)


def numbers(array: Array) -> list[int]:
    """Return the values of an array of sizes or axes as a list."""
    return [int(value) for value in array.reshape(-1)]


def spread(x: Tensor, axis: int, rank: int) -> Tensor:
    """Return a vector as a tensor of ``rank`` dimensions, along ``axis``; any other tensor as it is."""
    return x.reshape(-1, *[1] * (rank - 1 - axis % rank)) if x.dim() == 1 else x


def sides(pads: Iterable[int]) -> list[int]:
    """Return ONNX's [begin…, end…] in the order of ``F.pad``: last axis first, begin and end together."""
    pads = list(pads)
    half = len(pads) // 2
    return [pads[axis + side] for axis in reversed(range(half)) for side in (0, half)]


KNOWN_ALWAYS: dict[str, tuple[int, ...]] = {
    "Constant": (), "ConstantOfShape": (0,), "Range": (0, 1, 2), "NonZero": (0,), "Unique": (0,),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)), "MelWeightMatrix": (0, 1, 2, 3, 4),
}  # fmt: skip
"""Operators whose outputs are the same in every call → positions of their inputs."""


def tensor_of(array: Array, device: torch.device | None = None) -> Tensor:
    """Return a tensor with a copy of ``array``; a fake tensor under FakeTensorMode."""
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32), device=device).bfloat16()
    return torch.tensor(array, device=device)


def evaluate(node: bytes, opset: int, inputs: Sequence[Value]) -> list[Array]:
    """Return a serialized node's outputs on known values, by ONNX's reference in NumPy; InputError if it rejects them (named)."""
    evaluator = _evaluator(node, opset)
    named = {name: value for name, value in zip(evaluator.input_names, inputs, strict=True) if name}
    try:
        return [np.asarray(value) for value in evaluator.run(None, named)]
    except Exception as error:  # the reference raises whatever NumPy does
        label = label_of(onnx.NodeProto.FromString(node), None)
        raise InputError(f"{label}: cannot be computed from its constants ({first_line(error)})") from error


@functools.lru_cache(maxsize=4096)
def _evaluator(node: bytes, opset: int) -> ReferenceEvaluator:
    proto = onnx.NodeProto.FromString(node)
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names] for names in (proto.input, proto.output))
    # In a graph, because the reference evaluates a single node by the newest operator set.
    return ReferenceEvaluator(onnx.helper.make_graph([proto], "node", inputs, outputs), opsets={"": opset})
