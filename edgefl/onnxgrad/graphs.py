"""Reads ONNX models, frees their batch size, and moves weights to a second file, which models of more than 2 GB need."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference
from onnx.external_data_helper import set_external_data

from edgefl.onnxgrad.contexts import scratch_folder
from edgefl.onnxgrad.errors import printable

OPSET = 20
"""The operator set of all graphs.

From 21 on GroupNormalization is one operator, which onnxruntime expands into about 30: 10 % slower, and twice the memory.
"""


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield ``graph`` and every graph inside its nodes: branches of If, bodies of Loop and Scan."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for nested in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs_in(nested)


def strip(model: onnx.ModelProto) -> None:
    """Clear the exporter's stack traces, in place. onnx-ir's own pass leaves those of values and weights."""
    records = [model]
    for graph in graphs_in(model.graph):
        records += [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    for record in records:
        record.ClearField("doc_string")
        record.ClearField("metadata_props")


def label_of(node: onnx.NodeProto, index: int | None) -> str:
    """Return a node's name and operator, for messages; a node without a name is called by its position or its outputs."""
    name = node.name or (f"number {index}" if index is not None else f"of {', '.join(node.output)}")
    return printable(f"node {name} ({node.op_type})", layout="")


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node: name → number, text (str), tensor or graph, or a list of them."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: [_text(v) for v in value] if isinstance(value, list) else _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def dims_of(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the shape of a graph's input or output: an int for a fixed size, a name for a free one."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)


def inferred_shapes(model: onnx.ModelProto, *, strict: bool = False) -> dict[str, tuple[int | str, ...]]:
    """Return value → shape (see :func:`dims_of`), for initializers and values whose shape ONNX can infer.

    With ``strict``, onnx raises an InferenceError if shapes contradict each other.
    """
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True).graph
    values = (value for value in (*graph.value_info, *graph.input, *graph.output) if value.type.tensor_type.HasField("shape"))
    return {**{value.name: dims_of(value) for value in values}, **{i.name: tuple(i.dims) for i in graph.initializer}}


