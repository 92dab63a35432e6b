"""A small network of convolutions over signals and volumes, with strides, dilation and several kinds of padding."""

from dataclasses import dataclass

import torch.nn.functional as F
from of_images import OfImages
from torch import Tensor, nn

from edgefl.models.base import scaled


class OtherAxesNet(nn.Module):
    """Reads an image as eight signals, its rows, and a signal of four values as a volume of 2 × 1 × 2."""

    def __init__(self, labels: int = 4, width: float = 1.0) -> None:
        super().__init__()
        few, many = scaled(16, width), scaled(32, width)
        self.stem, self.norm1 = nn.Conv1d(8, few, 3, padding="same"), nn.GroupNorm(1, few)
        self.strided, self.norm2 = nn.Conv1d(few, many, 3, 2, 1, bias=False, padding_mode="circular"), nn.GroupNorm(1, many)
        self.dilated, self.norm3 = nn.Conv3d(many, many, (2, 1, 2), (1, 1, 2), (1, 0, 1), (2, 1, 1)), nn.GroupNorm(1, many)
        self.mix, self.fc = nn.Conv1d(many, many, 1), nn.Linear(4 * many, labels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.stem(x.flatten(1, 2))))
        x = F.relu(self.norm2(self.strided(x)))
        x = F.relu(self.norm3(self.dilated(x.unflatten(2, (2, 1, 2)))))
        return self.fc(F.relu(self.mix(x.flatten(2))).flatten(1))


@dataclass(frozen=True)
class OtherAxes(OfImages):
    """The network as if it were one of the package."""

    model: str = "other axes"

    def build(self, width: float = 1.0) -> nn.Module:
        return OtherAxesNet(self.classes, width)
