"""Leading singular vectors by block subspace iteration, started from those of a similar matrix, with a bound on their error.

Let W be n × m with n ≤ m, and A = WWᵀ. A pass multiplies a block of k > r columns by A − c·I and makes it orthonormal. It then rotates the
block to the Ritz vectors U with Ritz values θ₁ ≥ … ≥ θₖ (Saad 2011, Numerical Methods for Large Eigenvalue Problems, section 5.3). The
weights of two rounds are similar: from the vectors of the last round, one or two passes are enough. (The code iterates with WᵀW.)

Every requested rank r is checked before a result is returned. Because UᵀU = I, the squared error of the truncation is exactly
‖W‖² − Σ_{i≤r} θᵢ. (Up to ε²‖W‖², ε = 2⁻²³, it counts as zero, because rounding the factors to float32 adds as much.)
The least possible error is smaller by d = Σ_{i≤r} (λᵢ − θᵢ), where λ are the eigenvalues of A. In a basis that begins with U,
A = [Θ, Rᵀ; R, C] with the residual R = (I − UUᵀ)AU, and for every s > 0 and μ ≥ λ₁(C)

    A ≼ diag(Θ + RᵀR/s, (μ + s)·I),  so with s = θ_r − μ > 0:  d ≤ ‖R‖²/s.                                                   (1)

Let E be the part of ‖R‖² in the first c ≥ r columns, R₁, and F the part in the others, R₂. For every t > 0,
RᵀR ≼ diag((1 + t)·R₁ᵀR₁, (1 + 1/t)·R₂ᵀR₂), so the columns beyond c do not count if θ_{c+1} + (1 + 1/t)·F/s ≤ θ_r:

    d ≤ (1 + t)·E/s,  1 + 1/t = s·(θ_r − θ_{c+1})/F.                                                                         (2)

E, F and μ are estimated with b Gaussian vectors Ω that are independent of W. The probability of ‖R₁ᵀΩ‖² < ρ·b·E is at most
exp(b/2·(1 − ρ + ln ρ)), 7e-12 here (Chernoff; the least favourable rank is 1). The same holds for F, and for ‖u₁ᵀΩ‖² < ρ·b with the first
eigenvector u₁ of C. Every polynomial p then has ‖p(C)Ω‖² ≥ p(λ₁(C))²·ρ·b. Chebyshev polynomials of degree 1, 2, … give smaller and
smaller μ. For k up to 700 columns, the bound fails for some c with a probability of at most 1e-8, apart from rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-4
"""How much a truncation's error may exceed the least possible one, as a share of it."""
_HELD_TO = 0.9 * TOLERANCE  # leaves a tenth for rounding
GUARD = 48
"""Extra columns beyond the largest rank."""
_PASSES = 3
_PROBES = 32  # b
_SHARE = 0.08  # ρ
_DEGREE = 16
# If the truncated share of the energy is smaller, float32 is not precise enough; float64 then computes it entry by entry.
_SMALL = 1e-4
# The error of rounding the factors to float32, as a share of the energy. Smaller errors count as zero.
_ROUNDING = torch.finfo(torch.float32).eps ** 2


@dataclass(frozen=True)
class Leading:
    """Factors of W: their first r columns and rows multiply to its truncation at rank r.

    Attributes:
        left: (n, k) float32.
        right: (k, m) float32, with orthogonal rows.
        start: left singular vectors to start from at a similar matrix, (n, k): float64 if float32 was not precise enough.
    """

    left: Tensor
    right: Tensor
    start: Tensor


@dataclass(frozen=True)
class _Ritz:
    """Ritz vectors of WWᵀ: orthonormal ``left`` (n, k), ``right`` = leftᵀW (k, m), and θ = ‖right‖² by row, float64, descending."""

    left: Tensor
    right: Tensor
    values: Tensor

    def tails(self, w: Tensor, energy: float) -> Tensor:
        """Return ‖W − left[:, :r] right[:r]‖² for r = 1 … k, float64."""
        # Corrected for left vectors whose lengths are not exactly 1.
        captured = ((2 - _squares(self.left, 0)) * self.values).cumsum(0)
        if w.dtype is torch.float32 or float(energy - captured[-1]) > _SMALL * energy:
            return energy - captured
        return (w - self.left @ self.right).square().sum() + (captured[-1] - captured)


