"""ResNet-9: eight convolutions with two shortcuts, and a linear classifier (Factorized-FL, Table 3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model


class ConvBlock(nn.Module):
    """A convolution that preserves the image's size (except for its stride), normalisation and ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = norm2d(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h/stride, w/stride)."""
        return F.relu(self.norm(self.conv(x)))


class ResNet9(nn.Module):
    """Channels 64, 128, 128, 128, 256, 256, 256, 256 at width 1; convolutions 3 and 4, and 6 and 7, have a shortcut around them."""

    def __init__(self, channels: int, classes: int, width: float, norm: str) -> None:
        super().__init__()
        a, b, c = (scaled(n, width) for n in (64, 128, 256))
        self.conv1 = ConvBlock(channels, a, 3, 1, norm)
        self.conv2 = ConvBlock(a, b, 5, 2, norm)
        self.conv3 = ConvBlock(b, b, 3, 1, norm)
        self.conv4 = ConvBlock(b, b, 3, 1, norm)
        self.conv5 = ConvBlock(b, c, 3, 1, norm)
        self.conv6 = ConvBlock(c, c, 3, 1, norm)
        self.conv7 = ConvBlock(c, c, 3, 1, norm)
        self.conv8 = ConvBlock(c, c, 3, 1, norm)
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.conv2(self.conv1(x))
        x = x + self.conv4(self.conv3(x))
        x = F.max_pool2d(self.conv5(x), 2)
        x = x + self.conv7(self.conv6(x))
        return self.fc(self.conv8(x).amax((2, 3)))


@model("resnet9", usual_input=(3, 32, 32))
def resnet9(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "static") -> nn.Module:
    """ResNet-9: 2,571,338 parameters for 3×32×32 and 10 classes (Factorized-FL, Appendix C.1: 2.57 M).

    Open in the table, and taken here: every convolution pads by half its kernel, has no bias, and is followed by static BatchNorm and ReLU;
    the shortcuts go around convolutions 3 and 4, and 6 and 7; the classifier has a bias.
    """
    return ResNet9(image_shape("resnet9", input_shape, 4)[0], classes, width, norm)
