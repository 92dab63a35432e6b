"""Convolutional networks without normalisation, the two that simulators are timed on: one of 5×5 convolutions, and a tiny one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model


class Conv5CNN(nn.Module):
    """Two 5×5 convolutions of 32 and 64 channels, a 2×2 max-pooling after each, 512 hidden units and a classifier; nothing is padded."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        a, b, hidden = (scaled(n, width) for n in (32, 64, 512))
        self.conv1 = nn.Conv2d(channels, a, 5)
        self.norm1 = norm2d(norm, a)
        self.conv2 = nn.Conv2d(a, b, 5)
        self.norm2 = norm2d(norm, b)
        sides = [((side - 4) // 2 - 4) // 2 for side in (height, width_px)]
        self.hidden = nn.Linear(b * sides[0] * sides[1], hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.fc(F.relu(self.hidden(x.flatten(1))))


class TinyCNN(nn.Module):
    """Two 3×3 convolutions of stride 2 with 16 and 32 channels, and a linear classifier."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        a, b = (scaled(n, width) for n in (16, 32))
        self.conv1 = nn.Conv2d(channels, a, 3, stride=2, padding=1)
        self.norm1 = norm2d(norm, a)
        self.conv2 = nn.Conv2d(a, b, 3, stride=2, padding=1)
        self.norm2 = norm2d(norm, b)
        sides = [-(-side // 4) for side in (height, width_px)]
        self.fc = nn.Linear(b * sides[0] * sides[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.fc(x.flatten(1))


@model("cnn-5x5", usual_input=(1, 28, 28))
def cnn_5x5(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """The CNN of FedAvg (McMahan et al., AISTATS 2017, section 3): 582,026 parameters for 1×28×28 and 10 classes.

    Differs from the paper: convolutions are not padded, as in most frameworks' examples; with padding it has the paper's 1,663,370.
    """
    return Conv5CNN(image_shape("cnn-5x5", input_shape, 16), classes, width, norm)


@model("cnn-tiny", usual_input=(1, 28, 28))
def cnn_tiny(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """A network so small that a simulator's own work shows beside it: 20,490 parameters for 1×28×28 and 10 classes."""
    return TinyCNN(image_shape("cnn-tiny", input_shape, 4), classes, width, norm)
