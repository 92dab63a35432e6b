"""HeteroFL's five complexity levels for MNIST, in the sizes that Flower's re-run of its Table 1 prints (baselines/heterofl)."""

import math

import pytest

from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.models.cnn import Conv, ConvNet
from edgefl.records import Tier

# Width → thousands of parameters of levels a to e.
LEVELS = {1.0: 1556.874, 0.5: 391.37, 0.25: 98.922, 0.125: 25.274, 0.0625: 6.594}


class Levels(Architecture):
    """Four 3×3 convolutions of 64 to 512 channels with static BatchNorm, max-pooling after the first three, and global average pooling."""

    def build(self, width: float = 1.0) -> ConvNet:
        stages = *(Conv(channels, padding=1, pool=True) for channels in (64, 128, 256)), Conv(512, padding=1)
        return ConvNet(stages, (1, 28, 28), self.classes, width, "static", means=True)


@pytest.mark.parametrize("width", LEVELS)
def test_sizes_of_the_five_levels(width):
    shapes = download_shapes(create("heterofl"), Levels("mlp", (1, 28, 28), 10), Tier(width))
    assert sum(math.prod(shape) for shape in shapes.values()) / 1e3 == LEVELS[width]
