"""Tucker-2: the weight of a convolution as a small core between two matrices, W = T ×₁ X ×₂ Y (Phan et al., ECCV 2020).

X is (n, R₁), Y is (m, R₂) and T is (R₁, R₂, k₁, k₂), with R₁ = min(R, n) and R₂ = min(R, m). ×₁ and ×₂ multiply the first two dimensions of
T, as in :mod:`edgefl.factor.hadamard`. A matrix or a 1×1 kernel is X Yᵀ of rank R.
FedPara compares itself with this factorization.
"""

from bisect import bisect_right
from functools import partial

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard import Shape, draw, factor_stds, he_variance, positions
from edgefl.factor.layers import low_rank
from edgefl.util.convolutions import Convolution, convolution_for


def ranks(shape: Shape, rank: int) -> tuple[int, int]:
    """Return (R₁, R₂) of a weight (n, m, …) at ``rank``.

    >>> ranks((64, 3, 3, 3), 10), ranks((64, 3), 10)
    ((10, 3), (3, 3))
    """
    n, m = shape[:2]
    return (min(rank, n), min(rank, m)) if positions(shape) > 1 else (min(rank, n, m),) * 2


def parameters_of_rank(shape: Shape, rank: int) -> int:
    """Return the number of values in the factors of a weight of ``shape``: nR₁ + mR₂ + R₁R₂k₁k₂, or R(n + m).

    >>> parameters_of_rank((256, 256, 3, 3), 32), parameters_of_rank((256, 256), 32)  # Table 1: twice FedPara's R is 2R here
    (25600, 16384)
    """
    (n, m), q, (first, second) = shape[:2], positions(shape), ranks(shape, rank)
    return n * first + m * second + (first * second * q if q > 1 else 0)


def rank_within(shape: Shape, budget: int) -> int:
    """Return the largest rank with at most ``budget`` values in the factors; 0 if rank 1 has more.

    >>> rank_within((512, 512, 3, 3), 157_456)  # what FedPara holds at γ = 0.1
    87
    >>> rank_within((4, 4), 7)
    0
    """
    return bisect_right(range(1, max(shape[:2]) + 1), budget, key=partial(parameters_of_rank, shape))


def composed_weight(reduce: Tensor, core: Tensor, expand: Tensor) -> Tensor:
    """Return the dense weight (n, m, k₁, k₂) of ``reduce`` (R₂, m, 1, 1), ``core`` (R₁, R₂, k₁, k₂) and ``expand`` (n, R₁, 1, 1)."""
    return torch.einsum("na,ab...,bm->nm...", expand.flatten(1), core, reduce.flatten(1))


class TuckerConv(nn.Module):
    """Convolutions 1×1 from m to R₂ channels, k₁×k₂ to R₁, 1×1 to n with the bias; ConfigError for groups."""

    def __init__(self, dense: Convolution, rank: int) -> None:
        super().__init__()
        if dense.groups != 1:
            raise ConfigError(f"only convolutions of one group have Tucker factors, got {dense}")
        first, second = ranks(tuple(dense.weight.shape), rank)
        device = dense.weight.device
        kind = convolution_for(dense.weight)
        self.reduce = kind(dense.in_channels, second, 1, bias=False, device=device)
        place = dense.kernel_size, dense.stride, dense.padding, dense.dilation
        self.core = kind(second, first, *place, bias=False, padding_mode=dense.padding_mode, device=device)
        self.expand = kind(first, dense.out_channels, 1, bias=dense.bias is not None, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), like the dense layer."""
        return self.expand(self.core(self.reduce(x)))


def small_layers(dense: Convolution | nn.Linear, rank: int) -> nn.Module:
    """Return small layers of ``rank`` that replace ``dense``: three for a kernel above 1×1, else two. Their product has He's variance.

    >>> [tuple(weight.shape) for weight in small_layers(nn.Conv2d(8, 16, 3, bias=False), 4).parameters()]
    [(4, 8, 1, 1), (4, 4, 3, 3), (16, 4, 1, 1)]
    """
    shape = tuple(dense.weight.shape)
    stds = factor_stds(shape, ranks(shape, rank), he_variance(shape))
    layers = TuckerConv(dense, rank) if not isinstance(dense, nn.Linear) and positions(shape) > 1 else low_rank(dense, rank)
    first, last = (layers.reduce, layers.expand) if isinstance(layers, TuckerConv) else (layers.u, layers.v)
    core = [(layers.core, "t")] if isinstance(layers, TuckerConv) else []
    for layer, factor in ((first, "y"), (last, "x"), *core):
        layer.weight = nn.Parameter(draw(tuple(layer.weight.shape), stds[factor]))
    last.bias = dense.bias
    return layers
