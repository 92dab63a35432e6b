"""Truncated singular value decompositions of layers. One decomposition serves every rank up to its own.

:func:`truncated` finds the leading vectors only, starting from those of the last round. :func:`factorize` finds all vectors; it is used
for small layers, and if the leading vectors are not shown to be good enough. It uses the smaller Gram matrix in float64: for W (a × b),
a ≤ b, WWᵀ = QΛQᵀ gives Q and σ = √Λ. Then σᵢvᵢᵀ = qᵢᵀW is exact for any computed Q: squaring small singular values costs no accuracy.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from edgefl.errors import EdgeflError
from edgefl.factor.subspace import Leading, leading, worthwhile

Way = Literal["block", "full", "fallback"]
"""How factors were found. ``block``: leading vectors only; ``full``: all, as planned; ``fallback``: all, after a block failed."""


@dataclass(frozen=True)
class Factors:
    """Factors of W (a × b) from its singular value decomposition: W ≈ left[:, :r] @ right[:r] for every r up to ``rank``.

    Attributes:
        left: U√Σ, (a, rank) float32, columns of the largest singular values first.
        right: √ΣVᵀ, (rank, b) float32.
        values: singular values, float64, largest first: all min(a, b) after a full decomposition, ``rank`` of them after a block.
        way: how the factors were found.
        start: left singular vectors to start from at a similar matrix; None after a full decomposition.
    """

    left: Tensor
    right: Tensor
    values: Tensor
    way: Way = "full"
    start: Tensor | None = None

    def leading(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return views of the factors at ``rank``, (a, rank) and (rank, b); EdgeflError if the decomposition has fewer."""
        if not 1 <= rank <= self.left.shape[1]:
            raise EdgeflError(f"rank {rank} was asked of factors of rank {self.left.shape[1]}; expected 1 to that")
        return self.left[:, :rank], self.right[:rank]


def factorize(matrix: Tensor, rank: int) -> Factors:
    """Return factors of ``matrix`` (a × b) up to ``rank`` (FedHM, section 2.2).

    Raises:
        EdgeflError: the rank is not 1 to min(a, b), or the matrix holds NaN or infinity.

    >>> w = torch.tensor([[3.0, 0.0], [0.0, -2.0]])
    >>> u, v = factorize(w, 1).leading(1)
    >>> (u @ v).round(decimals=4).tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """
    _check(matrix, rank)
    wide = matrix.shape[0] <= matrix.shape[1]
    w = (matrix if wide else matrix.T).double()
    eigenvalues, vectors = torch.linalg.eigh(w @ w.T)
    values = eigenvalues.clamp_min(0.0).sqrt().flip(0)
    basis = vectors.flip(1)[:, :rank]
    basis = basis * _signs(basis)
    root = values[:rank].sqrt()
    # A direction without energy is zero in both factors, which avoids a division by zero.
    inverse = torch.where(values[:rank] > values[0] * 1e-12, 1.0 / root.clamp_min(1e-300), torch.zeros_like(root))
    near, far = basis * root, inverse[:, None] * (basis.T @ w)
    left, right = (near, far) if wide else (far.T, near.T)
    return Factors(left.float().contiguous(), right.float().contiguous(), values)


def truncated(matrix: Tensor, ranks: Sequence[int], start: Tensor | None = None) -> Factors:
    """Return factors of ``matrix`` (a × b) up to the largest of ``ranks``. The error at each is at most 1 + 1e-4 times the least possible.

    ``start`` is :attr:`Factors.start` of a similar matrix. The result depends on the arguments only, to the last bit.

    Raises:
        EdgeflError: the largest rank is above min(a, b), or the matrix holds NaN or infinity.

    >>> factors = truncated(torch.diag(torch.tensor([3.0, 2.0, 1.0])), [1, 2])
    >>> factors.left.shape, factors.way
    (torch.Size([3, 2]), 'full')
    """
    rank = max(ranks)
    if matrix.dim() != 2 or matrix.dtype is not torch.float32 or not worthwhile(min(matrix.shape), rank):
        return factorize(matrix, rank)
    wide = matrix.shape[0] <= matrix.shape[1]
    w = (matrix if wide else matrix.T).clone(memory_format=torch.contiguous_format)
    block = leading(w, ranks, start) if start is not None and start.shape[0] == len(w) else None
    if block is None and (block := leading(w, ranks)) is None:  # no start, or it is too far away
        return replace(factorize(matrix, rank), way="fallback")
    left, right, values = _balanced(block, rank)
    left, right = (left, right) if wide else (right.T, left.T)
    return Factors(left.contiguous(), right.contiguous(), values, "block", block.start)


def singular_values(matrix: Tensor) -> Tensor:
    """Return all singular values of ``matrix`` (a × b), (min(a, b),) float64, largest first; EdgeflError for NaN or infinity.

    >>> singular_values(torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])).tolist()
    [3.0, 2.0]
    """
    _check(matrix, 1)
    w = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T).double()
    return torch.linalg.eigvalsh(w @ w.T).clamp_min(0.0).sqrt().flip(0)


def counted(factors: Iterable[Factors]) -> dict[Way, int]:
    """Return way → number of the decompositions that were found by it."""
    ways = [one.way for one in factors]
    return {way: ways.count(way) for way in ("block", "full", "fallback")}


def _check(matrix: Tensor, rank: int) -> None:
    if matrix.dim() != 2 or not 1 <= rank <= min(matrix.shape):
        raise EdgeflError(f"rank {rank} does not fit a matrix of shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise EdgeflError(f"a matrix of shape {tuple(matrix.shape)} holds NaN or infinity: it has no singular values")


def _balanced(block: Leading, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return U√Σ, √ΣVᵀ and Σ at ``rank`` from factors with arbitrary scales."""
    left, right = block.left[:, :rank], block.right[:rank]
    lengths = [torch.linalg.vector_norm(factor, dim=dim, dtype=torch.float64) for factor, dim in ((left, 0), (right, 1))]
    # A direction without energy is zero in both factors, which avoids a division by zero.
    alive = (lengths[0] > 0) & (lengths[1] > 0)
    roots = (lengths[1] / lengths[0]).sqrt() * _signs(left)[0]
    by_left, by_right = (torch.where(alive, factors, 0.0).float() for factors in (roots, 1 / roots))
    return left * by_left, right * by_right[:, None], lengths[0] * lengths[1]


def _signs(vectors: Tensor) -> Tensor:
    """Return ±1 for each column, (1, k), that makes its largest entry positive: solvers may return either sign."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -1.0, 1.0)


def unroll(weight: Tensor) -> Tensor:
    """Return the matrix of FedHM, section 2.2: (m·k₁) × (n·k₂) for a weight (n, m, k₁, k₂), m × n for a linear weight (n, m).

    The weight (n, m, k₁) of a convolution over signals has k₂ = 1.

    >>> unroll(torch.zeros(8, 4, 3, 3)).shape, unroll(torch.zeros(8, 4, 3)).shape, unroll(torch.zeros(8, 4)).shape
    (torch.Size([12, 24]), torch.Size([12, 8]), torch.Size([4, 8]))
    """
    if weight.dim() == 2:
        return weight.T
    n, m, k1, *k2 = weight.shape
    return weight.permute(1, 2, 0, *range(3, weight.dim())).reshape(m * k1, n * math.prod(k2))


def roll(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo :func:`unroll` for a weight of ``shape``."""
    if len(shape) == 2:
        return matrix.T
    n, m, k1, *k2 = shape
    return matrix.reshape(m, k1, n, *k2).permute(2, 0, 1, *range(3, len(shape)))
