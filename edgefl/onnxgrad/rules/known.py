"""Values that are the same for every call: NumPy arrays, computed by ONNX's own reference, which no tensor mode sees."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from edgefl.errors import InputError
from edgefl.onnxgrad.rules.common import Array, Value, first_line, label_of

KNOWN = {"Constant": (), "ConstantOfShape": (0,), "Range": (0, 1, 2)}


def tensor_of(array: Array, device: torch.device | None = None) -> Tensor:
    """Return a tensor with a copy of ``array``; a fake one under fake tensors."""
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32), device=device).bfloat16()
    return torch.tensor(array, device=device)


def evaluate(node: bytes, opset: int, inputs: Sequence[Value]) -> list[Array]:
    """Compute a node, given as serialized bytes, on known values.

    Raises:
        InputError: the values do not suit the operator; names it.
    """
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
    # In a graph: the reference takes a lone node for one of the newest operator set.
    return ReferenceEvaluator(onnx.helper.make_graph([proto], "node", inputs, outputs), opsets={"": opset})
