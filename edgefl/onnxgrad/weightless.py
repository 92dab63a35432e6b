"""A graph without the values of its weights, which those of another network of the same structure may fill."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data")


def weightless(model: onnx.ModelProto, weights: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return ``model`` without the values of the initializers called as ``weights`` are. It must have been made with these unfolded."""
    empty = onnx.ModelProto()
    empty.CopyFrom(model)
    for tensor in empty.graph.initializer:
        if tensor.name in weights:
            for field in _FIELDS:
                tensor.ClearField(field)
    return empty.SerializeToString(deterministic=True)


def filled(content: bytes, weights: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """Return a graph of :func:`weightless` with ``weights``, by name.

    >>> scale = onnx.helper.make_node("Mul", ["x", "scale"], ["y"])
    >>> ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    >>> values = [onnx.numpy_helper.from_array(np.ones(2, np.float32), "scale")]
    >>> content = weightless(onnx.helper.make_model(onnx.helper.make_graph([scale], "g", ends[:1], ends[1:], values)), {"scale": values})
    >>> (tensor,) = filled(content, {"scale": np.array([2, 3], np.float32)}).graph.initializer
    >>> onnx.numpy_helper.to_array(tensor).tolist()
    [2.0, 3.0]
    """
    model = onnx.load_model_from_string(content)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(weights[tensor.name]), tensor.name))
    return model
