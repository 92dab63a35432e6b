"""Layers whose weight is composed of a rank-1 product and a sparse correction. Each replaces a dense layer."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.rank1 import compose, factor_sizes, first_factors


@runtime_checkable
class RankOne(Protocol):
    """A layer with the weight π(u vᵀ ⊕ μ)."""

    u: nn.Parameter
    v: nn.Parameter
    mu: nn.Parameter
    bias: nn.Parameter | None


class RankOneConv2d(nn.Module):
    """A convolution of the weight π(u vᵀ ⊕ μ); stride, padding, dilation and groups are the dense layer's."""

    def __init__(self, dense: nn.Conv2d) -> None:
        super().__init__()
        if dense.padding_mode != "zeros":
            raise ConfigError(f"only convolutions that pad with zeros can have rank-1 weights, got {dense}")
        self.stride, self.padding, self.dilation, self.groups = dense.stride, dense.padding, dense.dilation, dense.groups
        self.u, self.v, self.mu, self.bias = _parameters(dense)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, h, w) to (batch, n, h', w')."""
        weight = compose(self.u, self.v, self.mu)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class RankOneLinear(nn.Module):
    """A linear layer of the weight u vᵀ ⊕ μ."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.u, self.v, self.mu, self.bias = _parameters(dense)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, m) to (…, n)."""
        return F.linear(x, compose(self.u, self.v, self.mu), self.bias)


def rank_one(dense: nn.Conv2d | nn.Linear) -> RankOneConv2d | RankOneLinear:
    """Return the layer that replaces ``dense``, with u, v and μ zero and a copy of the bias; :func:`fill` sets the factors.

    >>> sum(p.numel() for p in rank_one(nn.Conv2d(32, 64, 3, bias=False)).parameters()) - 9 * 32 * 64
    2057
    """
    return RankOneConv2d(dense) if isinstance(dense, nn.Conv2d) else RankOneLinear(dense)


@torch.no_grad()
def fill(layer: RankOneConv2d | RankOneLinear, weight: Tensor) -> None:
    """Give ``layer`` its first factors, from the dense layer's initial ``weight``; μ stays zero."""
    u, v = first_factors(weight)
    layer.u.copy_(u)
    layer.v.copy_(v)


def _parameters(dense: nn.Conv2d | nn.Linear) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter, nn.Parameter | None]:
    device = dense.weight.device
    a, b = factor_sizes(tuple(dense.weight.shape))
    bias = None if dense.bias is None else nn.Parameter(dense.bias.detach().clone())
    u, v, mu = (nn.Parameter(torch.zeros(shape, device=device)) for shape in ((a,), (b,), tuple(dense.weight.shape)))
    return u, v, mu, bias
