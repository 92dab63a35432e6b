"""Small ONNX graphs, and a comparison of their torch modules with onnxruntime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from exported import forward_graph
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.models.base import Architecture
from edgefl.onnxgrad.stateless import called
from edgefl.onnxgrad.to_torch import module_of

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def numbers(*shape: int, seed: int = 5) -> Array:
    values: Array = np.random.default_rng(seed + len(shape)).standard_normal(shape).astype(np.float32)
    return values


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    weights: Arrays | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 21,
) -> onnx.ModelProto:
    """Make a model; inputs and weights are arrays by name, the first dimension of an input is free."""
    ends = []
    for name, array in inputs.items():
        shape = [f"{name}_n", *array.shape[1:]] if array.ndim else []
        ends.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    body = helper.make_graph(nodes, "g", ends, results, stored)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return typed(model)


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for value, output in zip(model.graph.output, inferred.graph.output, strict=True):
        kind = output.type.tensor_type
        dims = [dim.dim_value or dim.dim_param for dim in kind.shape.dim]
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind.elem_type or TensorProto.FLOAT, dims))
    return model


def one(
    op: str,
    inputs: Arrays,
    weights: Arrays | None = None,
    outputs: int = 1,
    opset: int = 21,
    order: Sequence[str] | None = None,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """Make a model of one node; its inputs are ``order``, by default the inputs and then the weights."""
    names = [f"y{i}" for i in range(outputs)] if outputs > 1 else ["y"]
    node = helper.make_node(op, order or [*inputs, *(weights or {})], names, name=f"/{op}", **attributes)
    return graph([node], inputs, weights, names, opset), inputs


RUNTIME_OPSET = 24
"""The newest operator set of which onnxruntime has all operators of the cases; ONNX's own reference computes newer ones."""


def computed(model: onnx.ModelProto, inputs: Arrays) -> list[Array]:
    """Return what onnxruntime, or for a newer operator set ONNX's reference, computes."""
    run = (
        ort.InferenceSession(model.SerializeToString()).run
        if model.opset_import[0].version <= RUNTIME_OPSET
        else ReferenceEvaluator(model).run
    )
    outputs: Any = run(None, inputs)
    return outputs


def compare(model: onnx.ModelProto, inputs: Arrays, atol: float = 1e-5) -> nn.Module:
    expected = computed(model, inputs)
    module, declared = module_of(model)
    assert list(declared) == list(inputs)
    with torch.no_grad():
        found = module(*(torch.from_numpy(array) for array in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(expected)
    for tensor, array in zip(found, expected, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_allclose(tensor.numpy(), array, atol=atol, rtol=1e-5)
    return module


def fake(module: nn.Module, inputs: Arrays) -> list[tuple[int, ...]]:
    """Run a copy of the module, and its inputs, as fake tensors; return the shapes of the outputs."""
    with FakeTensorMode() as mode:
        fakes: dict[str, torch.Tensor] = {
            name: mode.from_tensor(tensor) for name, tensor in module.state_dict(keep_vars=True).items()
        }
        fakes |= {name: mode.from_tensor(tensor) for name, tensor in module.named_buffers()}
        found = called(module, fakes, tuple(mode.from_tensor(torch.from_numpy(a)) for a in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    return [tuple(tensor.shape) for tensor in found]


X1, X2, X3 = numbers(2, 4, 11), numbers(2, 4, 9, 8), numbers(2, 4, 6, 7, 5)
IMAGE = {"x": X2}
MATRIX = {"x": numbers(3, 6)}
POSITIVE = {"x": np.abs(numbers(3, 6)) + 0.1}
PAIR = {"a": numbers(3, 6), "b": numbers(3, 6, seed=8)}
BOOLS = {"a": numbers(3, 6) > 0, "b": numbers(3, 6, seed=8) > 0}
WHOLE = {"a": np.array([[7, -7, 5]], np.int64), "b": np.array([[2, 2, -3]], np.int64)}
TOKENS = {"x": np.array([[0, 3, -1], [2, 2, 1]], np.int64)}
STEPS = {"x": numbers(5, 2, 3)}


def conv(*shape: int, bias: int | None = None) -> Arrays:
    return {"w": numbers(*shape, seed=1)} | ({} if bias is None else {"b": numbers(bias, seed=2)})


def norm(channels: int) -> Arrays:
    return {"s": numbers(channels), "b": numbers(channels, seed=9)}


def recurrent(gates: int, directions: int, hidden: int = 4, inputs: int = 3) -> Arrays:
    shapes = {"w": (directions, gates * hidden, inputs), "r": (directions, gates * hidden, hidden)}
    return {name: numbers(*shape, seed=3) for name, shape in shapes.items()} | {"b": numbers(directions, 2 * gates * hidden)}


def exported(name: str, shape: tuple[int, ...], batch: int = 2) -> tuple[onnx.ModelProto, Arrays]:
    inputs = {"x": numbers(batch, *shape)}
    model = onnx.load_model_from_string(forward_graph(Architecture(name, shape, 10).build().eval(), shape))
    return model, inputs


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
