"""Exported networks come back as torch modules that compute the same and train."""

import math

import numpy as np
import pytest
import torch
from graph_case import IMAGE, MATRIX, X1, compare, conv, count, exported, fake, graph, ints, numbers, one
from onnx import helper
from torch import nn

from edgefl import onnxgrad
from edgefl.models.base import Architecture
from edgefl.onnxgrad.to_torch import module_of


# The exporter writes GroupNorm as InstanceNormalization with a scale and bias for each group before its own, and static norms into
# the convolutions before them.
@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [("cnn-digits", (1, 8, 8), 2 * (4 + 8 + 8)), ("resnet18", (3, 32, 32), -2 * 4800), ("mlp", (1, 8, 8), 0)],
)
def test_our_own_networks_come_back(name, shape, more):
    model, inputs = exported(name, shape)
    module = compare(model, inputs, atol=1e-4)
    assert fake(module, inputs) == [(2, 10)]
    assert count(module) == count(Architecture(name, shape, 10).build()) + more


class Tokens(nn.Module):
    """A small transformer: an embedding, positions, a causal mask and a head that shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.zeros(5, 8))
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        h = self.embedding(x) + self.position[: x.shape[1]]
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind()
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return nn.functional.gelu(h) @ self.embedding.weight.T


class Recurrent(nn.Module):
    """A two-layer LSTM and GRU in both directions, batch first."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 5, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0][:, -1]


class Upsampled(nn.Module):
    """Sizes that follow from the input's: interpolation, a flattening and a mean over what remains."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x):
        y = nn.functional.interpolate(self.conv(x), scale_factor=2, mode="bilinear")
        y = nn.functional.interpolate(y, size=x.shape[2:], mode="nearest")
        return y.reshape(x.shape[0], -1, 4).mean(1)


EXPORTED = {
    "transformer": (Tokens, np.array([[1, 2, 3], [4, 5, 10]], np.int64)),
    "recurrent": (Recurrent, numbers(2, 6, 3)),
    "upsampled": (Upsampled, numbers(2, 2, 6, 8)),
}


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_network_computes_and_traces(kind):
    build, x = EXPORTED[kind]
    network = build().eval()
    program = torch.onnx.export(
        network, (torch.from_numpy(x),), dynamo=True, opset_version=20, verbose=False, input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    module = compare(program.model_proto, {"x": x})
    with torch.no_grad():
        expected = network(torch.from_numpy(x))
    assert torch.allclose(module(torch.from_numpy(x)), expected, atol=1e-5)
    assert fake(module, {"x": x}) == [tuple(expected.shape)]
    module(torch.from_numpy(x)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def trained_again(model, inputs):
    """Export the training step of a graph's module, with a scale of its own before it."""
    graph, x = module_of(model)[0], torch.from_numpy(inputs["x"])
    network = nn.Sequential(Scale(x.shape[1:]), graph, nn.Flatten())
    target = torch.randn_like(network(x).detach())
    return onnxgrad.training_step(network, lambda net, x, y: nn.functional.mse_loss(net(x), y), {"x": x, "y": target})


class Scale(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, math.prod(shape)).reshape(shape))

    def forward(self, x):
        return x * self.factor


AGAIN = {
    "top k": lambda: (graph([helper.make_node("TopK", ["x", "k"], ["y", "places"])], MATRIX, {"k": ints(2)}), MATRIX),
    "lrn": lambda: one("LRN", IMAGE, size=3, alpha=0.5),
    "running sum": lambda: one("CumSum", MATRIX, {"a": np.array(1)}, reverse=1),
    "product": lambda: one("ReduceProd", MATRIX, {"a": ints(1)}),
    "causal convolution": lambda: (
        graph([helper.make_node("CausalConvWithState", ["x", "w"], ["y", "state"])], {"x": X1}, conv(4, 1, 3), opset=27), {"x": X1},
    ),
    "rotary embedding": lambda: one(
        "RotaryEmbedding", {"x": numbers(2, 4, 3, 8)}, {"c": np.cos(numbers(1, 3, 4)), "s": np.sin(numbers(1, 3, 4))}, opset=23
    ),
    "attention with a query without a key": lambda: (
        graph([helper.make_node("Attention", ["x", "x", "x", "m"], ["y"])], {"x": numbers(2, 4, 3, 8)},
              {"m": np.array([[False] * 3, [True, False, True], [True] * 3])}, opset=23), {"x": numbers(2, 4, 3, 8)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AGAIN)
def test_what_was_read_trains_in_onnx_again(case):
    model, inputs = AGAIN[case]()
    assert trained_again(model, inputs).roles.trained
