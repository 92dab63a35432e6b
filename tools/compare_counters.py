"""Set edgefl's multiply-accumulates beside a closed form and other counters, and its predicted memory beside what is measured.

The tables are Markdown; the README holds them between ``<!-- counters:begin -->`` and ``<!-- counters:end -->`` (``memory`` likewise).
A peer that is not installed is left out with a word, and so is a network of a package that cannot be imported.

Usage: python tools/compare_counters.py [--memory] [--check | --write] [--readme FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.util
import io
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import edgefl
from edgefl.local.onnx_runtime import predict_capped
from edgefl.local.train import Training, optimizer_of, train
from edgefl.methods.base import Method, create
from edgefl.models.base import Architecture
from edgefl.onnxio.export import OPSET, forward_graph
from edgefl.onnxio.macs import count_macs
from edgefl.prepare import tier_cost
from edgefl.records import Batch, Tier
from edgefl.registry import models
from edgefl.rng import generator

README = Path(__file__).resolve().parent.parent / "README.md"
CHANNELS, SIDE, STEPS, HEADS, KERNEL = 64, 16, 16, 4, 9
POSITIONS = SIDE * SIDE
FEDPARA_RANK = 16
FLANC_GROUPS, FLANC_KERNELS = 4, 32
FLANC_CHANNELS = CHANNELS // FLANC_GROUPS

Build = Callable[[], nn.Module]
Figure = int | str
"""MACs of one sample, or why there are none."""


class SelfAttention(nn.Module):
    """Multi-head attention of tokens (batch, tokens, channels) to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(CHANNELS, HEADS, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended tokens, without the probabilities."""
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended


class Recurrent(nn.Module):
    """An LSTM that returns its outputs alone."""

    def __init__(self, inputs: int = CHANNELS, hidden: int = CHANNELS, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, inputs) to (batch, steps, hidden)."""
        outputs: Tensor = self.lstm(x)[0]
        return outputs


class FedPara(nn.Module):
    """A 3×3 convolution by W = (T1 ×₁ X1 ×₂ Y1) ⊙ (T2 ×₁ X2 ×₂ Y2): FedPara (Hyeon-Woo et al., ICLR 2022), Proposition 3."""

    def __init__(self) -> None:
        super().__init__()
        for i in (1, 2):
            self.register_parameter(f"T{i}", nn.Parameter(torch.randn(FEDPARA_RANK, FEDPARA_RANK, 3, 3)))
            self.register_parameter(f"X{i}", nn.Parameter(torch.randn(CHANNELS, FEDPARA_RANK)))
            self.register_parameter(f"Y{i}", nn.Parameter(torch.randn(CHANNELS, FEDPARA_RANK)))

    def _half(self, T: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        """Return T ×₁ X ×₂ Y, (out, in, 3, 3)."""
        mode1 = (X @ T.flatten(1)).view(CHANNELS, FEDPARA_RANK, KERNEL)
        return (Y @ mode1).view(CHANNELS, CHANNELS, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (batch, channels, height, width) by the composed weight."""
        weight = self._half(self.T1, self.X1, self.Y1) * self._half(self.T2, self.X2, self.Y2)
        return F.conv2d(x, weight, padding=1)


class Flanc(nn.Module):
    """A 3×3 convolution as FLANC composes it (Mei et al., NeurIPS 2022): a basis shared by groups of channels, then coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.basis = nn.Parameter(torch.randn(FLANC_KERNELS, FLANC_CHANNELS, 3, 3))
        self.coefficients = nn.Conv2d(FLANC_GROUPS * FLANC_KERNELS, CHANNELS, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve every group of x (batch, channels, height, width) by the basis, then combine the results."""
        batch, _, *sides = x.shape
        responses = F.conv2d(x.reshape(batch * FLANC_GROUPS, FLANC_CHANNELS, *sides), self.basis, padding=1)
        return self.coefficients(responses.reshape(batch, FLANC_GROUPS * FLANC_KERNELS, *sides))


@dataclass(frozen=True)
class Layer:
    """One kind of layer and its closed form.

    Attributes:
        shape: one sample of its input.
        macs: forward MACs of a sample.
        compose_macs: forward MACs of work on the weights alone, once a pass.
    """

    name: str
    build: Build
    shape: tuple[int, ...]
    macs: int
    compose_macs: int = 0

    @property
    def forward(self) -> int:
        """MACs of one sample's forward pass."""
        return self.macs + self.compose_macs

    @property
    def both(self) -> int:
        """MACs of one sample's forward and backward pass: each product once more for either factor's gradient."""
        return 3 * self.forward

    def behind_another(self) -> tuple[nn.Module, Tensor]:
        """Return the layer behind one that learns, so that its input needs a gradient, and a batch of one for the two."""
        if len(self.shape) == 3:
            return nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), self.build()), torch.zeros(1, *self.shape)
        return nn.Sequential(nn.Embedding(80, CHANNELS), self.build()), torch.zeros(1, self.shape[0], dtype=torch.int64)


IMAGE, TOKENS = (CHANNELS, SIDE, SIDE), (POSITIONS, CHANNELS)
LAYERS = (
    # output positions · output channels · kernel · input channels
    Layer(
        "convolution 3×3",
        lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
    ),
    # each channel meets its own kernel alone
    Layer(
        "depthwise 3×3",
        lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL,
    ),
    # stride 2: each input value is spread over the kernel and the output channels
    Layer(
        "transposed 3×3, stride 2",
        lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, stride=2, padding=1, output_padding=1, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
    ),
    # tokens · inputs · outputs
    Layer("linear, 256 tokens", lambda: nn.Linear(CHANNELS, CHANNELS, bias=False), TOKENS, macs=POSITIONS * CHANNELS**2),
    # projections to Q, K, V and from the heads; every token with every token, for the scores and for the sum
    Layer("self-attention, 4 heads", SelfAttention, TOKENS, macs=4 * POSITIONS * CHANNELS**2 + 2 * POSITIONS**2 * CHANNELS),
    # steps · four gates · units · (inputs + units)
    Layer("LSTM, 16 steps", Recurrent, (STEPS, CHANNELS), macs=STEPS * 4 * CHANNELS * (CHANNELS + CHANNELS)),
    # the convolution; composed from two halves: T ×₁ X is out · R · R · kernel, ×₂ Y then out · in · R · kernel
    Layer(
        "FedPara, R = 16",
        FedPara,
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
        compose_macs=2 * KERNEL * (CHANNELS * FEDPARA_RANK**2 + CHANNELS * CHANNELS * FEDPARA_RANK),
    ),
    # the basis over every group, then a 1×1 convolution of its responses
    Layer(
        "FLANC, 32 kernels",
        Flanc,
        IMAGE,
        macs=POSITIONS * FLANC_GROUPS * FLANC_KERNELS * (KERNEL * FLANC_CHANNELS + CHANNELS),
    ),
)


@dataclass(frozen=True)
class Network:
    """A whole network and one sample of its input."""

    name: str
    build: Build
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def _reference(name: str, shape: tuple[int, ...]) -> Network:
    side = "×".join(map(str, shape))
    return Network(f"{name}, {side}", lambda: Architecture(name, shape, 10).build(), shape)


def _of_package(module: str, name: str) -> nn.Module:
    network: nn.Module = getattr(importlib.import_module(module), name)()
    return network


def _characters() -> nn.Module:
    return nn.Sequential(nn.Embedding(80, 8), Recurrent(8, 256, 2), nn.Linear(256, 80))


NETWORKS = (
    _reference("resnet18", (3, 32, 32)),
    _reference("cnn-fashion", (1, 28, 28)),
    Network("LSTM of characters, 80 steps", _characters, (80,), torch.int64),
    Network("mobilenet_v2, 3×224×224", partial(_of_package, "torchvision.models", "mobilenet_v2"), (3, 224, 224)),
    Network("resnet50, 3×224×224", partial(_of_package, "torchvision.models", "resnet50"), (3, 224, 224)),
    Network("vit_tiny_patch16_224", partial(_of_package, "timm.models", "vit_tiny_patch16_224"), (3, 224, 224)),
)


class ClosedForm:
    """The sum of a network's layers, each from the shapes that pass through it: forward, and the gradients that are needed."""

    def __init__(self) -> None:
        self.forward = self.both = 0

    def walk(self, network: nn.Module, x: Tensor) -> tuple[int, int]:
        """Return MACs per sample: forward, and forward with backward. Nothing is computed: tensors have shapes only."""
        network = copy.deepcopy(network).to("meta").train()
        for module in network.modules():
            module.register_forward_hook(self._passed)
        network(x.to("meta"))
        return self.forward // len(x), self.both // len(x)

    def _add(self, macs: int, gradients: int) -> None:
        self.forward += macs
        self.both += macs * (1 + gradients)

    def _passed(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        x = inputs[0] if inputs else torch.zeros(())
        needed = int(x.requires_grad)
        if isinstance(module, nn.Conv2d):
            self._add(output.numel() * module.weight[0].numel(), needed + 1)
        elif isinstance(module, nn.Linear):
            self._add(x.numel() * module.out_features, needed + 1)
        elif isinstance(module, nn.LSTM):
            positions, width = math.prod(x.shape[:2]), 4 * module.hidden_size
            self._add(positions * width * module.input_size, needed + 1)
            # The hidden state and the inputs of later layers; every step's state has a gradient, the first one's too.
            self._add(positions * width * module.hidden_size * (2 * module.num_layers - 1), 2)
        elif type(module).__name__ == "Attention" and hasattr(module, "qkv"):  # timm's; its projections are linear layers
            batch, tokens, channels = x.shape
            self._add(2 * batch * tokens**2 * channels, 2)


@dataclass(frozen=True)
class Peer:
    """Another counter: its package, how it is asked for MACs of a batch, and what it leaves out or adds."""

    name: str
    package: str
    count: Callable[[nn.Module, Tensor], float]
    misses: str

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(self.package) is not None

    def measure(self, module: nn.Module, x: Tensor) -> Figure:
        """Return MACs per sample, or why there are none."""
        if not self.installed:
            return "not installed"
        try:
            with quiet():
                return round(self.count(copy.deepcopy(module).eval(), x) / len(x))
        except Exception:  # whatever another package raises
            return "error"


def _torch_forward(module: nn.Module, x: Tensor) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return counter.get_total_flops() / 2


def _torch_both(module: nn.Module, x: Tensor) -> float:
    with FlopCounterMode(display=False) as counter:
        module.train()(x).sum().backward()
    return counter.get_total_flops() / 2


def _fvcore(module: nn.Module, x: Tensor) -> float:
    from fvcore.nn import FlopCountAnalysis

    return float(FlopCountAnalysis(module, x).total())


def _thop(module: nn.Module, x: Tensor) -> float:
    from thop import profile

    return float(profile(module, inputs=(x,), verbose=False)[0])


def _torchinfo(module: nn.Module, x: Tensor) -> float:
    from torchinfo import summary

    return float(summary(module, input_data=x, verbose=0).total_mult_adds)


def _ptflops(backend: str, module: nn.Module, x: Tensor) -> float:
    from ptflops import get_model_complexity_info

    options = {"as_strings": False, "print_per_layer_stat": False, "verbose": False, "backend": backend}
    return float(get_model_complexity_info(module, tuple(x.shape[1:]), input_constructor=lambda _: x, **options)[0])


TORCH = Peer(
    "torch",
    "torch",
    _torch_forward,
    "has no rule for a processor's kernels of attention and LSTMs; takes the weight gradient of a grouped convolution for a dense one's.",
)
TORCH_BOTH = replace(TORCH, count=_torch_both)
PEERS = (
    TORCH,
    Peer(
        "fvcore",
        "fvcore",
        _fvcore,
        "skips attention's products and LSTMs; reads a product of a matrix and a batch of matrices as one of the first; "
        "adds normalisation and pooling.",
    ),
    Peer(
        "thop",
        "thop",
        _thop,
        "sees only modules that it knows: no product of attention, no functional call; multiplies a transposed convolution's outputs; "
        "adds batch normalisation, pooling and an LSTM's gates.",
    ),
    Peer(
        "torchinfo",
        "torchinfo",
        _torchinfo,
        "multiplies parameters: a linear layer once whatever the tokens, a transposed convolution by its outputs, "
        "attention and functional calls not at all; adds biases and normalisation.",
    ),
    Peer(
        "ptflops",
        "ptflops",
        partial(_ptflops, "pytorch"),
        "does not see functional convolutions and the operator `@`, nor the projections of timm's attention; "
        "adds biases, activations, normalisation and softmax.",
    ),
    Peer(
        "ptflops aten",
        "ptflops",
        partial(_ptflops, "aten"),
        "skips attention's products and LSTMs; adds biases.",
    ),
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what counters and the exporter print, log and warn about."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@dataclass(frozen=True)
class Row:
    """One line of both tables: MACs per sample by the closed form, by edgefl's two counters and by the peers."""

    name: str
    unit: str
    forward: int
    both: int
    edgefl_forward: Figure
    edgefl_both: Figure
    edgefl_graph: Figure
    peers: dict[str, Figure]
    torch_both: Figure

    @property
    def agrees(self) -> bool:
        """Whether edgefl's three figures are the closed form's."""
        return (self.edgefl_forward, self.edgefl_graph, self.edgefl_both) == (self.forward, self.forward, self.both)


def graph_macs(module: nn.Module, x: Tensor, *, fold: bool = True) -> Figure:
    """Return MACs per sample of the exported graph; work on weights alone is in it unless constants are folded."""
    try:
        with quiet():
            program = torch.onnx.export(module.eval(), (x,), dynamo=True, opset_version=OPSET, optimize=fold, verbose=False)
        counted = count_macs(program.model_proto, len(x))
    except Exception as error:
        return f"error: {error}"
    return f"uncounted: {', '.join(counted.uncounted_ops)}" if counted.uncounted_ops else counted.total // len(x)


def profiled(network: nn.Module, x: Tensor, prefix: str = "") -> tuple[Figure, Figure]:
    """Return edgefl's MACs of a pass over one sample, forward and with backward, of the layers whose names start with ``prefix``."""
    row = edgefl.profile(network, (x,), batch_size=1)[0]
    if row["uncounted_ops"]:
        return (f"uncounted: {', '.join(row['uncounted_ops'])}",) * 2
    layers = [layer for layer in row["layers"] if layer["layer"].startswith(prefix)]
    forward, *others = (
        sum(layer[key] for layer in layers)
        for key in ("macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose")
    )
    return forward, forward + sum(others)


def layer_row(layer: Layer, peers: Sequence[Peer] = PEERS) -> Row:
    """Count one layer by itself; its gradients behind another layer, whose own work is taken off."""
    module, x = layer.build(), torch.zeros(1, *layer.shape)
    network, sample = layer.behind_another()
    both = profiled(network, sample, "1")[1]
    # Of weights that are not learnt, edgefl's figure of a pass has composition once: the forward one.
    network[1].requires_grad_(False)
    frozen = edgefl.profile(network, (sample,), batch_size=1)[0]["layers"]
    forward = sum(row["macs_forward"] + row["macs_compose"] for row in frozen if row["layer"].startswith("1"))
    network[1].requires_grad_(True)
    whole, front = (TORCH_BOTH.measure(part, sample) for part in (network, network[:1]))
    torch_both = whole - front if isinstance(whole, int) and isinstance(front, int) else "error"
    found = {peer.name: peer.measure(module, x) for peer in peers}
    graph = graph_macs(module, x, fold=not layer.compose_macs)
    return Row(layer.name, "k", layer.forward, layer.both, forward, both, graph, found, torch_both)


def network_row(network: Network, peers: Sequence[Peer] = PEERS) -> Row | str:
    """Count a whole network, or say why not."""
    try:
        module = network.build()
    except Exception as error:
        return f"{network.name}: {type(error).__name__}: {str(error).splitlines()[0]}"
    x = torch.zeros(2, *network.shape, dtype=network.dtype)  # normalisation by batch statistics wants two
    forward, both = ClosedForm().walk(module, x)
    found = {peer.name: peer.measure(module, x[:1]) for peer in peers}
    return Row(
        network.name, "M", forward, both, *profiled(module, x), graph_macs(module, x), found, TORCH_BOTH.measure(module, x)
    )


def cell(figure: Figure, expected: int, unit: str) -> str:
    """Return a figure as the table shows it: one that is not ``expected`` in bold, with the difference beside it.

    >>> cell(37_748_736, 9_437_184, "k"), cell(9_437_184, 9_437_184, "k"), cell("error", 1, "k")
    ('**37,749 k** (+300 %)', '9,437 k', '*error*')
    """
    if isinstance(figure, str):
        return f"*{figure}*"
    text = f"{figure / 1e3:,.0f} k" if unit == "k" else f"{figure / 1e6:,.1f} M"
    return text if figure == expected else f"**{text}** ({_percent(figure / expected - 1)})"


def _percent(share: float) -> str:
    """Return a signed share; one that one digit does not tell from none is below 0.1 %, none is 0 %."""
    if abs(share) < 0.0005:
        return "< 0.1 %" if share else "0 %"
    digits = 0 if share == -1 or (abs(share) >= 0.1 and share > -0.995) else 1
    return f"{100 * share:+,.{digits}f} %".replace("-", "−")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def counters_markdown(rows: Sequence[Row], skipped: Sequence[str] = (), peers: Sequence[Peer] = PEERS) -> str:
    """Return both tables of counters, what they are of, and a sentence for each peer."""
    forward = [
        [
            row.name,
            *(cell(f, row.forward, row.unit) for f in (row.forward, row.edgefl_forward, row.edgefl_graph, *row.peers.values())),
        ]
        for row in rows
    ]
    both = [[row.name, *(cell(f, row.both, row.unit) for f in (row.both, row.edgefl_both, row.torch_both))] for row in rows]
    used = dict.fromkeys(peer.package for peer in (TORCH, *peers) if peer.installed)
    used |= dict.fromkeys(package for package in ("torchvision", "timm") if importlib.util.find_spec(package))
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in used)
    return "\n\n".join(
        [
            f"MACs of one sample, k = thousand, M = million; {versions}. **Bold** differs from the closed form, by the share beside it. "
            "torch counts FLOPs, halved here. FedPara has the composition of its weight in it, once.",
            "Forward:",
            table(["", "closed form", "edgefl", "edgefl, ONNX", *(peer.name for peer in peers)], forward),
            "Forward and backward, where the layer's input needs a gradient, a network's does not; the others do not count it:",
            table(["", "closed form", "edgefl", "torch"], both),
            "\n".join(_sentence(peer, rows) for peer in peers if peer.installed),
            *skipped,
        ]
    )


def _sentence(peer: Peer, rows: Sequence[Row]) -> str:
    pairs = [(row.peers[peer.name], row.forward) for row in rows]
    if peer is TORCH:
        pairs += [(row.torch_both, row.both) for row in rows]
    return f"- {peer.name}: {sum(found != right for found, right in pairs)} of {len(pairs)} figures differ; it {peer.misses}"


SHAPES = {"cnn-digits": (1, 8, 8), "mlp": (1, 8, 8), "cnn-fashion": (1, 28, 28)}
METHODS = ("fedavg", "heterofl", "fedhm")


@dataclass(frozen=True)
class Memory:
    """Bytes of one tier: predicted and measured, of an inference's activations and of all that a training step holds."""

    inference: tuple[int, int]
    training: tuple[int, int]


def memory_of(model: str, method_name: str) -> list[Memory]:
    """Predict and measure every default tier of a method, on one batch."""
    method, batch_size = create(method_name), 8 if model.startswith("resnet") else 32
    architecture = Architecture(model, SHAPES.get(model, (3, 32, 32)), 10)
    training = Training(epochs=1, batch_size=batch_size, lr=0.05, momentum=0.9, weight_decay=1e-4)
    tiers = tuple(Tier(ratio) for ratio in method.default_tiers)
    state = method.init(architecture, tiers, generator(0, "init"))
    rng = generator(0, "memory")
    x = rng.standard_normal((batch_size, *architecture.input_shape)).astype(np.float32)
    y = torch.from_numpy(rng.integers(10, size=batch_size))
    found = []
    for tier in tiers:
        cost = tier_cost(method, architecture, tier, training)
        graph = forward_graph(method.deploy(state, tier), architecture.input_shape)
        ran = predict_capped(graph, x, batch_size=batch_size, memory_bytes=10**11).peak_activation_bytes
        module = method.network(architecture, tier)
        optimizer = optimizer_of(method, module, training)
        loss = partial(_loss, method)
        held = train(module, loss, optimizer, torch.from_numpy(x), y, torch.ones(10) > 0, training, rng).memory_bytes
        # The caller's array of inputs is not onnxruntime's.
        inference = cost.peak_activation_bytes_inference - x.nbytes
        found.append(Memory((inference, ran), (cost.training_memory_bytes, held)))
    return found


def _loss(method: Method, module: nn.Module, batch: Batch) -> Tensor:
    return method.local_loss(module, batch, {})


def memory_markdown() -> str:
    """Return the table of predicted and measured memory: a line per network and method, its largest tier and the worst of all."""
    rows = []
    for model in models.names():
        for method in METHODS:
            tiers = memory_of(model, method)
            row = [model, method]
            for pairs in ([tier.inference for tier in tiers], [tier.training for tier in tiers]):
                worst = max((predicted / measured - 1 for predicted, measured in pairs), key=abs)
                row += [*(f"{n / 1e6:,.2f}" for n in pairs[0]), _percent(worst)]
            rows.append(row)
    part = ["predicted", "measured", "worst tier"]
    titles = ["network", "method", *(f"inference: {part[0]}", *part[1:]), *(f"training: {part[0]}", *part[1:])]
    return "\n\n".join(
        [
            f"MB of the largest tier, and the largest difference over a method's default tiers; batches of 32, ResNets 8; "
            f"onnxruntime {version('onnxruntime')}, torch {version('torch').partition('+')[0]}. Inference: activations besides weights and "
            "input, as onnxruntime reports them of the exported tier. Training: parameters, gradients, optimizer state and activations "
            "at the peak of a real step, as the local loop meters it.",
            table(titles, rows),
        ]
    )


def replaced(text: str, name: str, body: str) -> str:
    r"""Return ``text`` with ``body`` between its markers of ``name``.

    >>> replaced("a <!-- memory:begin -->old<!-- memory:end --> z", "memory", "new")
    'a <!-- memory:begin -->\nnew\n<!-- memory:end --> z'
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each, in this order")
    return f"{text.partition(begin)[0]}{begin}\n{body}\n{end}{text.partition(end)[2]}"


def counted() -> tuple[str, bool]:
    """Count everything: the Markdown, and whether edgefl agrees with every closed form."""
    rows = [layer_row(layer) for layer in LAYERS]
    networks = [network_row(network) for network in NETWORKS]
    rows += [row for row in networks if isinstance(row, Row)]
    wrong = [row.name for row in rows if not row.agrees]
    if wrong:
        print(f"edgefl differs from the closed form: {', '.join(wrong)}", file=sys.stderr)
    return counters_markdown(rows, [row for row in networks if isinstance(row, str)]), not wrong


def main() -> None:
    """Print a table, put it into the README, or hold the README to it."""
    parser = argparse.ArgumentParser(
        description="MACs by edgefl, a closed form and other counters; predicted and measured memory."
    )
    parser.add_argument("--memory", action="store_true", help="the table of memory instead of the counters")
    parser.add_argument("--readme", type=Path, default=README, help="the file with the markers")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="fail when the file has another table")
    action.add_argument("--write", action="store_true", help="replace the table in the file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    body, agrees = (memory_markdown(), True) if args.memory else counted()
    if not (args.check or args.write):
        print(body)
    else:
        before = args.readme.read_text(encoding="utf-8")
        try:
            after = replaced(before, "memory" if args.memory else "counters", body)
        except ValueError as error:
            sys.exit(f"{args.readme}: {error}")
        if args.write:
            args.readme.write_text(after, encoding="utf-8")
        elif before != after:
            missing = dict.fromkeys(peer.package for peer in PEERS if not peer.installed)
            hint = f" ({', '.join(missing)} not installed)" if missing else ""
            sys.exit(f"{args.readme}: the table is not what was counted now{hint}; --write replaces it")
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
