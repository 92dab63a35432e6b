"""Versions of ONNX's operator set: which the reader's rules are for, and how it converts older ones."""

import onnx
import onnx.shape_inference
import onnx.version_converter

from edgefl.onnxgrad.errors import InputError, first_line
from edgefl.onnxgrad.graphs import dims_of, label_of

OLDEST_OPSET = 6
"""The oldest set that onnx converts without loss."""
CURRENT_OPSET = 13
"""Older sets are converted to this one: in them Softmax, Squeeze and the reductions are defined differently."""
NEWEST_OPSET = 28
"""The newest set that the rules were tested with; a newer onnx may know newer ones."""


def version_of(model: onnx.ModelProto) -> int:
    """Return the version of a model's operator set ai.onnx; InputError if it has another one, none, or an unknown version."""
    for index, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise InputError(f"{label_of(node, index)}: operator set {node.domain!r}, expected only ai.onnx")
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    opset = versions.get("ai.onnx", 0)
    if not opset:
        raise InputError("names no operator set of ai.onnx: not an ONNX model, or one without standard operators")
    newest = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"operator set {opset}, expected {OLDEST_OPSET} to {newest}; convert it, or export it again")
    return opset


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of at least operator set :data:`CURRENT_OPSET`: the model itself, or what onnx's converter makes of it.

    Raises:
        InputError: the set is not supported, or onnx cannot convert an operator (named).
    """
    opset = version_of(model)
    if opset >= CURRENT_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(_with_channel_slopes(model) if opset < 7 else model, CURRENT_OPSET)
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its adapters do
        raise InputError(
            f"operator set {opset} cannot be converted to {CURRENT_OPSET} ({first_line(error)}); export the network again"
        ) from None


def _with_channel_slopes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of set 6 whose PReLU has slopes (channels, 1, …): from set 7 on they broadcast, which onnx does not convert."""
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    ranks = {value.name: len(dims_of(value)) for value in (*graph.input, *graph.value_info)}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "PRelu" and ranks.get(node.input[1]) == 1 and ranks.get(node.input[0], 0) > 2:
            wide = f"{node.output[0]}_slopes"
            axes = list(range(1, ranks[node.input[0]] - 1))
            graph.node.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [wide], axes=axes))
            node.input[1] = wide
        graph.node.append(node)
    return inferred
