"""Variants of a forward graph in 8 and 16 bits: smaller, nearly as good, of standard operators, and the same every time."""

import functools
import sys
import tempfile
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from exported import forward_graph
from torch import nn

from edgefl.bundle import quantize
from edgefl.bundle.half_range import beyond_half
from edgefl.bundle.quantize import KINDS, int8_kind, quantized, slower, variant
from edgefl.data.split import Split
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.predict import median_seconds, predict
from edgefl.records import Tier
from edgefl.registry import datasets
from edgefl.rng import torch_seeded

form_graph = functools.partial(forward_graph, fold=False)

SHAPE = (1, 8, 8)
DIGITS = Architecture("cnn-digits", SHAPE, 10)
TEXT = Architecture("lstm-shakespeare", (6,), 90)


@functools.cache
def digits() -> tuple[Split, Split]:
    data = datasets.load("digits")()
    return data.train, data.test


@functools.cache
def trained() -> bytes:
    """The digits CNN after a few passes over half of the training samples."""
    rng = np.random.default_rng(0)
    train, _ = digits()
    with torch_seeded(np.random.default_rng(1)):  # biases too: tests run in any order
        network = DIGITS.build()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                he = (2 / np.prod(parameter.shape[1:])) ** 0.5
                parameter.copy_(torch.from_numpy(rng.normal(0, he, tuple(parameter.shape))))
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    x, y = torch.from_numpy(train.x[:640].copy()), torch.from_numpy(train.y[:640].copy())
    for _ in range(6):
        for part in torch.from_numpy(rng.permutation(640)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[part]), y[part]).backward()
            optimizer.step()
    return forward_graph(network.eval(), SHAPE)


@functools.cache
def recurrent() -> bytes:
    rng = np.random.default_rng(0)
    network = TEXT.build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-0.06, 0.06, tuple(parameter.shape))))
    return forward_graph(network, (6,), "int64")


def accuracy(graph: bytes) -> float:
    _, test = digits()
    return float((predict(graph, test.x, batch_size=64).argmax(1) == test.y).mean())


def operators(graph: bytes) -> Counter:
    return Counter(node.op_type for node in onnx.load_model_from_string(graph).graph.node)


@pytest.mark.parametrize(
    ("kind", "most_bytes", "points"), [("int8-static", 0.35, 0.03), ("int8-dynamic", 1.0, 0.03), ("fp16", 0.55, 0.01)]
)
def test_a_variant_of_a_trained_network_is_smaller_and_nearly_as_good(kind, most_bytes, points):
    train, test = digits()
    graph = trained()
    assert accuracy(graph) > 0.85
    record, made = variant("0.5", graph, kind, train.x, test.x, test.y)
    assert (record.kind, record.graph, record.bytes) == (kind, f"0.5/forward.{kind}.onnx", len(made))
    assert record.accuracy == accuracy(made)
    assert abs(record.accuracy - accuracy(graph)) <= points
    assert len(made) <= most_bytes * len(graph)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [trained, recurrent])
def test_variants_keep_ends_and_operator_set_and_are_of_ai_onnx_alone(kind, make):
    graph = make()
    x = digits()[0].x if make is trained else np.random.default_rng(1).integers(80, size=(40, 6))
    made = quantized(graph, kind, x)
    assert made == quantized(graph, kind, x)
    before, after = (onnx.load_model_from_string(g) for g in (graph, made))
    onnx.checker.check_model(after, full_check=True)
    assert [(o.domain, o.version) for o in after.opset_import] == [("", 20)]
    assert {node.domain for node in after.graph.node} <= {"", "ai.onnx"}
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert (after.producer_name, len(after.metadata_props)) == (before.producer_name, 0)
    for count in (1, 5):
        assert np.abs(predict(made, x[:count], batch_size=count) - predict(graph, x[:count], batch_size=count)).max() < 2.0


class Scaled(nn.Module):
    """Hidden values of up to ``scale`` times the input, masked with −∞, and small outputs."""

    def __init__(self, scale):
        super().__init__()
        self.first, self.last = nn.Linear(64, 32, bias=False), nn.Linear(32, 10)
        self.scale = scale

    def forward(self, x):
        hidden = self.first(x.flatten(1)) * self.scale
        masked = torch.where(hidden > 0, hidden, float("-inf"))
        return self.last(torch.relu(masked) / self.scale)


