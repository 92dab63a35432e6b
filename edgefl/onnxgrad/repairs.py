"""Puts right what torch's exporter and its optimizer write: names of values, lost constants, targets of Reshapes, products with vectors."""

import itertools
from collections.abc import Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass, ShapeInferencePass

from edgefl.onnxgrad.contexts import quiet
from edgefl.onnxgrad.graphs import BATCH


def make_distinct(model: ir.Model) -> None:
    """Rename values that have the name of another value, in place. Inputs and outputs keep theirs, and weights if they can.

    torch's exporter calls a value like its operation, such as ``mean``, also if a weight of the network has that name. The optimizer then
    takes the shape of one for that of the other.
    """
    graph = model.graph
    kept = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    used = {value.name for value in _values(graph)}
    seen: dict[str | None, ir.Value] = {}
    for value in [*kept, *_values(graph)]:
        if seen.setdefault(value.name, value) is not value:
            value.name = _unused(str(value.name), used)
            seen[value.name] = value


def register_constants(model: ir.Model) -> None:
    """Register constants that nodes read and the graph does not list, in place.

    The optimizer leaves out some that its rules make, such as the target of two joined Reshapes. It names the bounds of a Clip by the value
    that is clipped: of two Clips of one value, it lists the bounds of the last.
    """
    graph = model.graph
    used = {value.name for value in _values(graph)}
    read = [value for node in graph.all_nodes() for value in node.inputs if value is not None and value.const_value is not None]
    for value in read:
        listed = graph.initializers.get(str(value.name))
        if listed is value or value.producer() is not None or value.is_graph_input():
            continue
        if listed is not None:
            value.name = _unused(str(value.name), used)
        graph.register_initializer(value)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value of a graph: inputs, weights and results of nodes, also inside the bodies of loops."""
    yield from (*graph.inputs, *graph.initializers.values())
    for node in graph.all_nodes():
        yield from node.outputs


def _unused(name: str, used: set[str | None]) -> str:
    """Return ``name`` with a number that makes it new, and add it to ``used``."""
    new = next(other for i in itertools.count(1) if (other := f"{name}_{i}") not in used)
    used.add(new)
    return new


def fixed_reshapes(model: ir.Model) -> ir.Model:
    """Give every Reshape a constant target if its free sizes are the batch in the input's own place, which is 0 in the target.

    The exporter computes such targets in the graph, from the Shape of another value, and later shapes are then unknown: MACs cannot be
    counted, and a runtime cannot reuse memory for values of unknown shape, and holds up to a third more. Unused nodes are removed.
    """
    as_matrices(model)
    exported = {value: value.shape for node in model.graph for value in node.outputs}
    _without_scalar_reshapes(model)
    with quiet():
        ShapeInferencePass(data_prop=True)(model)
    for node in list(model.graph):
        if node.op_type != "Reshape" or node.inputs[0] is None:
            continue
        before, after = node.inputs[0].shape, node.outputs[0].shape
        sizes = [size if isinstance(size, int) else _kept(before, axis, size) for axis, size in enumerate(after or ())]
        if before and sizes and 0 in sizes and None not in sizes:
            target = [size for size in sizes if size is not None]
            node.replace_input_with(1, _integers(model, f"{node.outputs[0].name}_shape", target))
            node.attributes.pop("allowzero", None)  # with it, 0 is a size of its own
    for value, shape in exported.items():
        value.shape = _merged(shape, value.shape)
    RemoveUnusedNodesPass()(model)
    RemoveUnusedOpsetsPass()(model)
    return model


def _merged(exported: ir.Shape | None, inferred: ir.Shape | None) -> ir.Shape | None:
    """Return the sizes that torch knows, and where it knows none the numbers that ONNX infers.

    Names that ONNX infers are left out: with them, onnxruntime holds now more, now less memory for one and the same graph.
    """
    if exported is None or inferred is None or len(exported) != len(inferred):
        return exported or inferred
    sizes = zip(exported, inferred, strict=True)
    return ir.Shape(own if isinstance(own, int) and of_torch == ir.SymbolicDim(None) else of_torch for of_torch, own in sizes)


def _kept(before: ir.Shape | None, axis: int, size: ir.SymbolicDim) -> int | None:
    """Return 0, "the size of the input's own dimension", for a batch that stays at its axis; None for any other free size."""
    return 0 if before and axis < len(before) and str(before[axis]) == str(size) == BATCH else None


def _without_scalar_reshapes(model: ir.Model) -> None:
    """Remove Reshapes of one size to one size, through which ONNX's inference does not follow the sizes of layers after a recurrent one."""
    for node in list(model.graph):
        if (
            node.op_type == "Reshape"
            and node.inputs[0] is not None
            and node.inputs[0].shape == node.outputs[0].shape == ir.Shape([1])
        ):
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])


def as_matrices(model: ir.Model) -> None:
    """Replace each MatMul by a vector by one with a matrix of one column, in place.

    onnxruntime fuses a Transpose with the MatMul that reads it. If the second factor is a vector, the fused product is wrong.
    """
    for node in list(model.graph):
        if node.op_type != "MatMul" or node.domain or len(node.inputs) != 2:
            continue
        left, vector = node.inputs
        if (
            left is None
            or vector is None
            or vector.shape is None
            or len(vector.shape) != 1
            or left.shape is None
            or len(left.shape) < 2
        ):
            continue
        (result,) = node.outputs
        axis = _integers(model, f"{result.name}_axis", [-1])
        column = ir.Node("", "Unsqueeze", [vector, axis], name=f"{node.name}_column")
        product = ir.Node("", "MatMul", [left, column.outputs[0]], name=node.name)
        squeezed = ir.Node("", "Squeeze", [product.outputs[0], axis], name=f"{node.name}_vector")
        _described(column.outputs[0], f"{result.name}_column", ir.Shape([*vector.shape, 1]), result)
        _described(product.outputs[0], f"{result.name}_product", ir.Shape([*left.shape[:-1], 1]), result)
        name = result.name
        result.name = f"{name}_before"
        _described(squeezed.outputs[0], name, result.shape, result)
        model.graph.insert_after(node, [column, product, squeezed])
        ir.convenience.replace_all_uses_with(result, squeezed.outputs[0], replace_graph_outputs=True)
        model.graph.remove(node, safe=True)


def _integers(model: ir.Model, name: str, numbers: Sequence[int]) -> ir.Value:
    """Return a new constant of whole numbers."""
    tensor = ir.tensor(numbers, ir.DataType.INT64, name=name)
    value = ir.Value(name=name, shape=ir.Shape([len(numbers)]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _described(value: ir.Value, name: str | None, shape: ir.Shape | None, like: ir.Value) -> None:
    value.name, value.shape, value.type = name, shape, like.type
