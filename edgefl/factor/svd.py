"""Truncated singular value decompositions of layers: one decomposition serves every rank up to its own.

The decomposition goes through the smaller Gram matrix in float64: for W of shape a × b with a ≤ b, WWᵀ = QΛQᵀ gives the left singular
vectors Q and σ = √Λ, and σᵢvᵢᵀ = qᵢᵀW is exact for whatever Q came out, so a truncation never carries the error that squaring makes in
the small singular values. Weights are float32: their own rounding is far above it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.errors import EdgeflError


@dataclass(frozen=True)
class Factors:
    """Spectral factors of W (a × b), largest first: W ≈ left[:, :r] @ right[:r] for every r up to ``rank``.

    Attributes:
        left: U√Σ, float32, (a, rank).
        right: √ΣVᵀ, float32, (rank, b).
        values: all singular values, float64, (min(a, b),), largest first.
    """

    left: Tensor
    right: Tensor
    values: Tensor

    def leading(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return the factors of the best approximation of rank ``rank``, as views.

        Raises:
            EdgeflError: ``rank`` is not between 1 and the rank of this decomposition.
        """
        if not 1 <= rank <= self.left.shape[1]:
            raise EdgeflError(f"rank {rank} was asked of factors of rank {self.left.shape[1]}; expected 1 to that")
        return self.left[:, :rank], self.right[:rank]


def factorize(matrix: Tensor, rank: int) -> Factors:
    """Decompose ``matrix`` (a × b) up to ``rank`` (spectral initialisation of Khodak et al., as FedHM, section 2.2).

    >>> w = torch.tensor([[3.0, 0.0], [0.0, -2.0]])
    >>> u, v = factorize(w, 1).leading(1)
    >>> (u @ v).round(decimals=4).tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """
    if matrix.dim() != 2 or not 1 <= rank <= min(matrix.shape):
        raise EdgeflError(f"rank {rank} does not fit a matrix of shape {tuple(matrix.shape)}")
    wide = matrix.shape[0] <= matrix.shape[1]
    w = (matrix if wide else matrix.T).double()
    if not bool(torch.isfinite(w).all()):
        raise EdgeflError(f"a matrix of shape {tuple(matrix.shape)} holds NaN or infinity: it has no singular values")
    eigenvalues, vectors = torch.linalg.eigh(w @ w.T)
    values = eigenvalues.clamp_min(0.0).sqrt().flip(0)
    basis = _signed(vectors.flip(1)[:, :rank])
    root = values[:rank].sqrt()
    # A direction without energy keeps a zero in both factors instead of a division by zero.
    inverse = torch.where(values[:rank] > values[0] * 1e-12, 1.0 / root.clamp_min(1e-300), torch.zeros_like(root))
    near, far = basis * root, inverse[:, None] * (basis.T @ w)
    left, right = (near, far) if wide else (far.T, near.T)
    return Factors(left.float().contiguous(), right.float().contiguous(), values)


def _signed(vectors: Tensor) -> Tensor:
    """Fix each eigenvector's sign (its largest entry is positive): solvers are free to choose, results should not depend on it."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return vectors * torch.where(largest < 0, -1.0, 1.0)


def unroll(weight: Tensor) -> Tensor:
    """Return a convolution's weight (n, m, k₁, k₂) as the (m·k₁) × (n·k₂) matrix of FedHM, section 2.2; a linear (n, m) as m × n.

    >>> unroll(torch.zeros(8, 4, 3, 3)).shape, unroll(torch.zeros(8, 4)).shape
    (torch.Size([12, 24]), torch.Size([4, 8]))
    """
    if weight.dim() == 2:
        return weight.T
    n, m, k1, k2 = weight.shape
    return weight.permute(1, 2, 0, 3).reshape(m * k1, n * k2)


def roll(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo :func:`unroll` for a weight of ``shape``."""
    if len(shape) == 2:
        return matrix.T
    n, m, k1, k2 = shape
    return matrix.reshape(m, k1, n, k2).permute(2, 0, 1, 3)
