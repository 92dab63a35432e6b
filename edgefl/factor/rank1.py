"""Rank-1 weights with a sparse correction, W = π(u vᵀ ⊕ μ), and the matching of clients by their v (Factorized-FL).

A weight has a·b values, from u of length a and v of length b (Eq. 1 to 3):

=============== ===================== ============ ============ =============================================
layer           weight                u            v            W
=============== ===================== ============ ============ =============================================
linear          (n, m)                m inputs     n outputs    W[i, j] = v[i]·u[j] + μ[i, j]
k₁×k₂ conv      (n, m/g, k₁, k₂)      k₁·k₂        n·m/g        W[i, j, :, :] = v[i, j]·u as a k₁×k₂ filter + μ
1×1 conv        (n, m/g, 1, 1)        m/g inputs   n outputs    as a linear layer on every pixel
=============== ===================== ============ ============ =============================================

The weight has n outputs, m inputs and g groups. μ has the shape of the weight, and ⊕ adds it. π only renames indices and costs nothing.

For kernels above 1×1, the table is how the paper's text reads: u is the filter, and v has a coefficient for each pair of channels. The
authors' code (``view`` in ``modules/layers.py``) has another order, ``flat``: the values of u vᵀ (a, b), row after row, are those of the
weight. Then u scales blocks of n·m/g successive values, and the filters of a block are different pieces of v.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.factor.svd import factorize
from edgefl.util.convolutions import Convolution, convolved, take_place

Init = Literal["xavier", "dense"]
"""How the first u and v are chosen: see :func:`first_factors`."""


def factor_sizes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the lengths of u and v for a weight of ``shape``.

    >>> factor_sizes((64, 32, 3, 3)), factor_sizes((10, 1024)), factor_sizes((64, 32, 1, 1))
    ((9, 2048), (1024, 10), (32, 64))
    """
    kernel = math.prod(shape[2:])
    return (kernel, shape[0] * shape[1]) if kernel > 1 else (shape[1], shape[0])


def compose(u: Tensor, v: Tensor, mu: Tensor, flat: bool = False) -> Tensor:
    """Return W = π(u vᵀ ⊕ μ) in the shape of ``mu``, from ``u`` (a,) and ``v`` (b,) (Eq. 2 and 3); one MAC per weight.

    >>> u, v, mu = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0, 7.0]), torch.zeros(3, 1, 1, 2)
    >>> compose(u, v, mu).flatten().tolist(), compose(u, v, mu, flat=True).flatten().tolist()
    ([3.0, -6.0, 5.0, -10.0, 7.0, -14.0], [3.0, 5.0, 7.0, -6.0, -10.0, -14.0])
    """
    rows, columns = (u, v) if flat else (v, u)
    return torch.addr(mu.view(rows.numel(), columns.numel()), rows, columns).view(mu.shape)


def prune(mu: Tensor, threshold: float) -> Tensor:
    """Return μ with the entries of magnitude below ``threshold`` set to zero.

    >>> prune(torch.tensor([1e-4, -2.0]), 1e-3).tolist()
    [0.0, -2.0]
    """
    return torch.where(mu.abs() < threshold, torch.zeros_like(mu), mu)


def first_factors(weight: Tensor, init: Init, flat: bool = False) -> tuple[Tensor, Tensor]:
    """Return initial u (a,) and v (b,) for a dense layer, from its initial ``weight``.

    ``xavier``: torch's ``xavier_uniform_`` on u as (a, 1) and on v as (1, b), as in the authors' code (``modules/layers.py``). Then
    ‖u‖² ≈ 2a/(1 + a) and ‖v‖² ≈ 2b/(1 + b), so that ‖u vᵀ‖_F ≈ 1.9 in every layer of 3×3 kernels, whatever its width. Draws from torch's
    default generator.

    ``dense``: the leading singular pair of ``weight``, scaled to ‖u‖ = ‖v‖ = √‖W‖_F. The leading pair of a random weight has little of its
    energy. With ‖u vᵀ‖_F = ‖W‖_F activations are of the size that the network was designed for. That norm grows with the n channels: √(n/3)
    for torch's default weights, 4.6 at n = 64, and √(2n) = 11 for He's. A step on v moves W ‖u‖² times as far as the same step on a dense
    weight, a step on u ‖v‖² times. Equal norms minimise the larger of the two.

    >>> u, v = first_factors(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "dense")
    >>> round(float(u @ u), 4), round(float(v @ v), 4), torch.outer(v, u).round(decimals=4).tolist()
    (5.0, 5.0, [[0.0, 0.0], [0.0, 5.0]])
    """
    a, b = factor_sizes(tuple(weight.shape))
    if init == "xavier":
        u, v = (nn.init.xavier_uniform_(weight.new_empty(shape)).flatten() for shape in ((a, 1), (1, b)))
        return u, v
    # Both are views of the weight; the decomposition uses the Gram matrix of the smaller side.
    left, right = factorize(weight.detach().reshape((a, b) if flat else (b, a)), 1).leading(1)
    u, v = (left[:, 0], right[0]) if flat else (right[0], left[:, 0])
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


