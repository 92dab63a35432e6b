"""What an inference is predicted to hold and to compute, against onnxruntime's own count and a second counter on the exported graph."""

import functools

import numpy as np
import onnx
import pytest
import torch
from exported import forward_graph
from torch import nn

import edgefl
from edgefl.cost.trace import Subject, Tracer
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.macs import count_macs
from edgefl.onnxgrad.predict import predict_capped
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.registry import methods
from edgefl.rng import generator

SHAPES = {"resnet18": (3, 32, 32), "resnet34": (3, 32, 32), "cnn-fashion": (1, 28, 28)}
LARGE = ("resnet18", "resnet34")
CLASSES = 10
RATIOS = (1.0, 0.5)
BATCHES = (1, 8)


def networks():
    """The image networks under three methods, the small one under every method, at all tiers; the largest, of the same blocks, whole."""
    yield "resnet34", "fedavg", 1.0
    for model in ("cnn-digits", "cnn-fashion", "mlp", "resnet18"):
        for name in methods.names() if model == "cnn-digits" else ("fedavg", "fedhm", "heterofl"):
            for ratio in (1.0,) if len(methods.load(name).default_tiers) == 1 else RATIOS:
                yield model, name, ratio


def described(model: str) -> Architecture:
    return Architecture(model, SHAPES.get(model, (1, 8, 8)), CLASSES)


def graph_of(model: str, method: str, ratio: float) -> bytes:
    """The exported graph of what leaves for a device. Networks of the same layers share one: bytes and MACs do not depend on weights."""
    architecture, tier, chosen = described(model), Tier(ratio), create(method)
    if model in LARGE:  # weights as they are built: decomposing them takes seconds
        network = chosen.device_network(architecture, tier).eval()
    else:
        network = chosen.deploy(chosen.init(architecture, (tier,), generator(0, "init")), tier)
    key = model, str(network), tuple((name, tensor.shape) for name, tensor in network.state_dict().items())
    if key not in _GRAPHS:
        _GRAPHS[key] = forward_graph(network, architecture.input_shape)
    return _GRAPHS[key]


_GRAPHS: dict[object, bytes] = {}


@functools.cache
def held_bytes(graph: bytes, shape: tuple[int, ...], batch_size: int) -> int:
    """What onnxruntime holds for activations."""
    x = samples(shape, batch_size)
    return predict_capped(graph, x, batch_size=batch_size, memory_bytes=10**11).peak_activation_bytes


@functools.cache
def cost_of(model: str, method: str, ratio: float, batch_size: int):
    return tier_cost(create(method), described(model), Tier(ratio), training_for(batch_size, None, "momentum"))


def samples(shape: tuple[int, ...], count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)


@pytest.mark.parametrize(("model", "method", "ratio"), list(networks()))
def test_an_inference_holds_and_computes_in_onnxruntime_what_was_predicted(model, method, ratio):
    """At both batch sizes, of large networks at one sample alone; one test, because an export takes longer than all else."""
    graph = graph_of(model, method, ratio)
    for batch_size in BATCHES[:1] if model in LARGE else BATCHES:
        holds_what_was_predicted(graph, model, method, ratio, batch_size)
        counted = count_macs(onnx.load_model_from_string(graph), batch_size)
        assert counted.uncounted_ops == ()
        assert counted.total == batch_size * cost_of(model, method, ratio, 1).macs_inference


def holds_what_was_predicted(graph: bytes, model: str, method: str, ratio: float, batch_size: int) -> None:
    shape = described(model).input_shape
    measured = held_bytes(graph, shape, batch_size)
    predicted = cost_of(model, method, ratio, batch_size).peak_activation_bytes_inference - samples(shape, batch_size).nbytes
    assert predicted == measured


class Attention(nn.Module):
    """A block of a transformer over 16 positions of 32 numbers, spelled out, and a classifier of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        mixed = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, 3) @ v
        return self.head((x + self.out(mixed.transpose(1, 2).flatten(2))).mean(1))


class Recurrent(nn.Module):
    """An LSTM of 24 units over 16 steps of 32 numbers, and a classifier of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 24, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


