"""Small readers of ONNX records that several files share."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.shape_inference


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
