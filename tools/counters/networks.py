"""Whole networks, and the sum of their layers' closed forms from the shapes that pass through each.

Add a network as one ``Network`` of ``NETWORKS``, and a kind of layer that ``ClosedForm`` does not know to its ``_passed``.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from counters.reference_layers import Recurrent
from edgefl.models.base import Architecture


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut: He et al., CVPR 2016, Figure 5; the 3×3 one has the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.branch = nn.Sequential(
            *convolved(inputs, width, 1),
            nn.ReLU(),
            *convolved(width, width, 3, stride),
            nn.ReLU(),
            *convolved(width, outputs, 1),
        )
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Sequential(*convolved(inputs, outputs, 1, stride)) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to four times ``width`` channels."""
        return self.relu(self.branch(x) + self.shortcut(x))


def convolved(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution that keeps the sides, apart from its stride, and its normalisation."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)


def resnet50() -> nn.Module:
    """Return ResNet-50 for 1,000 classes: 25,557,032 parameters (He et al., CVPR 2016, Table 1)."""
    blocks, channels = [], 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for number in range(depth):
            blocks.append(Bottleneck(channels, 64 << stage, 2 if stage and not number else 1))
            channels = 4 * (64 << stage)
    stem = (*convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


@dataclass(frozen=True)
class Network:
    """A whole network and one sample of its input."""

    name: str
    build: Callable[[], nn.Module]
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
    Network("resnet50, 3×224×224", resnet50, (3, 224, 224)),
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
