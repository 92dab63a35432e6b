"""Layers of plain low rank: two or three small layers that replace a dense one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard import draw, factor_stds, he_variance, positions
from edgefl.factor.layers import low_rank
from edgefl.factor.tucker import ranks


class TuckerConv2d(nn.Module):
    """A k₁×k₂ convolution of Tucker ranks (R₁, R₂): 1×1 from m to R₂ channels, k₁×k₂ to R₁, 1×1 to n.

    The middle one has the stride, padding and dilation; the last one has the bias, if the dense layer has one.
    """

    def __init__(self, dense: nn.Conv2d, rank: int) -> None:
        super().__init__()
        if dense.groups != 1 or dense.padding_mode != "zeros":
            raise ConfigError(f"only convolutions of one group that pad with zeros have Tucker factors, got {dense}")
        first, second = ranks(tuple(dense.weight.shape), rank)
        device = dense.weight.device
        self.reduce = nn.Conv2d(dense.in_channels, second, 1, bias=False, device=device)
        (k1, k2), (s1, s2), (d1, d2) = dense.kernel_size, dense.stride, dense.dilation
        # torch takes padding as a word too, and says so in a type of any number of sizes.
        padding: Any = dense.padding
        self.core = nn.Conv2d(second, first, (k1, k2), (s1, s2), padding, (d1, d2), bias=False, device=device)
        self.expand = nn.Conv2d(first, dense.out_channels, 1, bias=dense.bias is not None, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, h, w) to (batch, n, h', w')."""
        return self.expand(self.core(self.reduce(x)))


def small_layers(dense: nn.Conv2d | nn.Linear, rank: int) -> nn.Module:
    """Return the layers of ``rank`` that replace ``dense``, drawn so that their product has He's variance.

    A kernel of several positions becomes three convolutions; a linear layer, or a 1×1 convolution, two layers. The bias stays.
    """
    shape = tuple(dense.weight.shape)
    stds = factor_stds(shape, ranks(shape, rank), he_variance(shape))
    layers = TuckerConv2d(dense, rank) if isinstance(dense, nn.Conv2d) and positions(shape) > 1 else low_rank(dense, rank)
    first, last = (layers.reduce, layers.expand) if isinstance(layers, TuckerConv2d) else (layers.u, layers.v)
    core = [(layers.core, "t")] if isinstance(layers, TuckerConv2d) else []
    for layer, factor in ((first, "y"), (last, "x"), *core):
        layer.weight = nn.Parameter(draw(tuple(layer.weight.shape), stds[factor]))
    last.bias = dense.bias
    return layers
