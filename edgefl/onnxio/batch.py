"""A free batch: graphs are counted and run at any batch size, whatever the one that they were exported with."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference

from edgefl.onnxio.graphs import dims_of, graphs_in

BATCH = "batch"


def free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with a free first dimension of its inputs, where it was exported with a fixed one.

    Reshapes to that fixed batch take their input's first dimension instead. A graph that computes with the number itself stays what it
    is, and fails when it runs at another batch.
    """
    graph = model.graph
    weights = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    sizes = {dims_of(value)[:1] for value in inputs}
    if len(sizes) != 1 or not isinstance(fixed := next(iter(sizes), ("",))[0], int):
        return model
    free = onnx.ModelProto()
    free.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {value.name: dims_of(value) for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    for value in (*free.graph.input, *free.graph.output):
        if value.name not in weights and dims_of(value)[:1] == (fixed,):
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    free.graph.ClearField("value_info")
    for node in free.graph.node:
        if node.op_type == "Reshape" and shapes.get(node.input[0], ())[:1] == shapes.get(node.output[0], ())[:1] == (fixed,):
            set_target(free.graph, node, shapes[node.output[0]])
    return free


def fixed_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give every Reshape a constant target where only the batch is free: "the input's own first dimension, then these".

    The exporter computes such a target while the graph runs (Shape of another value), and shapes are unknown from there on: a runtime
    then cannot let one value take another's place in memory, and holds up to a third more.
    """
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {value.name: dims_of(value) for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    for node in model.graph.node:
        if node.op_type == "Reshape":
            before, after = shapes.get(node.input[0], ()), shapes.get(node.output[0], ())
            if before[:1] == after[:1] == (BATCH,):
                set_target(model.graph, node, after)
    drop_unread(model.graph)
    return model


def set_target(graph: onnx.GraphProto, node: onnx.NodeProto, after: tuple[int | str, ...]) -> None:
    """Make a Reshape keep its input's first dimension and give the others the sizes ``after``, if all are known."""
    if not all(isinstance(size, int) for size in after[1:]):
        return
    name = f"{node.output[0]}_shape"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, *after[1:]], dtype=np.int64), name))
    node.input[1] = name
    node.ClearField("attribute")  # with allowzero, 0 would be a size


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes and initializers whose values nobody reads."""
    while True:
        read = {name for part in graphs_in(graph) for node in part.node for name in node.input} | {v.name for v in graph.output}
        dead = [node for node in graph.node if not read.intersection(node.output)]
        for node in dead:
            graph.node.remove(node)
        if not dead:
            break
    for initializer in [i for i in graph.initializer if i.name not in read]:
        graph.initializer.remove(initializer)