def worthwhile(size: int, rank: int) -> bool:
    """Return whether a block is cheaper than a full decomposition of a matrix with the smaller side ``size``.

    >>> worthwhile(1536, 256), worthwhile(192, 32)
    (True, False)
    """
    return size >= 256 and 2 * (rank + GUARD) <= size


def leading(w: Tensor, ranks: Sequence[int], start: Tensor | None = None) -> Leading | None:
    """Return factors of ``w`` (n × m, n ≤ m, float32) with errors within the tolerance at each of ``ranks``.

    None if the bound does not show this. ``start`` has left singular vectors (n, k) of a similar matrix. Without it, the iteration starts
    from the eigenvectors of WWᵀ in float32.
    """
    energy, largest = float(_squares(w).sum()), max(ranks)
    if not 0 < energy < math.inf:
        return None
    ritz, scale = None, 1.0
    if not 1e-12 < energy / len(w) < 1e12:  # a power of 2: exact, and products neither over- nor underflow
        scale = 2.0 ** round(math.log2(energy / len(w)) / 2)
        w, energy = w / scale, energy / scale**2
    block = _widened(torch.linalg.eigh(w @ w.T)[1].flip(1) if start is None else start, largest + GUARD)
    # Multiplied to the other side once, which improves the guess.
    other, basis = w.T, (w.T.to(block.dtype) @ block)
    for dtype in (torch.float32, torch.float64)[block.dtype is torch.float64 :]:
        other, basis = other.to(dtype), basis.to(dtype)
        for number in range(_PASSES):
            ritz = _ritz(other, _powered(other, basis, ritz if number else None, energy))
            basis, tails = ritz.left, ritz.tails(other, energy)
            if (share := float(tails[largest - 1]) / energy) < _SMALL and dtype is torch.float32:
                break
            if _shown(other, ritz, tails, ranks, _ROUNDING * energy):
                # Near the limit the next start is in float64, because float32 would probably fail.
                left = ritz.right.T
                start = left / torch.linalg.vector_norm(left, dim=0).clamp_min(1e-30)
                scaled = left.float() * scale if scale != 1 else left.float()
                return Leading(scaled, ritz.left.T.float(), start.to(dtype if share < 10 * _SMALL else torch.float32))
    return None


def _widened(start: Tensor, count: int) -> Tensor:
    """Return ``count`` columns: those of ``start``, then Gaussian ones."""
    # A copy, because the last bits of products depend on the layout and memory alignment of the factors.
    columns = start[:, :count].clone(memory_format=torch.contiguous_format)
    if columns.shape[1] == count:
        return columns
    extra = _gaussian(len(start), count - columns.shape[1], 0).to(start.dtype) / math.sqrt(len(start))
    return torch.cat([columns, extra], 1)


def _squares(tensor: Tensor, dim: int = 1) -> Tensor:
    """Return sums of squares, in float64."""
    return torch.linalg.vector_norm(tensor, dim=dim, dtype=torch.float64).square()


def _gaussian(rows: int, count: int, seed: int) -> Tensor:
    """Return normal values (rows, count) float32 that depend on ``seed`` only: they are the same in every run."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, count), np.float32))


def _ritz(w: Tensor, basis: Tensor) -> _Ritz:
    rows = basis.T @ w
    rotation = torch.linalg.eigh(rows @ rows.T)[1].flip(1)
    right = rotation.T @ rows
    return _Ritz(basis @ rotation, right, _squares(right))


def _powered(w: Tensor, block: Tensor, ritz: _Ritz | None, energy: float) -> Tensor:
    """Return an orthonormal basis of (A − c·I)·block, with c near the middle of the eigenvalues beyond the block."""
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
    if not within(upper):  # the final μ is about this large, never smaller
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
    """Return the bound on d: the least of (1) and of (2) for all c. ``residuals`` are cumulative sums of ‖R‖², ``largest`` is μ."""
    room = float(values[rank - 1]) - largest
    if room <= 0:
        return math.inf
    inner, rest = residuals[rank - 1 : -1], residuals[-1] - residuals[rank - 1 : -1]
    ratio = room * (values[rank - 1] - values[rank:]) / rest.clamp_min(1e-300)  # 1 + 1/t
    bounds = torch.where(ratio > 1, inner * ratio / (ratio - 1), residuals[-1])
    return min(float(bounds.min()), float(residuals[-1])) / room
