"""Tucker-2: a convolution's weight as a small core between two matrices, W = T ×₁ X ×₂ Y (Phan et al., ECCV 2020, as FedPara's rival).

X is (n, R₁), Y is (m, R₂), T is (R₁, R₂, k₁, k₂); a matrix, or a kernel of one position, is X Yᵀ of rank R. One number R says both
ranks of a kernel, each at most its own dimension: R₁ = min(R, n), R₂ = min(R, m).
"""

from __future__ import annotations

from torch import Tensor

from edgefl.factor.hadamard import Shape, positions


def ranks(shape: Shape, rank: int) -> tuple[int, int]:
    """Return (R₁, R₂) at ``rank``.

    >>> ranks((64, 3, 3, 3), 10), ranks((64, 3), 10)
    ((10, 3), (3, 3))
    """
    n, m = shape[:2]
    return (min(rank, n), min(rank, m)) if positions(shape) > 1 else (min(rank, n, m),) * 2


def parameters_of_rank(shape: Shape, rank: int) -> int:
    """Return how many numbers the factors of a weight of ``shape`` hold: nR₁ + mR₂ + R₁R₂k₁k₂, or R(n + m).

    >>> parameters_of_rank((256, 256, 3, 3), 32), parameters_of_rank((256, 256), 32)  # Table 1: twice FedPara's R is 2R here
    (25600, 16384)
    """
    (n, m), q, (first, second) = shape[:2], positions(shape), ranks(shape, rank)
    return n * first + m * second + (first * second * q if q > 1 else 0)


def rank_within(shape: Shape, budget: int) -> int:
    """Return the largest rank whose factors hold at most ``budget`` numbers; 0 where rank 1 already holds more.

    >>> rank_within((512, 512, 3, 3), 157_456)  # what FedPara holds at γ = 0.1
    87
    >>> rank_within((4, 4), 7)
    0
    """
    low, high = 0, max(shape[:2])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if parameters_of_rank(shape, middle) <= budget else (low, middle - 1)
    return low


def composed_weight(reduce: Tensor, core: Tensor, expand: Tensor) -> Tensor:
    """Multiply the weights of the three small convolutions back to the dense one, (n, m, k₁, k₂).

    ``reduce`` is (R₂, m, 1, 1), ``core`` (R₁, R₂, k₁, k₂), ``expand`` (n, R₁, 1, 1).
    """
    q = positions(tuple(core.shape))
    half = core.reshape(*core.shape[:2], q).transpose(1, 2) @ reduce.flatten(1)  # (R₁, q, m)
    return (expand.flatten(1) @ half.transpose(1, 2).reshape(core.shape[0], -1)).view(
        expand.shape[0], reduce.shape[1], *core.shape[2:]
    )
