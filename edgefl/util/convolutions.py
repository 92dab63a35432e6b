"""The convolutions that have factors: over signals, images and volumes."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_OF_AXES: Any = {1: (nn.Conv1d, F.conv1d), 2: (nn.Conv2d, F.conv2d), 3: (nn.Conv3d, F.conv3d)}


def convolution_for(weight: Tensor) -> Any:
    """Return the class of the convolutions with a weight like ``weight`` (n, m, k₁, …).

    torch gives the sizes of each class a type of its own, so this is not typed.

    >>> convolution_for(nn.Conv1d(2, 3, 5).weight).__name__
    'Conv1d'
    """
    return _OF_AXES[weight.dim() - 2][0]


def convolved(layer: Any, x: Tensor) -> Any:
    """Return the convolution of ``x`` with the weight that ``layer.weight()`` composes, at the bias, stride and so on of ``layer``."""
    weight = layer.weight()
    convolve = _OF_AXES[weight.dim() - 2][1]
    return convolve(x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
