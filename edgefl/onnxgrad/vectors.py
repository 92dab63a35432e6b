"""Products of a matrix and a vector, in a form that onnxruntime computes right.

onnxruntime fuses a Transpose with the MatMul that reads it. If the second factor is a vector, the fused product is wrong.
"""

import onnx_ir as ir


def as_matrices(model: ir.Model) -> None:
    """Replace each MatMul by a vector by one with a matrix of one column, in place."""
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
        axis = _axis(model, f"{result.name}_axis")
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


def _axis(model: ir.Model, name: str) -> ir.Value:
    tensor = ir.tensor([-1], ir.DataType.INT64, name=name)
    value = ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _described(value: ir.Value, name: str | None, shape: ir.Shape | None, like: ir.Value) -> None:
    value.name, value.shape, value.type = name, shape, like.type