def test_values_beyond_16_bits_are_found_also_where_this_processor_computes_in_32():
    x = digits()[0].x[:40]
    for scale, beyond in ((1.0, False), (1e7, True)):
        with torch_seeded(np.random.default_rng(0)):
            graph = forward_graph(Scaled(scale).eval(), (1, 8, 8))
        half = quantized(graph, "fp16")
        assert np.isfinite(predict(half, x, batch_size=40)).all()
        assert bool(beyond_half(graph, half, x)) == beyond
    assert beyond_half(recurrent(), quantized(recurrent(), "fp16"), np.random.default_rng(1).integers(80, size=(9, 6))) == ""


@pytest.mark.parametrize(("scale", "beyond"), [(1.0, False), (1e7, True)])
def test_a_value_that_rounding_moves_over_the_border_of_a_mask_is_within_16_bits(scale, beyond):
    """Pixels 0 and 8 of all digits are equal, so that 1 − 1.0001 of them is a positive value, and 0 in 16 bits: the mask's −∞."""
    x = digits()[0].x[:40]
    network = Scaled(scale).eval()
    with torch.no_grad():
        network.first.weight.zero_()
        network.first.weight[0, [0, 8]] = torch.tensor([1.0, -1.0001])
        network.first.weight[1, 0] = -2.0
    graph = forward_graph(network, (1, 8, 8))
    assert bool(beyond_half(graph, quantized(graph, "fp16"), x)) == beyond


def test_static_8_bit_weights_and_activations_feed_every_convolution_and_the_classifier():
    model = onnx.load_model_from_string(quantized(trained(), "int8-static", digits()[0].x))
    makers = {output: node.op_type for node in model.graph.node for output in node.output}
    fed = [makers.get(name) for node in model.graph.node if node.op_type in ("Conv", "Gemm") for name in node.input[:2]]
    assert fed == ["DequantizeLinear"] * 8
    stored = Counter(tensor.data_type for tensor in model.graph.initializer)
    assert stored[onnx.TensorProto.INT8] >= 4


def test_recurrent_weights_are_stored_in_8_bits_with_a_scale_for_every_row():
    graph, x = recurrent(), np.random.default_rng(1).integers(80, size=(4, 6))
    made = quantized(graph, "int8-dynamic")
    assert len(made) < 0.27 * len(graph)
    assert operators(made)["LSTM"] == operators(graph)["LSTM"] == 2
    assert operators(made)["MatMulInteger"] == 1
    # Each weight is at most half a step off, 0.06/127/2, of values up to 0.06.
    assert np.abs(predict(made, x, batch_size=4) - predict(graph, x, batch_size=4)).max() < 2e-3
    model = onnx.load_model_from_string(made)
    scales = [t for t in model.graph.initializer if t.name.endswith("_scale") and t.dims == [1024]]
    assert len(scales) == 4
    steps = np.stack([onnx.numpy_helper.to_array(scale) for scale in scales]) * 127
    assert 0.9 * 0.06 < steps.mean() < steps.max() <= 0.06


@pytest.mark.parametrize(("make", "kind"), [(trained, "int8-static"), (trained, "int8-dynamic"), (recurrent, "int8-dynamic")])
def test_two_products_of_8_bit_numbers_fit_into_16_bits(make, kind):
    """x86 processors without VNNI add them so, and saturate: with 8-bit weights the logits of the trained CNN were 10 % off there."""
    model = onnx.load_model_from_string(quantized(make(), kind, digits()[0].x if kind == "int8-static" else None))
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {output: node for node in model.graph.node for output in node.output}
    products = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul", "MatMulInteger")]
    names = [makers[node.input[1]].input[0] if node.input[1] in makers else node.input[1] for node in products]
    weights = [stored[name] for name in names if name in stored and stored[name].dtype == np.int8]
    assert weights
    assert all(2 * 255 * int(np.abs(weight.astype(int)).max()) < 2**15 for weight in weights)
    # Recurrent weights and embeddings, which are used as floats, have all 8 bits.
    others = [t.astype(int) for name, t in stored.items() if name not in names and t.dtype in (np.int8, np.uint8) and t.ndim > 1]
    assert [int(np.ptp(tensor)) for tensor in others] == ([254] * 4 + [255] if make is recurrent else [])


