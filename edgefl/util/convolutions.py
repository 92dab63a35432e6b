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


def take_place(layer: Any, dense: Convolution) -> None:
    """Give ``layer`` the bias, stride, padding, dilation and groups of ``dense``, for :func:`convolved`."""
    for name in ("bias", "stride", "padding", "padding_mode", "dilation", "groups"):
        setattr(layer, name, getattr(dense, name))


def convolved(layer: Any, x: Tensor) -> Any:
    """Return the convolution of ``x`` with the weight that ``layer.weight()`` composes, in the place that the layer has taken."""
    weight, padding = layer.weight(), layer.padding
    convolve = _OF_AXES[weight.dim() - 2][1]
    if layer.padding_mode != "zeros":
        x, padding = F.pad(x, _around(layer, weight), mode=layer.padding_mode), 0
    return convolve(x, weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups)


def _around(layer: Any, weight: Tensor) -> list[int]:
    """Return how many positions the padding adds before and after each axis, the last axis first."""
    spans = [step * (size - 1) for size, step in zip(weight.shape[2:], layer.dilation, strict=True)]
    words = {"valid": [(0, 0) for _ in spans], "same": [(span // 2, span - span // 2) for span in spans]}
    axes = words[layer.padding] if isinstance(layer.padding, str) else [(side, side) for side in layer.padding]
    return [count for axis in reversed(axes) for count in axis]
