"""Rank-1 weights with a sparse correction, W = π(u vᵀ ⊕ μ), and the matching of clients by their v (Factorized-FL).

A weight is seen as a matrix of a·b values, u of a and v of b (Eq. 1 to 3):

=============== ===================== ============ ============ =============================================
layer           weight                u            v            W
=============== ===================== ============ ============ =============================================
linear          (n, m)                m inputs     n outputs    W[i, j] = v[i]·u[j] + μ[i, j]
k₁×k₂ conv      (n, m/g, k₁, k₂)      k₁·k₂        n·m/g        W[i, j, :, :] = v[i, j]·u as a k₁×k₂ filter + μ
1×1 conv        (n, m/g, 1, 1)        m/g inputs   n outputs    as a linear layer on every pixel
=============== ===================== ============ ============ =============================================

μ has the weight's own shape, so π, which only renames indices, moves nothing.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError, EdgeflError
from edgefl.factor.svd import factorize


def factor_sizes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the lengths of u and v for a weight of ``shape``.

    >>> factor_sizes((64, 32, 3, 3)), factor_sizes((10, 1024)), factor_sizes((64, 32, 1, 1))
    ((9, 2048), (1024, 10), (32, 64))
    """
    kernel = math.prod(shape[2:])
    return (kernel, shape[0] * shape[1]) if kernel > 1 else (shape[1], shape[0])


def compose(u: Tensor, v: Tensor, mu: Tensor) -> Tensor:
    """Return W = π(u vᵀ ⊕ μ) in the shape of ``mu`` (Eq. 2 and 3); one multiply-accumulate for every weight.

    >>> compose(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0]), torch.tensor([[0.0, 0.5], [0.0, 0.0]])).tolist()
    [[3.0, -5.5], [5.0, -10.0]]
    """
    return torch.addr(mu.view(v.numel(), u.numel()), v, u).view(mu.shape)


def prune(mu: Tensor, threshold: float) -> Tensor:
    """Return μ with the entries of magnitude below ``threshold`` set to zero.

    >>> prune(torch.tensor([1e-4, -2.0]), 1e-3).tolist()
    [0.0, -2.0]
    """
    return torch.where(mu.abs() < threshold, torch.zeros_like(mu), mu)


def first_factors(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first u and v from a dense layer's initial weight: its leading singular pair, scaled to ‖u‖ = ‖v‖ = √‖W‖_F.

    A random weight's leading pair holds little of its energy. With ‖u vᵀ‖_F = ‖W‖_F activations keep the size that the network was designed
    for. A step η on v moves W η‖u‖² times as far as on a dense weight, one on u η‖v‖² times: equal norms minimise the larger of the two.

    >>> u, v = first_factors(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> round(float(u @ u), 4), round(float(v @ v), 4), torch.outer(v, u).round(decimals=4).tolist()
    (5.0, 5.0, [[0.0, 0.0], [0.0, 5.0]])
    """
    a, b = factor_sizes(tuple(weight.shape))
    # (b, a) as stored; the decomposition takes the smaller side's Gram matrix.
    left, right = factorize(weight.detach().reshape(b, a), 1).leading(1)
    v, u = left[:, 0], right[0]
    size = float(torch.linalg.vector_norm(weight.detach().double())) ** 0.5
    return _sized(u, size), _sized(v, size)


def cosines(vectors: Tensor) -> Tensor:
    """Return σ (clients, clients), float64: the cosine similarity of every pair of rows of ``vectors`` (clients, n) (Eq. 4).

    A row of zeros has similarity 0 to others. A client's similarity to itself is always 1.

    >>> cosines(torch.tensor([[1.0, 0.0], [3.0, 3.0], [0.0, 0.0]])).round(decimals=3).tolist()
    [[1.0, 0.707, 0.0], [0.707, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    rows = vectors.double()
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = torch.where(norms > 0, rows / norms.clamp_min(1e-300), torch.zeros_like(rows))
    return (unit @ unit.T).clamp(-1.0, 1.0).fill_diagonal_(1.0)


def matching_weights(similarity: Tensor, own: int, threshold: float, scale: float) -> Tensor:
    """Return the weights (clients,) of a personalised average: softmax(ε·σ) over the clients with σ ≥ τ, 0 for the others (Eq. 5).

    ``similarity`` is a client's row of :func:`cosines`, ``own`` its position, always included; ``threshold`` is τ and ``scale`` ε.

    >>> matching_weights(torch.tensor([1.0, 0.2, 0.9], dtype=torch.float64), 0, 0.5, 10.0).round(decimals=4).tolist()
    [0.7311, 0.0, 0.2689]
    """
    if not 0 <= own < len(similarity):
        raise EdgeflError(f"client at position {own} of {len(similarity)} similarities; expected 0 to {len(similarity) - 1}")
    left_out = similarity < threshold
    left_out[own] = False
    return torch.softmax((scale * similarity.double()).masked_fill(left_out, -math.inf), 0)


def _sized(vector: Tensor, size: float) -> Tensor:
    """Return ``vector`` (float32) scaled to the norm ``size``; a vector of zeros stays one."""
    norm = float(torch.linalg.vector_norm(vector.double()))
    return (vector * (size / norm)).contiguous() if norm > 0 else vector.clone()


class RankOne(nn.Module):
    """A layer of the weight π(u vᵀ ⊕ μ), with u, v and μ zero and a copy of the dense layer's bias."""

    def __init__(self, dense: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        shape = tuple(dense.weight.shape)
        a, b = factor_sizes(shape)
        self.u, self.v, self.mu = (nn.Parameter(torch.zeros(size, device=dense.weight.device)) for size in (a, b, shape))
        self.bias = None if dense.bias is None else nn.Parameter(dense.bias.detach().clone())

    def weight(self) -> Tensor:
        """Return W in the dense layer's shape."""
        return compose(self.u, self.v, self.mu)


class RankOneConv2d(RankOne):
    """A convolution; stride, padding, dilation and groups are the dense layer's."""

    def __init__(self, dense: nn.Conv2d) -> None:
        super().__init__(dense)
        if dense.padding_mode != "zeros":
            raise ConfigError(f"only convolutions that pad with zeros can have rank-1 weights, got {dense}")
        self.stride, self.padding, self.dilation, self.groups = dense.stride, dense.padding, dense.dilation, dense.groups

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, h, w) to (batch, n, h', w')."""
        return F.conv2d(x, self.weight(), self.bias, self.stride, self.padding, self.dilation, self.groups)


class RankOneLinear(RankOne):
    """A linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, m) to (…, n)."""
        return F.linear(x, self.weight(), self.bias)


def rank_one(dense: nn.Conv2d | nn.Linear) -> RankOne:
    """Return the layer that replaces ``dense``; :func:`fill` sets its factors.

    >>> sum(p.numel() for p in rank_one(nn.Conv2d(32, 64, 3, bias=False)).parameters()) - 9 * 32 * 64
    2057
    """
    return RankOneConv2d(dense) if isinstance(dense, nn.Conv2d) else RankOneLinear(dense)


@torch.no_grad()
def fill(layer: RankOne, weight: Tensor) -> None:
    """Give ``layer`` its first factors, from the dense layer's initial ``weight``; μ stays zero."""
    for factor, value in zip((layer.u, layer.v), first_factors(weight), strict=True):
        factor.copy_(value)