def matching_weights(similarity: Tensor, own: int, threshold: float, scale: float, least: int = 1) -> Tensor:
    """Return the weights (clients,) of a client's average: softmax(``scale``·σ) over the most similar clients, else 0 (Eq. 5).

    The clients with σ ≥ ``threshold`` count. If they are fewer than ``least``, the ``least`` most similar ones do. ``similarity``
    (clients,) is the client's row of :func:`cosines`. ``own`` is the client's position, which always counts.

    Raises:
        EdgeflError: ``similarity`` has no position ``own``.

    >>> matching_weights(torch.tensor([1.0, 0.2, 0.9], dtype=torch.float64), 0, 0.5, 10.0).round(decimals=4).tolist()
    [0.7311, 0.0, 0.2689]
    """
    if not 0 <= own < len(similarity):
        raise EdgeflError(f"client at position {own} of {len(similarity)} similarities; expected 0 to {len(similarity) - 1}")
    nearest = similarity.double().clone()
    nearest[own] = math.inf
    count = max(int((nearest >= threshold).sum()), least)
    left_out = torch.ones(len(similarity), dtype=torch.bool)
    left_out[torch.argsort(nearest, descending=True, stable=True)[:count]] = False
    return torch.softmax((scale * similarity.double()).masked_fill(left_out, -math.inf), 0)


def _sized(vector: Tensor, size: float) -> Tensor:
    """Return ``vector`` (float32) scaled to the norm ``size``; a vector of zeros stays one."""
    norm = float(torch.linalg.vector_norm(vector.double()))
    return (vector * (size / norm)).contiguous() if norm > 0 else vector.clone()


class RankOne(nn.Module):
    """A layer with the weight π(u vᵀ ⊕ μ): u (a,), v (b,) and μ of the weight's shape, all zero, and a copy of the dense layer's bias.

    Attributes:
        flat: whether π takes the values of u vᵀ row after row. It is False if a kernel has one value.
    """

    def __init__(self, dense: Convolution | nn.Linear, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat and dense.weight[0, 0].numel() > 1
        shape = tuple(dense.weight.shape)
        a, b = factor_sizes(shape)
        self.u, self.v, self.mu = (nn.Parameter(torch.zeros(size, device=dense.weight.device)) for size in (a, b, shape))
        self.bias = None if dense.bias is None else nn.Parameter(dense.bias.detach().clone())

    def weight(self) -> Tensor:
        """Return W, of the dense weight's shape."""
        return compose(self.u, self.v, self.mu, self.flat)


class RankOneConv(RankOne):
    """A convolution like the dense one."""

    def __init__(self, dense: Convolution, flat: bool = False) -> None:
        super().__init__(dense, flat)
        take_place(self, dense)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), like the dense layer."""
        return convolved(self, x)


class RankOneLinear(RankOne):
    """A linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, m) to (…, n)."""
        return F.linear(x, self.weight(), self.bias)


def rank_one(dense: Convolution | nn.Linear, flat: bool = False) -> RankOne:
    """Return the layer that replaces ``dense``, with factors of zero; :func:`fill` sets them.

    >>> sum(p.numel() for p in rank_one(nn.Conv2d(32, 64, 3, bias=False)).parameters()) - 9 * 32 * 64
    2057
    """
    return RankOneLinear(dense) if isinstance(dense, nn.Linear) else RankOneConv(dense, flat)


@torch.no_grad()
def fill(layer: RankOne, weight: Tensor, init: Init) -> None:
    """Set u and v of ``layer`` to :func:`first_factors` of the dense layer's initial ``weight``; μ stays zero."""
    for factor, value in zip((layer.u, layer.v), first_factors(weight, init, layer.flat), strict=True):
        factor.copy_(value)
