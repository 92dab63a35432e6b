"""Bands of ranks: how the energy of a matrix, and changes of it, divide between consecutive ranks of its decomposition.

Let W = Σ σᵢuᵢvᵢᵀ, and r₁ < … < r_T the ranks of the tiers. Band 1 has the ranks up to r₁, band b those from r_{b−1} to r_b. The last band
has all others.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from edgefl.factor.svd import Factors

# Directions with a smaller share of the largest singular value are rounding errors: a client that receives them cannot train them.
_NOTHING = 1e-6


def band_energies(matrix: Tensor, values: Tensor, ranks: Sequence[int]) -> list[float]:
    """Return the energy of each band of ``matrix`` (a × b), the last one beyond all ``ranks``. They add up to ‖W‖²_F.

    ``values`` are the singular values, largest first, and at least as many as the largest of the ``ranks`` below min(a, b). ``ranks``
    ascend; equal ranks give empty bands.

    >>> band_energies(torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.tensor([3.0, 2.0]), [1, 2])
    [9.0, 4.0, 1.0]
    """
    whole = float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2
    full = min(matrix.shape)
    up_to = [whole if rank >= full else min(float(values[:rank].double().square().sum()), whole) for rank in ranks]
    return [after - before for before, after in zip([0.0, *up_to], [*up_to, whole], strict=True)]


def banded(changes: Mapping[int, tuple[Tensor, float]], factors: Callable[[], Factors]) -> Tensor:
    """Return the mean of clients' changes of W, each band averaged over the clients that hold it, (a, b) float64.

    A client of rank r receives W's truncation at r. Let Q and R be the r leading left and right singular vectors of W, and
    Eᵣ(Δ) = (I − QQᵀ)Δ(I − RRᵀ), so E₀(Δ) = Δ. To first order, training changes the truncation only by Δ with Eᵣ(Δ) = 0: these are the
    tangent space of the matrices of rank r. Band b of a change Δ is E_{r_{b−1}}(Δ) − E_{r_b}(Δ), with r₀ = 0. A client's last band has the
    rest of its change. Let D_b and S_b be Σ wΔ and Σ w over all clients that hold band b. Then the mean is ::

        D₁/S₁ + Σ_b (1/S_{b+1} − 1/S_b) · E_{r_b}(D_{b+1})

    It costs 4·a·b·r_b MACs for each rank except the largest, for any number of clients.

    Args:
        changes: rank → (Σ wΔ over the clients of this rank (a, b), Σ w > 0); the rank of clients with the whole matrix is min(a, b).
        factors: returns the decomposition of W, at least up to the second largest rank. It is called only if there are several ranks.

    >>> from edgefl.factor.svd import factorize
    >>> factors = factorize(torch.diag(torch.tensor([2.0, 1.0])), 1)
    >>> banded({2: (torch.ones(2, 2), 1.0), 1: (torch.zeros(2, 2), 1.0)}, lambda: factors).tolist()
    [[0.5, 0.5], [0.5, 1.0]]
    """
    ranks = sorted(changes, reverse=True)
    total, weight = changes[ranks[0]]
    if len(ranks) == 1:
        return total.double() / weight
    mean, bases = torch.zeros_like(total, dtype=torch.float64), _bases(factors())
    for rank in ranks[1:]:
        more, of_more = changes[rank]
        mean += (1 / weight - 1 / (weight + of_more)) * _beyond(total.double(), *(basis[:, :rank] for basis in bases))
        total, weight = total + more, weight + of_more
    return mean + total.double() / weight


def _bases(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return bases in float64: their first r columns span W's first r left and right singular vectors; none without energy."""
    values = factors.values[: factors.left.shape[1]]
    count = int((values > _NOTHING * values[0]).sum())
    left, right = torch.linalg.qr(factors.left[:, :count].double())[0], torch.linalg.qr(factors.right[:count].T.double())[0]
    return left, right


def _beyond(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return (I − QQᵀ) M (I − RRᵀ) for ``left`` Q and ``right`` R, orthonormal columns."""
    outside = matrix - left @ (left.T @ matrix)
    return outside - (outside @ right) @ right.T
