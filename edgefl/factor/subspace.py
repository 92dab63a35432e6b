"""Leading singular vectors by block subspace iteration, from those of a matrix nearby, with a bound on what they miss.

For W (n × m, n ≤ m) and A = WWᵀ, a block of k > r columns is multiplied by A − c·I, made orthonormal, and rotated to the Ritz vectors
U with Ritz values θ₁ ≥ … ≥ θₖ (Saad 2011, Numerical Methods for Large Eigenvalue Problems, section 5.3). The weights of two rounds are
alike: from the last round's vectors one or two passes are enough. (The code iterates with WᵀW.)

Every requested rank r is checked before anything is returned. UᵀU = I gives the truncation's own error exactly,
‖W‖² − Σ_{i≤r} θᵢ. (Up to ε‖W‖, ε = 2⁻²³, it counts as none: rounding the factors to float32 adds as much.)
The best error is smaller by d = Σ_{i≤r} (λᵢ − θᵢ), λ the eigenvalues of A. In a basis that begins with U, A = [Θ, Rᵀ; R, C] with the
residual R = (I − UUᵀ)AU, and for every s > 0 and μ ≥ λ₁(C)

    A ≼ diag(Θ + RᵀR/s, (μ + s)·I),  so with s = θ_r − μ > 0:  d ≤ ‖R‖²/s.                                                   (1)

Let E be the part of ‖R‖² in the first c ≥ r columns and F the rest. With RᵀR ≼ diag((1 + t)·R₁ᵀR₁, (1 + 1/t)·R₂ᵀR₂), columns beyond c do
not count when θ_{c+1} + (1 + 1/t)·F/s ≤ θ_r:

    d ≤ (1 + t)·E/s,  1 + 1/t = s·(θ_r − θ_{c+1})/F.                                                                         (2)

E, F and μ are estimated with b Gaussian vectors Ω that are independent of W: ‖R₁ᵀΩ‖² < ρ·b·E has a probability of at most exp(b/2·(1 − ρ
+ ln ρ)), 7e-12 here (Chernoff; least favourable is a rank of 1), and so have that of F, and ‖u₁ᵀΩ‖² < ρ·b with the first eigenvector u₁
of C. A polynomial p then has ‖p(C)Ω‖² ≥ p(λ₁(C))²·ρ·b, which with the Chebyshev polynomials of degree 1, 2, … gives smaller and smaller
μ. For k up to 700 columns that is 1e-8 for all c together: the bound is proven with this probability, and up to the rounding of the
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-4
"""How much larger than the best truncation's a truncation's error may be."""
_HELD_TO = 0.9 * TOLERANCE  # the rest is for rounding
GUARD = 48
"""Extra columns beyond the largest rank."""
_PASSES = 3
_PROBES = 32  # b
_SHARE = 0.08  # ρ
_DEGREE = 16
# Below this share of the energy a tail drowns in the rounding of float32; in float64 it is then worked out entry by entry.
_SMALL = 1e-4
# What rounding the factors to float32 adds anyway, as a share of the energy: below it errors are as good as none.
_ROUNDING = torch.finfo(torch.float32).eps ** 2


@dataclass(frozen=True)
class Leading:
    """Factors (n, k) and (k, m), float32, whose first r columns and rows multiply to W at rank r; ``right`` has orthogonal rows.

    ``start`` has the left singular vectors to start with at a similar matrix, (n, k): float64 where float32 was not precise enough.
    """

    left: Tensor
    right: Tensor
    start: Tensor


@dataclass(frozen=True)
class _Ritz:
    """Ritz vectors of WWᵀ: orthonormal ``left`` (n, k), ``right`` = leftᵀW (k, m), values θ = ‖right‖² by row, float64, falling."""

    left: Tensor
    right: Tensor
    values: Tensor

    def tails(self, w: Tensor, energy: float) -> Tensor:
        """Return ‖W − left[:, :r] right[:r]‖² for r = 1 … k, float64."""
        # Corrected for the rounding of the left vectors' lengths.
        captured = ((2 - _squares(self.left, 0)) * self.values).cumsum(0)
        if w.dtype is torch.float32 or float(energy - captured[-1]) > _SMALL * energy:
            return energy - captured
        return (w - self.left @ self.right).square().sum() + (captured[-1] - captured)


def worthwhile(size: int, rank: int) -> bool:
    """Whether the smaller side ``size`` is so much larger than ``rank`` that a block is cheaper than a full decomposition.

    >>> worthwhile(1536, 256), worthwhile(192, 32)
    (True, False)
    """
    return size >= 256 and 2 * (rank + GUARD) <= size


def leading(w: Tensor, ranks: Sequence[int], start: Tensor | None = None) -> Leading | None:
    """Return factors of ``w`` (n × m, n ≤ m, float32) whose truncation at each of ``ranks`` is within the tolerance of the best.

    Without a ``start`` it begins with the eigenvectors of the Gram matrix in float32. None: the bound does not hold.
    """
    energy, largest = float(_squares(w).sum()), max(ranks)
    if not 0 < energy < math.inf:
        return None
    ritz, scale = None, 1.0
    if not 1e-12 < energy / len(w) < 1e12:  # a power of 2: exact, and products neither over- nor underflow
        scale = 2.0 ** round(math.log2(energy / len(w)) / 2)
        w, energy = w / scale, energy / scale**2
    block = _widened(torch.linalg.eigh(w @ w.T)[1].flip(1) if start is None else start, largest + GUARD)
    # To the other side, where a guess is better by one multiplication.
    other, basis = w.T, (w.T.to(block.dtype) @ block)
    for dtype in (torch.float32, torch.float64)[block.dtype is torch.float64 :]:
        other, basis = other.to(dtype), basis.to(dtype)
        for number in range(_PASSES):
            ritz = _ritz(other, _powered(other, basis, ritz if number else None, energy))
            basis, tails = ritz.left, ritz.tails(other, energy)
            if (share := float(tails[largest - 1]) / energy) < _SMALL and dtype is torch.float32:
                break
            if _shown(other, ritz, tails, ranks, _ROUNDING * energy):
                # A little above the limit float64 continues, so that layers near it do not start in float32 in vain.
                left = ritz.right.T
                start = left / torch.linalg.vector_norm(left, dim=0).clamp_min(1e-30)
                scaled = left.float() * scale if scale != 1 else left.float()
                return Leading(scaled, ritz.left.T.float(), start.to(dtype if share < 10 * _SMALL else torch.float32))
    return None


def _widened(start: Tensor, count: int) -> Tensor:
    """Return ``count`` columns: what there is of ``start``, and Gaussian ones."""
    # A copy: products differ in their last bits with the layout of their factors, and with where in memory they begin.
    known = start[:, :count].clone(memory_format=torch.contiguous_format)
    if known.shape[1] == count:
        return known
    extra = _gaussian(len(start), count - known.shape[1], 0).to(start.dtype) / math.sqrt(len(start))
    return torch.cat([known, extra], 1)


def _squares(tensor: Tensor, dim: int = 1) -> Tensor:
    """Return sums of squares, in float64."""
    return torch.linalg.vector_norm(tensor, dim=dim, dtype=torch.float64).square()


def _gaussian(rows: int, count: int, seed: int) -> Tensor:
    """Return numbers that are the same in every run: nothing of it depends on what a run draws."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, count), np.float32))