def test_half_has_16_bit_weights_and_32_bit_ends():
    model = onnx.load_model_from_string(quantized(trained(), "fp16"))
    kinds = {tensor.data_type for tensor in model.graph.initializer if tensor.dims and len(tensor.dims) > 1}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_convolutions_get_static_ranges_and_recurrent_layers_and_transformers_dynamic_ones():
    assert int8_kind(trained()) == "int8-static"
    assert int8_kind(recurrent()) == "int8-dynamic"
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3]) for name in ("x", "logits")]
    node = onnx.helper.make_node("Softmax", ["x"], ["logits"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:]))
    assert int8_kind(model.SerializeToString()) == "int8-dynamic"


def test_factors_are_multiplied_out_before_their_weights_are_rounded():
    rng = np.random.default_rng(0)
    network = create("pfedpara").network(Architecture("mlp", SHAPE, 10), Tier(0.5)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.2, tuple(parameter.shape))))
    graph, x = form_graph(network, SHAPE), digits()[0].x[:128]
    made = quantized(graph, "int8-static", x)
    assert (operators(graph)["MatMul"], operators(made)["MatMul"]) == (4, 0)
    expected = predict(graph, x, batch_size=64)
    assert np.abs(predict(made, x, batch_size=64) - expected).max() < 0.04 * np.abs(expected).max()


def test_nothing_is_left_behind_said_or_added_to_the_module_path(tmp_path, monkeypatch, capfd, recwarn, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests write to the system's folder meanwhile
    path = list(sys.path)
    for kind in KINDS:
        quantized(trained(), kind, digits()[0].x[:8])
    assert not list(tmp_path.iterdir())
    assert sys.path == path
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_what_cannot_be_quantized_says_why():
    x = digits()[0].x
    with pytest.raises(ConfigError, match="variant: got 'int4', expected one of int8-static, int8-dynamic, fp16"):
        quantized(trained(), "int4")
    for none in (None, x[:0]):
        with pytest.raises(ConfigError, match="int8-static takes calibration samples .* got none; give some"):
            quantized(trained(), "int8-static", none)
    with pytest.raises(ConfigError, match=r"calibration samples of float64 \(1, 8, 8\), expected float32 \(1, 8, 8\)"):
        quantized(trained(), "int8-static", x.astype(np.float64))
    with pytest.raises(ConfigError, match=r"calibration samples of float32 \(8, 8\), expected float32 \(1, 8, 8\)"):
        quantized(trained(), "int8-static", x[:, 0])
    bad = x[:4].copy()
    bad[0, 0, 0, 0] = np.nan
    with pytest.raises(ConfigError, match="values that are not finite"):
        quantized(trained(), "int8-static", bad)
    model = onnx.load_model_from_string(trained())
    del model.graph.node[2]
    with pytest.raises(EdgeflError, match="the graph has no variant fp16: "):
        quantized(model.SerializeToString(), "fp16")


def test_both_graphs_are_timed_in_turns_and_the_slower_one_is_told(monkeypatch):
    small, large = (graph_of_products(size) for size in (8, 512))
    x = np.zeros((1, 8), np.float32)
    fast_s, slow_s = median_seconds([small, large], x, 0.1)
    assert 0 < fast_s < slow_s
    assert slower(large, small, x) == ""
    for took, told in (((0.001, 0.0018), "float32 takes 1.00 ms"), ((0.001, 0.00105), "")):
        monkeypatch.setattr(quantize, "median_seconds", lambda graphs, x, took=took: took)
        assert slower(small, large, x).endswith(told)
        assert bool(slower(small, large, x)) == bool(told)


def graph_of_products(width: int) -> bytes:
    return forward_graph(nn.Sequential(nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 2)).eval(), (8,))
