"""Readers of ONNX models, and weights beside the graph, which models of more than 2 GB need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.shape_inference
from onnx.external_data_helper import set_external_data


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield ``graph`` and every graph nested in its nodes: the branches and bodies of If, Loop and Scan."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for nested in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs_in(nested)


def dims_of(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the shape of a graph's input or output: a number where it is fixed, a name where it is free."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)


def inferred_shapes(model: onnx.ModelProto, *, strict: bool = False) -> dict[str, tuple[int | str, ...]]:
    """Return value → shape as :func:`dims_of`, for initializers and every value whose shape the operators' own rules tell.

    Raises:
        onnx.shape_inference.InferenceError: with ``strict``, the shapes contradict each other.
    """
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True).graph
    values = (value for value in (*graph.value_info, *graph.input, *graph.output) if value.type.tensor_type.HasField("shape"))
    return {**{value.name: dims_of(value) for value in values}, **{i.name: tuple(i.dims) for i in graph.initializer}}


LIMIT_BYTES = (1 << 31) - 1
_LEAST_BYTES = 1024
"""Smaller tensors stay inside: among them are the targets of Reshapes, which runtimes want to know while they load the graph."""
_ALIGNMENT = 4096
"""Tensors begin at whole pages, so that a runtime can map the file instead of reading it."""


def split(model: onnx.ModelProto, path: str, limit_bytes: int = LIMIT_BYTES) -> dict[str, bytes]:
    """Move the weights of ``model`` to the file beside ``path`` where the two together exceed ``limit_bytes``; else do nothing.

    The model is changed in place: its larger initializers then say where in that file they lie.

    Args:
        model: of any size, with its weights inside, as raw data.
        path: of the graph in the bundle.
        limit_bytes: the most that the graph's file may hold.

    Returns:
        The file beside the graph by its path, or nothing.
    """
    if model.ByteSize() <= limit_bytes:
        return {}
    data = bytearray()
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            if len(content := tensor.raw_data) >= _LEAST_BYTES:
                data += bytes(-len(data) % _ALIGNMENT)
                set_external_data(tensor, f"{Path(path).name}.data", len(data), len(content))
                tensor.ClearField("raw_data")
                data += content
    return {f"{path}.data": bytes(data)} if data else {}


def check(model: onnx.ModelProto) -> None:
    """Run the checker over a model, all of its rules, also where weights lie outside; their values are not looked at.

    Raises:
        ValidationError, InferenceError: onnx's own, where the model is not valid.
    """
    places: dict[str, int] = {}
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            about = {entry.key: entry.value for entry in tensor.external_data}
            if name := about.get("location"):
                places[name] = max(places.get(name, 0), int(about.get("offset", 0)) + int(about.get("length", 0)))
    if not places:
        onnx.checker.check_model(model, full_check=True)
        return
    with tempfile.TemporaryDirectory(prefix="edgefl-") as folder:
        for name, size_bytes in places.items():  # of the right size, and nothing in them: the checker asks for no more
            (Path(folder) / name).touch()
            os.truncate(Path(folder) / name, size_bytes)
        graph_file = Path(folder) / "checked.onnx"
        graph_file.write_bytes(model.SerializeToString())
        onnx.checker.check_model(graph_file, full_check=True)