def with_flat_output(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model; if its only output has several dimensions for each sample, one that makes a row (batch, values) of them."""
    output, *others = model.graph.output
    batch, dims = dims_of(output)[:1], dims_of(output)[1:]
    if others or len(dims) < 2 or not all(isinstance(size, int) for size in dims):
        return model
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    inner = f"{output.name}.wide"
    for node in flat.graph.node:
        for names in (node.input, node.output):
            renamed = [inner if name == output.name else name for name in names]
            del names[:]
            names.extend(renamed)
    flat.graph.node.append(onnx.helper.make_node("Flatten", [inner], [output.name], f"Flatten_{output.name}", axis=1))
    ends = onnx.helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, [*batch, math.prod(map(int, dims))])
    flat.graph.output[0].CopyFrom(ends)
    return flat


LIMIT_BYTES = (1 << 31) - 1
"""The largest ONNX file: protobuf allows no more."""
_LEAST_BYTES = 1024
"""Smaller tensors stay in the graph: some are targets of Reshapes, which runtimes read while they load."""
_ALIGNMENT = 4096
"""Tensors begin at whole pages, so that a runtime can map the file into memory."""


def split(model: onnx.ModelProto, path: str, limit_bytes: int = LIMIT_BYTES) -> dict[str, bytes]:
    """Move the weights of ``model``, in place, to a second file if the model exceeds ``limit_bytes``.

    Return the second file as {path: content}, empty if there is none. It is the file ``path``, that of the model, with ``.data``.
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
    """Run ONNX's full check, with onnx's errors, on a model. Its weights may be in a second file; their values are not read."""
    places: dict[str, int] = {}
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            about = {entry.key: entry.value for entry in tensor.external_data}
            if name := about.get("location"):
                places[name] = max(places.get(name, 0), int(about.get("offset", 0)) + int(about.get("length", 0)))
    if not places:
        onnx.checker.check_model(model, full_check=True)
        return
    with scratch_folder() as folder:
        for name, size_bytes in places.items():  # sparse files of the right size satisfy the checker
            (folder / name).touch()
            os.truncate(folder / name, size_bytes)
        graph_file = folder / "checked.onnx"
        graph_file.write_bytes(model.SerializeToString())
        onnx.checker.check_model(graph_file, full_check=True)


BATCH = "batch"
"""Name of the free size."""


def free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a free batch size if all inputs have the same fixed first dimension, else the model itself.

    The targets of Reshapes become independent of the batch. Initial states of zeros are removed from recurrent layers, which default
    to zeros. A graph that computes with the batch size in another way keeps its number, and fails at another batch size.
    """
    graph = model.graph
    weights = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    sizes = {dims_of(value)[:1] for value in inputs}
    if len(sizes) != 1 or not isinstance(fixed := next(iter(sizes), ("",))[0], int):
        return model
    free = onnx.ModelProto()
    free.CopyFrom(model)
    shapes = {name: shape for name, shape in inferred_shapes(model).items() if name not in weights}
    for value in (*free.graph.input, *free.graph.output):
        if value.name not in weights and dims_of(value)[:1] == (fixed,):
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    free.graph.ClearField("value_info")
    for node in free.graph.node:
        if node.op_type == "Reshape":
            target = _free_target(shapes.get(node.input[0], ()), shapes.get(node.output[0], ()), fixed)
            if target is not None:
                _write_target(free.graph, node, target)
    _drop_zero_states(free.graph)
    return free


def _free_target(before: tuple[int | str, ...], after: tuple[int | str, ...], fixed: int) -> list[int] | None:
    """Return the target of a Reshape from shape ``before`` to ``after`` for any batch size; None if the batch cannot be found.

    ``fixed`` is the batch size of the export. A dimension that keeps its place becomes 0 (the input's own size); the dimension that
    the batch is merged into becomes -1.

    >>> _free_target((2, 12, 4, 4), (2, 12, 16), 2), _free_target((12, 2, 16), (12, 8, 4), 2), _free_target((24, 16), (12, 2, 16), 2)
    ([0, 12, 16], [0, -1, 4], [12, -1, 16])
    """
    old, new = ([size for size in shape if isinstance(size, int)] for shape in (before, after))
    if len(new) < len(after) or before[:1] == after[:1] == (fixed,):
        return [0, *new[1:]] if len(new) == len(after) else None
    if len(old) < len(before) or math.prod(old) != math.prod(new) or not math.prod(old):
        return None
    groups = _groups(old, new)
    stays = {rows[0] for rows, columns in groups if rows == columns and len(rows) == 1}
    target = [0 if axis in stays else size for axis, size in enumerate(new)]
    if any(old[axis] == fixed for axis in stays):
        return target
    moved = [(rows, columns) for rows, columns in groups if columns and not (len(rows) == 1 and rows[0] in stays)]
    holders = [group for group in moved if any(old[row] == fixed for row in group[0])]
    if len(holders) != 1:  # look for a dimension into which the batch was merged before
        changed = [group for group in moved if len(group[0]) > 1 or len(group[1]) > 1]
        holders = [group for group in changed if any(old[row] % fixed == 0 for row in group[0])]
    if len(holders) != 1:
        return None
    rows, columns = holders[0]
    same = [axis for axis in columns if new[axis] == fixed]
    multiples = [axis for axis in columns if new[axis] % fixed == 0]
    choice = multiples if old[rows[0]] == fixed or len(same) != 1 else same
    if not choice:
        return None
    target[choice[0]] = -1  # if the first is wrong, the result does not fit the next weights, and the graph fails
    return target


def _groups(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of consecutive dimensions of a Reshape's input and output that have equal products.

    >>> _groups([12, 2, 4, 4], [24, 16])
    [([0, 1], [0]), ([2, 3], [1])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        rows, columns, left, right = [i], [j], old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                left *= old[i]
                rows.append(i)
            else:
                j += 1
                right *= new[j]
                columns.append(j)
        groups.append((rows, columns))
        i, j = i + 1, j + 1
    return groups


def _drop_zero_states(graph: onnx.GraphProto) -> None:
    zeros = {tensor.name for tensor in graph.initializer if not onnx.numpy_helper.to_array(tensor).any()}
    for node in graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN"):
            for slot in range(5, min(7, len(node.input))):  # initial_h and initial_c
                if node.input[slot] in zeros:
                    node.input[slot] = ""


def _write_target(graph: onnx.GraphProto, node: onnx.NodeProto, target: list[int]) -> None:
    name = f"{node.output[0]}_shape"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(target, dtype=np.int64), name))
    node.input[1] = name
    node.ClearField("attribute")  # with allowzero, 0 is a size of its own
