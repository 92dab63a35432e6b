"""Plain networks: small convolutional ones for digits, Fashion-MNIST, FEMNIST and timing; a perceptron (MLP); VGG; FLANC's network."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import ImageShape, image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model


@dataclass(frozen=True)
class Conv:
    """One stage of a :class:`ConvNet`: a ``kernel``×``kernel`` convolution, normalisation, ReLU and, with ``pool``, 2×2 max-pooling."""

    channels: int
    kernel: int = 3
    padding: int = 0
    stride: int = 1
    pool: bool = False

    def side(self, side: int) -> int:
        """Return the side in pixels of the stage's output, for an input of ``side`` pixels."""
        return ((side + 2 * self.padding - self.kernel) // self.stride + 1) // (2 if self.pool else 1)


class ConvNet(nn.Module):
    """Stages ``conv1``, ``norm1``, ``conv2``, …, a linear layer of ``hidden`` units with ReLU (0: none), and the classifier ``fc``.

    Attributes:
        means: whether the layer after the stages is given the mean of each channel over all pixels, instead of the pixels.
    """

    def __init__(
        self,
        stages: Sequence[Conv],
        shape: ImageShape,
        classes: int,
        width: float,
        norm: str,
        bias: bool = True,
        hidden: int = 0,
        means: bool = False,
    ) -> None:
        super().__init__()
        self.pools, self.means = [stage.pool for stage in stages], means
        channels, height, width_px = shape
        for number, stage in enumerate(stages, 1):
            outputs = scaled(stage.channels, width)
            self.add_module(f"conv{number}", nn.Conv2d(channels, outputs, stage.kernel, stage.stride, stage.padding, bias=bias))
            self.add_module(f"norm{number}", norm2d(norm, outputs))
            channels, height, width_px = outputs, stage.side(height), stage.side(width_px)
        inputs = channels if means else channels * height * width_px
        self.hidden = nn.Linear(inputs, scaled(hidden, width)) if hidden else None
        self.fc = nn.Linear(scaled(hidden, width) if hidden else inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        for number, pool in enumerate(self.pools, 1):
            x = F.relu(self.get_submodule(f"norm{number}")(self.get_submodule(f"conv{number}")(x)))
            x = F.max_pool2d(x, 2) if pool else x
        x = x.mean((2, 3)) if self.means else x.flatten(1)
        return self.fc(x if self.hidden is None else F.relu(self.hidden(x)))


@model("cnn-digits", usual_input=(1, 8, 8))
def cnn_digits(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """Return a small GroupNorm CNN, the default for digits: 66,154 parameters for 1×8×8 and 10 classes."""
    stages = Conv(32, padding=1), Conv(64, padding=1, pool=True), Conv(64, padding=1)
    return ConvNet(stages, image_shape("cnn-digits", input_shape, 2), classes, width, norm, bias=False)


@model("cnn-fashion", usual_input=(1, 28, 28))
def cnn_fashion(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """Return a 4-layer CNN for Fashion-MNIST, within 2 % of FLANC's sizes (Table 1: 43, 106, 186 and 285 K at widths .25 to 1)."""
    stages = Conv(120, padding=1, pool=True), Conv(64), Conv(136)
    return ConvNet(stages, image_shape("cnn-fashion", input_shape, 10), classes, width, norm, bias=False)


@model("cnn-femnist", usual_input=(1, 28, 28), usual_classes=62)
def cnn_femnist(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return the CNN for FEMNIST (PriSM, Table 7), without padding and normalisation: 54,602 parameters for 1×28×28, 10 classes."""
    stages = Conv(64, 5, pool=True), Conv(64, pool=True)
    return ConvNet(stages, image_shape("cnn-femnist", input_shape, 12), classes, width, norm)


@model("cnn-5x5", usual_input=(1, 28, 28))
def cnn_5x5(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return the CNN of FedAvg (McMahan et al. 2017, section 3), without padding: 582,026 parameters for 1×28×28, 10 classes."""
    stages = Conv(32, 5, pool=True), Conv(64, 5, pool=True)
    return ConvNet(stages, image_shape("cnn-5x5", input_shape, 16), classes, width, norm, hidden=512)


@model("cnn-tiny", usual_input=(1, 28, 28))
def cnn_tiny(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return a network so small that a simulator's own work is visible: 20,490 parameters for 1×28×28, 10 classes."""
    stages = Conv(16, padding=1, stride=2), Conv(32, padding=1, stride=2)
    return ConvNet(stages, image_shape("cnn-tiny", input_shape, 4), classes, width, norm)


@model("cnn-pooled", usual_input=(1, 28, 28))
def cnn_pooled(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """Return a CNN with global average pooling: 371,402 parameters for 1×28×28 and 10 classes, of which 1,290 are the classifier's."""
    stages = Conv(64, padding=1, stride=2, pool=True), Conv(128, padding=1, pool=True), Conv(128, padding=1), Conv(128, padding=1)
    return ConvNet(stages, image_shape("cnn-pooled", input_shape, 8), classes, width, norm, bias=False, means=True)


@model("cnn-deep", usual_input=(1, 28, 28))
def cnn_deep(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """Return a narrow CNN of five convolutions with global average pooling: 130,538 parameters for 1×28×28 and 10 classes."""
    stages = Conv(32, padding=1, stride=2, pool=True), Conv(64, padding=1, pool=True), *(Conv(64, padding=1) for _ in range(3))
    return ConvNet(stages, image_shape("cnn-deep", input_shape, 8), classes, width, norm, bias=False, means=True)


@model("mlp", usual_input=(1, 28, 28))
def mlp(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return a 2-layer MLP with 256 hidden units. The only policy is ``none``, as it has no feature maps; ConfigError for others."""
    if norm != "none":
        raise ConfigError(f"norm: model mlp has no feature maps to normalise, expected 'none', got {norm!r}")
    return ConvNet((), (math.prod(input_shape), 1, 1), classes, width, norm, hidden=256)


Stages = tuple[tuple[int, ...], ...]
VGG11: Stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG16: Stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
SMALLEST_SIDE = 2 ** len(VGG16)


class VGG(nn.Module):
    """``stages`` of 3×3 convolutions with max-pooling after each, linear layers of ``hidden`` units with ReLU, and a classifier.

    ``bias``: whether convolutions have one.
    """

    def __init__(
        self, stages: Stages, hidden: tuple[int, ...], bias: bool, shape: ImageShape, classes: int, width: float, norm: str
    ) -> None:
        super().__init__()
        channels, height, width_px = shape
        self.features = nn.Sequential(*_features(stages, channels, bias, width, norm))
        inputs = scaled(stages[-1][-1], width) * (height // SMALLEST_SIDE) * (width_px // SMALLEST_SIDE)
        sizes = [inputs, *(scaled(units, width) for units in hidden)]
        self.linear = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.fc = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.features(x).flatten(1)
        for layer in self.linear:
            x = F.relu(layer(x))
        return self.fc(x)


def _features(stages: Stages, channels: int, bias: bool, width: float, norm: str) -> Iterator[nn.Module]:
    for stage in stages:
        for outputs in (scaled(n, width) for n in stage):
            yield nn.Conv2d(channels, outputs, 3, padding=1, bias=bias)
            yield norm2d(norm, outputs)
            yield nn.ReLU()
            channels = outputs
        yield nn.MaxPool2d(2)


@model("vgg11", usual_input=(3, 32, 32))
def vgg11(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "static") -> nn.Module:
    """Return VGG-11 (PriSM, section 4.1) with normalisation after each convolution and one linear layer: 9,228,362 parameters."""
    return VGG(VGG11, (), False, image_shape("vgg11", input_shape, SMALLEST_SIDE), classes, width, norm)


@model("vgg16", usual_input=(3, 32, 32))
def vgg16(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """Return FedPara's VGG-16 (Appendix C.2, Table 5), GroupNorm, no dropout: 15,253,578 parameters for 3×32×32, 10 classes."""
    return VGG(VGG16, (512, 512), True, image_shape("vgg16", input_shape, SMALLEST_SIDE), classes, width, norm)


STEM, HIDDEN = 64, 128


class FLANCNet(nn.Module):
    """A stem of 64 channels at every width, two convolutions of 128·p channels with ReLU and 2×2 max-pooling, and the classifier."""

    def __init__(self, shape: ImageShape, classes: int, width: float, norm: str) -> None:
        super().__init__()
        channels, height, width_px = shape
        hidden = scaled(HIDDEN, width)
        self.conv1 = nn.Conv2d(channels, STEM, 3, padding=1)
        self.norm1 = norm2d(norm, STEM)
        self.conv2 = nn.Conv2d(STEM, hidden, 3, padding=1, bias=False)
        self.norm2 = norm2d(norm, hidden)
        self.conv3 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.norm3 = norm2d(norm, hidden)
        self.fc = nn.Linear(hidden * (height // 4) * (width_px // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.norm1(self.conv1(x))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)
        return self.fc(x.flatten(1))


@model("cnn-flanc", usual_input=(1, 28, 28))
def cnn_flanc(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return FLANC's CNN: 43,978, 105,738, 185,930 and 284,554 parameters at widths .25 to 1 (Table 1: 43, 106, 186 and 285 K).

    As in the authors' code, the stem does not scale with the width, and no activation follows it. It has no normalisation by default.
    """
    return FLANCNet(image_shape("cnn-flanc", input_shape, 4), classes, width, norm)
