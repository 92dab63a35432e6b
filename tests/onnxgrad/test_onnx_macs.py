"""MACs of ONNX graphs against closed forms worked out by hand, and against those of the operations that torch dispatches."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from edgefl import profile
from edgefl.client.training import Training
from edgefl.errors import InputError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.macs import COUNTED, IGNORED, count_macs, macs_per_sample
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.util.fields import each


def model_of(nodes, inputs, weights, opset=21, outputs=("y",)):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(np.zeros(s, np.float32) if isinstance(s, tuple) else s, n) for n, s in weights.items()]
    body = helper.make_graph(nodes, "g", ends, results, stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def macs(op, inputs, weights=None, batch_size=2, opset=21, **attributes):
    node = helper.make_node(op, [*inputs, *(weights or {})], ["y"], name="layer", **attributes)
    counted = count_macs(model_of([node], inputs, weights or {}, opset), batch_size)
    assert counted.per_node == (("layer", op, counted.total),)
    assert counted.uncounted_ops == ()
    return counted.total


SMALL = {"x": ("n", 4, 8, 8)}

# Each right side: batch · output positions · output channels · kernel · input channels of a group.
CONVOLUTIONS = {
    "1-D": ({"x": ("n", 4, 11)}, (6, 4, 3), {"strides": [2], "pads": [1, 1]}, 2 * 6 * 6 * 3 * 4),
    "2-D": (SMALL, (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}, 2 * 64 * 6 * 9 * 4),
    "no pads": (SMALL, (6, 4, 3, 3), {}, 2 * 36 * 6 * 9 * 4),
    "mixed strides": (SMALL, (6, 4, 3, 1), {"strides": [2, 3], "pads": [1, 0, 1, 0]}, 2 * (4 * 3) * 6 * 3 * 4),
    "asymmetric pads": (SMALL, (6, 4, 3, 3), {"pads": [0, 0, 2, 1]}, 2 * (8 * 7) * 6 * 9 * 4),
    "same": (SMALL, (6, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 3]}, 2 * 9 * 6 * 9 * 4),
    "groups": (SMALL, (6, 2, 3, 3), {"group": 2}, 2 * 36 * 6 * 9 * 2),
    "depthwise": (SMALL, (4, 1, 3, 3), {"group": 4}, 2 * 36 * 4 * 9),
    "dilations": (SMALL, (6, 4, 3, 3), {"dilations": [2, 3]}, 2 * (4 * 2) * 6 * 9 * 4),
    "3-D": ({"x": ("n", 2, 4, 5, 6)}, (3, 2, 2, 3, 1), {"strides": [1, 1, 2]}, 2 * (3 * 3 * 3) * 3 * (2 * 3 * 1) * 2),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution(case):
    inputs, weight, attributes, expected = CONVOLUTIONS[case]
    assert macs("Conv", inputs, {"w": weight}, **attributes) == expected
    assert macs("Conv", inputs, {"w": weight, "b": (weight[0],)}, **attributes) == expected


# Each right side: batch · input positions · input channels · kernel · output channels of a group.
TRANSPOSED = {
    "1-D": ({"x": ("n", 4, 7)}, (4, 3, 5), {"strides": [3]}, 2 * 7 * 4 * 5 * 3),
    "2-D": (SMALL, (4, 6, 2, 2), {"strides": [2, 2]}, 2 * 64 * 4 * 4 * 6),
    "groups": (SMALL, (4, 3, 3, 2), {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1]}, 2 * 64 * 4 * 6 * 3),
    "3-D": ({"x": ("n", 2, 3, 4, 5)}, (2, 3, 2, 2, 2), {"dilations": [2, 1, 1]}, 2 * 60 * 2 * 8 * 3),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_convolution(case):
    inputs, weight, attributes, expected = TRANSPOSED[case]
    assert macs("ConvTranspose", inputs, {"w": weight}, **attributes) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "attributes", "expected"),
    [
        ("Gemm", {"x": ("n", 7)}, {"w": (7, 5), "b": (5,)}, {}, 2 * 7 * 5),
        ("Gemm", {"x": ("n", 7)}, {"w": (5, 7)}, {"transB": 1, "alpha": 0.5}, 2 * 7 * 5),
        ("Gemm", {"x": ("n", 7)}, {"w": (2, 5)}, {"transA": 1}, 7 * 2 * 5),
        ("MatMul", {"x": ("n", 3, 4, 7)}, {"w": (7, 5)}, {}, 2 * 3 * 4 * 7 * 5),
        ("MatMul", {"a": ("n", 1, 4, 7), "b": (3, 7, 5)}, {}, {}, 2 * 3 * 4 * 7 * 5),
        ("MatMul", {"x": ("n", 7)}, {"w": (7,)}, {}, 2 * 7),
        ("MatMul", {"a": (7,), "b": (7,)}, {}, {}, 7),
    ],
)
def test_a_matrix_product(op, inputs, weights, attributes, expected):
    assert macs(op, inputs, weights, **attributes) == expected


SCALE, ZERO = np.array(0.5, np.float32), np.array(0, np.int8)


@pytest.mark.parametrize(
    ("op", "weights", "expected"),
    [
        ("ConvInteger", {"w": np.zeros((6, 4, 3, 3), np.int8)}, 2 * 36 * 6 * 9 * 4),
        ("MatMulInteger", {"w": np.zeros((8, 5), np.int8)}, 2 * 4 * 8 * 8 * 5),
        ("QLinearConv", {"a": SCALE, "b": ZERO, "w": np.zeros((6, 4, 3, 3), np.int8), "c": SCALE, "d": ZERO, "e": SCALE, "f": ZERO},
         2 * 36 * 6 * 9 * 4),
        ("QLinearMatMul", {"a": SCALE, "b": ZERO, "w": np.zeros((8, 5), np.int8), "c": SCALE, "d": ZERO, "e": SCALE, "f": ZERO},
         2 * 4 * 8 * 8 * 5),
    ],
)  # fmt: skip
def test_integer_products_count_as_those_of_floats(op, weights, expected):
    node = helper.make_node(op, ["x", *weights], ["y"])
    model = model_of([node], SMALL, weights)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8 if op.startswith("QL") else TensorProto.INT32
    counted = count_macs(model, 2)
    assert (counted.total, counted.uncounted_ops) == (expected, ())


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("bij, bjk -> bik", [("n", 3, 4), ("n", 4, 5)], 2 * 3 * 4 * 5),
        ("bij,bkj", [("n", 3, 4), ("n", 5, 4)], 2 * 3 * 4 * 5),
        ("...ij,...jk->...ik", [("n", 6, 3, 4), (1, 6, 4, 5)], 2 * 6 * 3 * 4 * 5),
        ("bi,bi->b", [("n", 7), ("n", 7)], 2 * 7),
        ("bi,bi->bi", [("n", 7), ("n", 7)], 0),
        ("bi,bj->bij", [("n", 7), ("n", 3)], 0),
        ("bij->bi", [("n", 7, 3)], 0),
        ("bii->b", [("n", 7, 7)], 0),
        # z belongs to one operand alone: it is summed away first.
        ("biz,ij->bj", [("n", 3, 9), (3, 5)], 2 * 3 * 5),
        # From left to right: (b,i)(i,j) -> (b,j), then (b,j)(j,k) -> (b,k).
        ("bi,ij,jk->bk", [("n", 3), (3, 5), (5, 7)], 2 * 3 * 5 + 2 * 5 * 7),
    ],
)
def test_an_equation(equation, shapes, expected):
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    assert macs("Einsum", inputs, equation=equation) == expected


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("direction", "directions"), [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_a_recurrent_layer_counts_every_gate_step_and_direction(op, gates, direction, directions):
    steps, inputs, hidden = 6, 3, 5
    weights = {"w": (directions, gates * hidden, inputs), "r": (directions, gates * hidden, hidden)}
    expected = directions * steps * 2 * gates * hidden * (inputs + hidden)
    assert macs(op, {"x": (steps, 2, inputs)}, weights, direction=direction, hidden_size=hidden) == expected


@pytest.mark.parametrize(
    ("inputs", "attributes", "expected"),
    [
        ({"q": ("n", 4, 3, 8), "k": ("n", 4, 5, 8), "v": ("n", 4, 5, 6)}, {}, 2 * 4 * 3 * 5 * (8 + 6)),
        ({"q": ("n", 4, 3, 8), "k": ("n", 2, 5, 8), "v": ("n", 2, 5, 6)}, {"is_causal": 1}, 2 * 4 * 3 * 5 * (8 + 6)),
        (
            {"q": ("n", 3, 32), "k": ("n", 5, 16), "v": ("n", 5, 12)},
            {"q_num_heads": 4, "kv_num_heads": 2},
            2 * 4 * 3 * 5 * (8 + 6),
        ),
    ],
)
def test_attention_counts_scores_and_sums(inputs, attributes, expected):
    assert macs("Attention", inputs, opset=23, **attributes) == expected


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn-digits", (1, 8, 8)), ("resnet18", (3, 32, 32)), ("mlp", (1, 8, 8)), ("lstm-shakespeare", (6,))]
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_our_own_networks_count_as_in_torch(name, shape, batch_size):
    architecture = Architecture(name, shape, 80)
    model = export(architecture.build().eval(), {"x": each(torch.zeros_like, architecture.samples(2))})
    counted = count_macs(model, batch_size)
    cost = tier_cost(create("fedavg"), architecture, Tier(1.0), Training(1, 32))
    assert counted.total == batch_size * cost.macs_forward
    assert counted.uncounted_ops == ()


PRODUCTS = {
    "many distances": lambda x, w: torch.cdist(x.repeat(1, 8, 1), w),
    "few distances": lambda x, w: torch.cdist(x, w),
    "baddbmm": lambda x, w: torch.baddbmm(w[0], x, w.expand(len(x), 6, 6)),
    "addmv": lambda x, w: torch.addmv(w[0, :1], x.reshape(-1, 6), w[0]).unflatten(0, (-1, 4)),
    "outer": lambda x, w: torch.outer(x[:, 0, 0], w[0]),
    "einsum": lambda x, w: torch.einsum("bij,jk,j->bik", x, w, w[0]),
    "einsum, outer": lambda x, w: torch.einsum("bij,k->bijk", x, w[0]),
    "tensordot": lambda x, w: torch.tensordot(x, w[:4], 2)[:, None],
    "grouped attention": lambda x, w: torch.nn.functional.scaled_dot_product_attention(
        *((x * w[0])[:, None].repeat(1, heads, 1, 1) for heads in (4, 2, 2)), enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_both_counters_agree_on_what_torch_computes_by_a_product(name):
    class Computes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6, 6))

        def forward(self, x):
            return PRODUCTS[name](x, self.weight).flatten(1)

    (row,) = profile(Computes, (4, 6), batch_size=2, check_macs=True)
    assert row.macs_forward == row.macs_forward_onnx


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_layers_after_a_recurrent_layer_have_known_shapes(kind, directions, batch_first):
    network = _States(kind(5, 4, num_layers=3, bidirectional=directions == 2, batch_first=batch_first), batch_first)
    model = export(network.eval(), {"x": torch.zeros(2, 7, 5)})
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind.__name__]
    inputs = [5, 4 * directions, 4 * directions]
    assert macs_per_sample(model) == sum(7 * directions * gates * 4 * (of_layer + 4) for of_layer in inputs)
    x = np.random.default_rng(0).standard_normal((3, 7, 5)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    (found,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-6)


class _States(torch.nn.Module):
    """The states of a recurrent layer after every step, of samples (n, steps, inputs)."""

    def __init__(self, layer, batch_first):
        super().__init__()
        self.layer, self.batch_first = layer, batch_first

    def forward(self, x):
        return self.layer(x)[0] if self.batch_first else self.layer(x.transpose(0, 1))[0].transpose(0, 1)


def test_shapes_follow_from_shapes_that_the_graph_computes():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Concat", ["shape", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("n", 3, 4)}, {"rest": np.array([12]), "w": (12, 5)})
    assert count_macs(model, 7).per_node == (("MatMul_3", "MatMul", 7 * 12 * 5),)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_a_range_over_the_samples_has_its_recorded_length():
    """As in the masks of BERT in transformers 5."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Squeeze", ["shape"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["rows"]),
        helper.make_node("Gather", ["x", "rows"], ["same"]),
        helper.make_node("MatMul", ["same", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("n", 3)}, {"zero": np.array(0), "one": np.array(1), "w": (3, 5)})
    model.graph.value_info.append(helper.make_tensor_value_info("rows", TensorProto.INT64, ["n"]))
    assert count_macs(model, 7).total == 7 * 3 * 5
    assert model.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_stale_shapes_of_a_free_batch_do_not_matter():
    model = model_of([helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": ("n", 7)}, {"w": (7, 5)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5]))
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 5]))
    assert count_macs(model, 4).total == 4 * 7 * 5


