"""Networks whose sizes are published: HeteroFL's two, and the four of MLPerf Tiny."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

HETEROFL_WIDTHS = (64, 128, 256, 512)


class PreActivation(nn.Module):
    """A block of HeteroFL's ResNet: normalisation and ReLU before each convolution (He et al., ECCV 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to ``outputs`` channels."""
        active = F.relu(self.norms[0](x))
        short = x if self.shortcut is None else self.shortcut(active)
        found: Tensor = short + self.second(F.relu(self.norms[1](self.first(active))))
        return found


def _heterofl_resnet(depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, HETEROFL_WIDTHS[0], 3, 1, 1, bias=False)]
    inputs = HETEROFL_WIDTHS[0]
    for stage, (width, depth) in enumerate(zip(HETEROFL_WIDTHS, depths, strict=True)):
        for number in range(depth):
            layers.append(PreActivation(inputs, width, 2 if stage and not number else 1))
            inputs = width
    end = (nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return nn.Sequential(*layers, *end)


def heterofl_resnet() -> nn.Module:
    """Return the ResNet of HeteroFL's paper for CIFAR-10: five blocks."""
    return _heterofl_resnet((1, 1, 1, 2))


def heterofl_resnet18() -> nn.Module:
    """Return the ResNet-18 of HeteroFL's code and of Flower's baseline."""
    return _heterofl_resnet((2, 2, 2, 2))


def heterofl_cnn() -> nn.Module:
    """Return HeteroFL's network for MNIST: four convolutions."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((1, *HETEROFL_WIDTHS)):
        layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(HETEROFL_WIDTHS[-1], 10))


def _normed(layer: nn.Conv2d | nn.Linear) -> nn.Sequential:
    """Return a layer with bias and its normalisation, as Keras's defaults make them."""
    norm = nn.BatchNorm2d(layer.out_channels) if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d(layer.out_features)
    return nn.Sequential(layer, norm)


class Stage(nn.Module):
    """A stage of MLPerf Tiny's ResNet: two convolutions beside a shortcut, which is a convolution if the stride is 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = _normed(nn.Conv2d(inputs, outputs, 3, stride, 1))
        self.branch = nn.Sequential(first, nn.ReLU(), _normed(nn.Conv2d(outputs, outputs, 3, 1, 1)))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to ``outputs`` channels."""
        return F.relu(self.branch(x) + self.shortcut(x))


def resnet8() -> nn.Module:
    """Return MLPerf Tiny's network for image classification (CIFAR-10)."""
    stages = (Stage(16, 16, 1), Stage(16, 32, 2), Stage(32, 64, 2))
    stem = (_normed(nn.Conv2d(3, 16, 3, 1, 1)), nn.ReLU())
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a depthwise and a pointwise convolution."""
    depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs)
    return [_normed(depthwise), nn.ReLU(), _normed(nn.Conv2d(inputs, outputs, 1)), nn.ReLU()]


def ds_cnn() -> nn.Module:
    """Return MLPerf Tiny's network for keywords (Speech Commands): 49 × 10 coefficients, 12 words."""
    stem = (nn.ZeroPad2d((1, 1, 4, 5)), _normed(nn.Conv2d(1, 64, (10, 4), 2)), nn.ReLU())
    blocks = [layer for _ in range(4) for layer in _separable(64, 64)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


def mobilenet() -> nn.Module:
    """Return MLPerf Tiny's network for persons in images (Visual Wake Words): MobileNetV1 of a quarter of the width, 96 × 96."""
    widths = (8, 16, 32, 32, 64, 64, *[128] * 6, 256, 256)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    layers: list[nn.Module] = [_normed(nn.Conv2d(3, 8, 3, 2, 1)), nn.ReLU()]
    for (inputs, outputs), stride in zip(pairwise(widths), strides, strict=True):
        layers += _separable(inputs, outputs, stride)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 2))


def autoencoder() -> nn.Module:
    """Return MLPerf Tiny's network for anomalies (ToyADMOS): ten dense layers."""
    widths = (640, *[128] * 4, 8, *[128] * 4)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [_normed(nn.Linear(inputs, outputs)), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))
