"""Small convolutional networks: for the bundled 8×8 digits, for Fashion-MNIST and for FEMNIST."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model


class DigitsCNN(nn.Module):
    """Three 3×3 convolutions of 32, 64 and 64 channels with one pooling, and a linear classifier."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        a, b, c = (scaled(n, width) for n in (32, 64, 64))
        self.conv1 = nn.Conv2d(channels, a, 3, padding=1, bias=False)
        self.norm1 = norm2d(norm, a)
        self.conv2 = nn.Conv2d(a, b, 3, padding=1, bias=False)
        self.norm2 = norm2d(norm, b)
        self.conv3 = nn.Conv2d(b, c, 3, padding=1, bias=False)
        self.norm3 = norm2d(norm, c)
        self.fc = nn.Linear(c * (height // 2) * (width_px // 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.norm3(self.conv3(x)))
        return self.fc(x.flatten(1))


class FashionCNN(nn.Module):
    """Three 3×3 convolutions of 120, 64 and 136 channels with a pooling after the first, and a linear classifier."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        a, b, c = (scaled(n, width) for n in (120, 64, 136))
        self.conv1 = nn.Conv2d(channels, a, 3, padding=1, bias=False)
        self.norm1 = norm2d(norm, a)
        self.conv2 = nn.Conv2d(a, b, 3, bias=False)
        self.norm2 = norm2d(norm, b)
        self.conv3 = nn.Conv2d(b, c, 3, bias=False)
        self.norm3 = norm2d(norm, c)
        self.fc = nn.Linear(c * (height // 2 - 4) * (width_px // 2 - 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.fc(x.flatten(1))


class FemnistCNN(nn.Module):
    """A 5×5 and a 3×3 convolution of 64 channels with bias, a 2×2 max-pooling after each, and a linear classifier."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        outputs = scaled(64, width)
        self.conv1 = nn.Conv2d(channels, outputs, 5)
        self.norm1 = norm2d(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3)
        self.norm2 = norm2d(norm, outputs)
        sides = [((side - 4) // 2 - 2) // 2 for side in (height, width_px)]
        self.fc = nn.Linear(outputs * sides[0] * sides[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


@model("cnn-digits", usual_input=(1, 8, 8))
def cnn_digits(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """The small GroupNorm CNN of the main job: 66,154 parameters for 1×8×8 and 10 classes."""
    return DigitsCNN(image_shape("cnn-digits", input_shape, 2), classes, width, norm)


@model("cnn-fashion", usual_input=(1, 28, 28))
def cnn_fashion(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """The 4-layer CNN for Fashion-MNIST: 285 K parameters at width 1.

    FLANC does not print the network; these channels reproduce its column of p-width sizes (Table 1: 43, 106, 186 and 285 K at
    width .25, .5, .75 and 1) as 43.7, 105.7, 186.2 and 285.2 K.
    """
    return FashionCNN(image_shape("cnn-fashion", input_shape, 10), classes, width, norm)


@model("cnn-femnist", usual_input=(1, 28, 28), usual_classes=62)
def cnn_femnist(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """The CNN for FEMNIST (PriSM, Table 7): 54,602 parameters for 1×28×28 and 10 classes, 137,854 for FEMNIST's 62.

    Open in the table, and taken here: convolutions are not padded and have a bias; no normalisation, because the table lists ReLU only.
    """
    return FemnistCNN(image_shape("cnn-femnist", input_shape, 12), classes, width, norm)