def _ritz(w: Tensor, basis: Tensor) -> _Ritz:
    rows = basis.T @ w
    rotation = torch.linalg.eigh(rows @ rows.T)[1].flip(1)
    right = rotation.T @ rows
    return _Ritz(basis @ rotation, right, _squares(right))


def _powered(w: Tensor, block: Tensor, ritz: _Ritz | None, energy: float) -> Tensor:
    """Return an orthonormal basis of (A − c·I)·block, c about the middle of the spectrum to be left out."""
    image = w.T @ block if ritz is None else ritz.right.T
    values = _squares(image, 0) / _squares(block, 0).clamp_min(1e-300)
    mean = (energy - float(values.sum())) / (len(block) - block.shape[1])
    return torch.linalg.qr(w @ image - min(max(mean, 0.0), float(values[-1]) / 2) * block)[0]


def _shown(w: Tensor, ritz: _Ritz, tails: Tensor, ranks: Sequence[int], least: float) -> bool:
    """Whether the truncation at each rank is shown to be within the tolerance of the best, or below ``least``; see the top of this file."""
    budgets = {rank: (1 - (1 + _HELD_TO) ** -2) * float(tails[rank - 1]) for rank in ranks if float(tails[rank - 1]) > least}
    if not budgets:
        return True
    count = _PROBES * _SHARE

    def outside(block: Tensor) -> Tensor:
        return block - ritz.left @ (ritz.left.T @ block)

    def within(largest: float) -> bool:
        return all(_missed(ritz.values, residuals, rank, largest) <= budget for rank, budget in budgets.items())

    now = outside(_gaussian(len(w), _PROBES, 1).to(w.dtype))
    image = w.T @ now
    residuals = _squares(ritz.right @ image).cumsum(0) / count
    upper = max(float(ritz.values[-1]), torch.finfo(w.dtype).eps * float(ritz.values[0]))
    if not within(upper):  # μ comes down to about a, and not below it
        return False
    before = torch.zeros_like(now)
    for degree in range(1, _DEGREE + 1):
        factor = 2 if degree == 1 else 4
        now, before = factor / upper * outside(w @ image) - factor / 2 * now - before, now
        size = math.sqrt(float(_squares(now).sum()) / count)
        if within(upper / 2 * (1 + math.cosh(math.acosh(max(size, 1.0)) / degree))):
            return True
        image = w.T @ now
    return False


def _missed(values: Tensor, residuals: Tensor, rank: int, largest: float) -> float:
    """Return the bound on d: the least of (1) and of (2) for every c; ``residuals`` are cumulated, ``largest`` is μ."""
    room = float(values[rank - 1]) - largest
    if room <= 0:
        return math.inf
    inner, rest = residuals[rank - 1 : -1], residuals[-1] - residuals[rank - 1 : -1]
    ratio = room * (values[rank - 1] - values[rank:]) / rest.clamp_min(1e-300)  # 1 + 1/t
    bounds = torch.where(ratio > 1, inner * ratio / (ratio - 1), residuals[-1])
    return min(float(bounds.min()), float(residuals[-1])) / room