def test_operators_of_no_table_are_reported():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Det", ["r"], ["d"]),
        helper.make_node("FusedConv", ["d"], ["y"], domain="com.acme"),
    ]
    model = model_of(nodes, {"x": ("n", 3, 3)}, {})
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    counted = count_macs(model, 2)
    assert (counted.per_node, counted.total, counted.uncounted_ops) == ((), 0, ("Det", "com.acme.FusedConv"))


def test_functions_of_the_file_are_counted_inside():
    opset = helper.make_opsetid("", 21)
    inside = helper.make_function("local", "Head", ["a", "b"], ["c"], [helper.make_node("MatMul", ["a", "b"], ["c"])], [opset])
    model = model_of([helper.make_node("Head", ["x", "w"], ["y"], domain="local")], {"x": ("n", 3)}, {"w": (3, 5)})
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.append(inside)
    assert count_macs(model, 2).total == 2 * 3 * 5


@pytest.mark.parametrize(
    ("inputs", "weights", "message"),
    [
        (
            {"x": ("n", "m", 7)},
            {"w": (7, 5)},
            r"^node layer \(MatMul\): the shape of 'y' is 2x\?x5; its MACs need fixed dimensions$",
        ),
        ({"x": ("n", 6)}, {"w": (7, 5)}, r"^shapes do not fit together: .*"),
    ],
)
def test_shapes_that_are_not_known_or_do_not_fit_are_explained(inputs, weights, message):
    with pytest.raises(InputError, match=message):
        macs("MatMul", inputs, weights)


def test_every_ignored_operator_exists_and_has_a_reason():
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert known >= {*COUNTED, *IGNORED}
    assert not COUNTED.keys() & IGNORED.keys()
    assert all(len(reason) > 20 for reason in IGNORED.values())


def test_counting_does_not_import_torch():
    code = "import sys, edgefl.onnxgrad.macs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
