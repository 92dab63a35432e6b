"""An ONNX graph as a torch module: its names and parameters, its modes, and what it computes of shapes."""

import copy

import numpy as np
import pytest
import torch
from graph_case import IMAGE, MATRIX, PAIR, compare, count, exported, fake, graph, ints, numbers, one
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.errors import InputError
from edgefl.onnxgrad.rules import FOLDED
from edgefl.onnxgrad.to_torch import module_of


def test_a_module_built_under_fake_tensors_trains_on_them():
    model, _ = exported("cnn-digits", (1, 8, 8))
    with FakeTensorMode():
        module, declared = module_of(model)
        module.train()
        assert declared == {"x": (("batch", 1, 8, 8), torch.float32)}
        logits = module(torch.empty(7, 1, 8, 8))
        logits.sum().backward()
        assert logits.shape == (7, 10)
        assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())


def computed_shape():
    """Flatten through shapes that the graph computes: (n, c, …) to (n, c·h·w) and back, times a constant of Range."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(ints(0))),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("Shape", ["rows"], ["rows_shape"], start=1),
        helper.make_node("Squeeze", ["rows_shape"], ["columns"]),
        helper.make_node("Range", ["start", "columns", "step"], ["positions"]),
        helper.make_node("Cast", ["positions"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows", "floats"], ["scaled"]),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.float32([1]))),
        helper.make_node("Reshape", ["scaled", "shape"], ["back"]),
        helper.make_node("Add", ["back", "ones"], ["y"]),
    ]
    inputs = {"x": numbers(2, 3, 4)}
    return graph(nodes, inputs, {"start": np.array(0), "step": np.array(1)}, ("y", "flat")), inputs


def test_shapes_that_the_graph_computes_are_known_under_fake_tensors():
    model, inputs = computed_shape()
    module = compare(model, inputs)
    assert fake(module, inputs) == [(2, 3, 4), (2,)]
    assert not list(module.parameters())


def test_scales_that_are_concatenated_are_settings_and_no_parameters():
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["s"], axis=0),
        helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest"),
    ]
    model = graph(nodes, IMAGE, {"a": np.ones(2, np.float32), "b": np.full(2, 2, np.float32)})
    assert not list(compare(model, IMAGE).parameters())


def test_layers_have_the_names_of_nodes_without_clashes():
    names = ["/block.0/conv", "block_0_conv", "", "forward"]
    values = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [values[i]], [values[i + 1]], name=name) for i, name in enumerate(names)]
    module, _ = module_of(graph(nodes, MATRIX))
    assert [name for name, _ in module.named_children()] == ["block_0_conv", "block_0_conv_", "Relu_2", "forward_"]


def test_a_shared_initializer_is_one_parameter_of_two_layers():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="a"), helper.make_node("MatMul", ["h", "w"], ["y"], name="b")]
    module = compare(graph(nodes, MATRIX, {"w": numbers(6, 6)}), MATRIX)
    assert module.a.B is module.b.B
    assert len(list(module.parameters())) == 1


def test_ones_that_two_layers_read_are_a_parameter_of_each():
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "b"], ["h"], name="a"),
        helper.make_node("LayerNormalization", ["h", "s", "b"], ["y"], name="b"),
    ]
    model = graph(nodes, MATRIX, {"s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)})
    assert count(compare(model, MATRIX)) == 4 * 6


def test_what_is_no_weight_is_no_parameter():
    mask = np.array([0, -np.inf, 0, 0, 0, 0], np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["h"]),
        helper.make_node("Add", ["h", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    module = compare(graph(nodes, MATRIX, {"half": np.float32(0.5), "mask": mask}), MATRIX)
    assert not list(module.parameters())
    assert not module.state_dict()


def test_dropout_drops_in_training_only():
    module, _ = module_of(one("Dropout", MATRIX, {"ratio": np.float32(0.9)})[0])
    x = torch.ones(40, 6)
    assert torch.equal(module(x), x)
    assert (module.train()(x) == 0).any()


def test_a_layer_can_be_replaced_and_the_module_copied():
    model, inputs = one("Gemm", MATRIX, {"w": numbers(5, 6), "b": numbers(5)}, transB=1)
    module, _ = module_of(model)
    linear = nn.Linear(6, 5)
    with torch.no_grad():
        linear.weight.copy_(module.Gemm.B)
        linear.bias.copy_(module.Gemm.C)
    x = torch.from_numpy(inputs["x"])
    expected = copy.deepcopy(module)(x)
    module.Gemm = linear
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_values_are_let_go_after_their_last_use():
    names = ["x", "a", "b", "c", "y"]
    model = graph([helper.make_node("Exp", [names[i]], [names[i + 1]], name=names[i + 1]) for i in range(4)], MATRIX)
    module, _ = module_of(model)
    assert module.last_use == {"a": ("x",), "b": ("a",), "c": ("b",), "y": ("c",)}


def test_a_number_of_inputs_is_explained():
    module, _ = module_of(one("Add", PAIR)[0])
    with pytest.raises(InputError, match=r"^got 1 inputs, expected 2: a, b$"):
        module(torch.ones(3, 6))


def test_a_type_without_a_rule_does_not_matter_where_values_are_known():
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["t"], to=TensorProto.UINT64),
             helper.make_node("Cast", ["t"], ["y"], to=TensorProto.INT64)]  # fmt: skip
    compare(graph(nodes, MATRIX), MATRIX)


FROM_CONSTANTS = {
    "HannWindow": {"n": np.array(6)}, "HammingWindow": {"n": np.array(6)}, "BlackmanWindow": {"n": np.array(6)},
    "NonZero": {"v": np.float32([0, 1, 0, 2, 3, 4, 5, 6])}, "Unique": {"v": np.float32([3, 1, 2, 5, 4, 0, 0])},
    "MelWeightMatrix": {"b": np.array(6), "d": np.array(8), "r": np.array(8192), "l": np.float32(0), "h": np.float32(4096)},
}  # fmt: skip


@pytest.mark.parametrize("op", FROM_CONSTANTS)
def test_what_follows_from_constants_is_one(op):
    nodes = [helper.make_node(op, list(FROM_CONSTANTS[op]), ["c"]), helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("Mul", ["x", "f"], ["y"])]  # fmt: skip
    inputs = {"x": numbers(5, 6)} if op == "MelWeightMatrix" else MATRIX
    assert not list(compare(graph(nodes, inputs, FROM_CONSTANTS[op]), inputs).parameters())


def test_every_folded_operator_is_in_a_test():
    assert {node.op_type for node in computed_shape()[0].graph.node} | set(FROM_CONSTANTS) >= FOLDED


def test_weights_that_are_stored_as_integers_train_as_numbers():
    quantized = {
        "w": np.int8([[1, -2], [3, 4], [5, 6], [7, 8], [9, 0], [-1, 2]]),
        "s": np.float32([0.5, 0.25]),
        "z": np.int8([1, 0]),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=1),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    module, _ = module_of(graph(nodes, MATRIX, quantized))
    ((name, weight),) = module.named_parameters()
    assert name == "MatMul_1.B"
    assert weight.tolist() == ((quantized["w"] - quantized["z"]) * quantized["s"]).tolist()
    assert np.allclose(module(torch.from_numpy(MATRIX["x"])).detach(), MATRIX["x"] @ weight.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("DequantizeLinear", ["x", "s"], ["y"], axis=1), {"s": np.abs(numbers(6))}),
        (helper.make_node("QuantizeLinear", ["x", "s"], ["y"], axis=1), {"s": np.abs(numbers(6))}),
        (helper.make_node("OneHot", ["x", "d", "s"], ["y"]), {"d": np.array(4), "s": np.float32([0, 1])}),
    ],
)
def test_scales_and_codes_are_constants(node, constants):
    kind = {"QuantizeLinear": np.float32, "DequantizeLinear": np.int32, "OneHot": np.int64}[node.op_type]
    inputs = {"x": np.ones((3, 6), kind)}
    module = compare(graph([node], inputs, constants), inputs)
    assert not list(module.parameters())
    assert not module.state_dict()


def test_weights_that_a_graph_makes_of_constants_train():
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(numbers(5, 6))),
        helper.make_node("ConstantOfShape", ["five"], ["b"], value=numpy_helper.from_array(np.float32([0.5]))),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
    ]
    module = compare(graph(nodes, MATRIX, {"five": ints(5)}), MATRIX)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {"Gemm_2.B": (5, 6), "Gemm_2.C": (5,)}
