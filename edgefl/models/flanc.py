"""The convolutional network of FLANC for Fashion-MNIST (Mei et al., NeurIPS 2022), from the authors' published code."""

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import ImageShape, image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model

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
