"""A small mobile network: 1×1 and depthwise convolutions, squeeze-and-excite, a residual sum, a subclass of BatchNorm."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from of_images import OfImages
from torch import Tensor, nn

from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec


class Norm(nn.BatchNorm2d):
    """Normalisation with its activation, as timm has it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(super().forward(x))


class Block(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module] = Norm) -> None:
        super().__init__()
        wide = 2 * channels
        self.expand, self.norm1 = nn.Conv2d(channels, wide, 1, bias=False), norm(wide)
        self.depth, self.norm2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), norm(wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 4, 1), nn.Conv2d(4, wide, 1)
        self.project, self.norm3 = nn.Conv2d(wide, channels, 1, bias=False), norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.depth(self.norm1(self.expand(x))))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.norm3(self.project(y))


class MobileNet(nn.Module):
    def __init__(self, labels: int = 4, norm: Callable[[int], nn.Module] = Norm) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, 2, 1, bias=False), norm(8)
        self.block = Block(8, norm)
        self.head, self.fc = nn.Conv2d(8, 16, 1), nn.Linear(16 * 16, labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.hardswish(self.head(self.block(self.norm(self.stem(x))))).flatten(1))


@dataclass(frozen=True)
class Mobile(OfImages):
    """The network with normalisation that has no running statistics, as if it were one of the package."""

    model: str = "mobile"

    def build(self, width: float = 1.0) -> nn.Module:
        assert width == 1.0
        return MobileNet(self.classes, partial(nn.GroupNorm, 2))


MOBILE = CustomArchitecture(model="mobile", factory=MobileNet, classes=4, inputs={"": InputSpec((1, 8, 8))})
