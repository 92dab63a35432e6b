"""VGG-11 and VGG-16 for 32×32 images: 3×3 convolutions, a 2×2 max-pooling behind each stage, linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import ImageShape, image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model

Stages = tuple[tuple[int, ...], ...]
VGG11: Stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG16: Stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
SMALLEST_SIDE = 2 ** len(VGG16)


class VGG(nn.Module):
    """``stages`` of convolutions, then ``hidden`` linear layers with ReLU and a classifier on the remaining feature map."""

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
    """VGG-11 (PriSM, section 4.1), with normalisation behind each convolution and one linear layer: 9,228,362 parameters."""
    return VGG(VGG11, (), False, image_shape("vgg11", input_shape, SMALLEST_SIDE), classes, width, norm)


@model("vgg16", usual_input=(3, 32, 32))
def vgg16(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "group") -> nn.Module:
    """VGG-16 of FedPara (Appendix C.2, Table 5), with GroupNorm, without dropout: 15,253,578 parameters for 3×32×32 and 10 classes."""
    return VGG(VGG16, (512, 512), True, image_shape("vgg16", input_shape, SMALLEST_SIDE), classes, width, norm)