# Per sample. Attention: three projections, scores and mixture of 16 x 16 positions, the output's projection, the head.
# LSTM: four gates of (32 + 24) inputs and 24 units at 16 steps, the head.
OWN = {
    "attention": (Attention, 16 * 32 * 96 + 2 * 16 * 16 * 32 + 16 * 32 * 32 + 32 * CLASSES),
    "lstm": (Recurrent, 16 * 4 * 24 * (32 + 24) + 24 * CLASSES),
}


@functools.cache
def own_graph(kind: str) -> bytes:
    return forward_graph(OWN[kind][0]().eval(), (16, 32))


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("kind", OWN)
def test_attention_and_lstm_cost_the_same_in_the_exported_graph(kind, batch_size):
    build, macs = OWN[kind]
    (row,) = edgefl.profile(build(), (16, 32), batch_size=batch_size)
    # With a free batch the operator set's own rules lose the shape of an LSTM's output: counted on a graph of one batch size.
    program = torch.onnx.export(build().eval(), (torch.zeros(batch_size, 16, 32),), dynamo=True, verbose=False)
    counted = count_macs(program.model_proto, batch_size)
    assert counted.uncounted_ops == ()
    assert counted.total == batch_size * row.macs_forward == batch_size * macs


class Weighted(nn.Module):
    """Bags of ids, each with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.weights, self.head = nn.EmbeddingBag(50, 64, mode="sum"), nn.Embedding(50, 1), nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.bag(x, per_sample_weights=self.weights(x).squeeze(2)))


class Causal(nn.Module):
    """Attention to earlier positions, by torch's own function with a mask of weights, and by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(32, 96), nn.Linear(32, CLASSES)
        self.register_buffer("later", torch.ones(16, 16).triu(1).bool())

    def forward(self, x):
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, 3)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head((q @ x.mT).masked_fill(self.later, float("-inf")).softmax(3) @ v)[:, 0, -1]


def image(*layers: nn.Module) -> nn.Module:
    """Layers on images of 3×16×16, behind a convolution to 16 channels."""
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), *layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def recurrent(kind: type[nn.Module], **options: object) -> nn.Module:
    """A recurrent layer whose last output is classified."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = kind(32, 24, batch_first=True, **options), nn.LazyLinear(CLASSES)

        def forward(self, x):
            return self.head(self.layer(x)[0][:, -1])

    return Last()


STEPS, IMAGE, IDS = (16, 32), (3, 16, 16), (12,)
KINDS = {
    "attention": (Attention, STEPS),
    "causal attention": (Causal, STEPS),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True), nn.Flatten()),
        STEPS,
    ),
    "lstm": (Recurrent, STEPS),
    "lstm, both ways": (lambda: recurrent(nn.LSTM, bidirectional=True), STEPS),
    "gru, two layers": (lambda: recurrent(nn.GRU, bidirectional=True, num_layers=2), STEPS),
    "hardswish, depthwise, mish": (lambda: image(nn.Hardswish(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Mish()), IMAGE),
    "softplus": (lambda: image(nn.Softplus()), IMAGE),
    "group norm, silu": (lambda: image(nn.GroupNorm(4, 16), nn.SiLU()), IMAGE),
    "transposed": (lambda: image(nn.ReLU(), nn.ConvTranspose2d(16, 16, 3, 2, groups=4)), IMAGE),
    "pools that do not divide": (lambda: image(nn.AdaptiveMaxPool2d(6), nn.Upsample(19), nn.AdaptiveAvgPool2d(5)), IMAGE),
    "weighted bag": (Weighted, IDS),
}


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("kind", KINDS)
def test_an_inference_holds_what_its_kernels_need(kind):
    """Kernels with values between them, temporary memory, fusions, and the blocks that the arena hands out again."""
    build, shape = KINDS[kind]
    x = np.ones((6, *shape), np.int64) if shape == IDS else samples(shape, 6)
    network = build().eval()
    with torch.no_grad():
        network(torch.from_numpy(x))  # lazy layers take their shapes
    graph = export(network, {"x": torch.from_numpy(x)}).SerializeToString()
    measured = predict_capped(graph, x, batch_size=6, memory_bytes=10**11).peak_activation_bytes
    subject = Subject(lambda: network, lambda size: Batch(torch.from_numpy(x[:size]), None, None), None, None)
    assert Tracer(subject).inference(6).peak_bytes - x.nbytes == pytest.approx(measured, rel=0.01)
