"""Modules made of trained factors. Each replaces a dense layer and has its input and output shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.svd import roll


class LowRank(nn.Module):
    """A layer of two smaller ones, u and v, whose weight is the product of their factors. They run in the order of definition."""

    u: Any
    v: Any

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), as the dense layer does."""
        for layer in self._modules.values():
            x = layer(x)  # type: ignore[misc]  # neither is None
        return x

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return U (a × r) and Vᵀ (r × b) of the unrolled weight, views of the parameters."""
        return unrolled_factors(self.u.weight, self.v.weight)


class LowRankConv2d(LowRank):
    """A k₁×k₂ convolution of rank r: k₁×1 from m to r channels, then 1×k₂ from r to n with the bias (FedHM, section 2.2)."""

    def __init__(self, dense: nn.Conv2d, rank: int) -> None:
        super().__init__()
        if dense.groups != 1 or isinstance(dense.padding, str) or dense.padding_mode != "zeros":
            raise ConfigError(f"only plain convolutions can be factorized, got {dense}")
        (k1, k2), (s1, s2), (p1, p2), (d1, d2) = dense.kernel_size, dense.stride, dense.padding, dense.dilation
        device = dense.weight.device
        self.u = nn.Conv2d(dense.in_channels, rank, (k1, 1), (s1, 1), (p1, 0), (d1, 1), bias=False, device=device)
        bias = dense.bias is not None
        self.v = nn.Conv2d(rank, dense.out_channels, (1, k2), (1, s2), (0, p2), (1, d2), bias=bias, device=device)


class LowRankLinear(LowRank):
    """A linear layer of rank r: x·U·Vᵀ + b."""

    def __init__(self, dense: nn.Linear, rank: int) -> None:
        super().__init__()
        device = dense.weight.device
        self.u = nn.Linear(dense.in_features, rank, bias=False, device=device)
        self.v = nn.Linear(rank, dense.out_features, bias=dense.bias is not None, device=device)


def low_rank(dense: nn.Conv2d | nn.Linear, rank: int) -> LowRankConv2d | LowRankLinear:
    """Return the factorized layer that replaces ``dense``, with arbitrary factors."""
    return LowRankConv2d(dense, rank) if isinstance(dense, nn.Conv2d) else LowRankLinear(dense, rank)


def parameters_of_rank(dense: nn.Conv2d | nn.Linear, rank: int) -> int:
    """Return how many weights (biases aside) ``dense`` has when factorized at ``rank``: r(m·k₁ + n·k₂)."""
    if isinstance(dense, nn.Linear):
        return rank * (dense.in_features + dense.out_features)
    k1, k2 = dense.kernel_size
    return rank * (dense.in_channels * k1 + dense.out_channels * k2)


def factor_weights(left: Tensor, right: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return factors (a × r, r × b) of an unrolled weight of ``shape`` as the weights of the two small layers."""
    if len(shape) == 2:
        return left.T.contiguous(), right.T.contiguous()
    n, m, k1, k2 = shape
    rank = left.shape[1]
    return left.T.reshape(rank, m, k1, 1).contiguous(), right.reshape(rank, n, 1, k2).transpose(0, 1).contiguous()


def unrolled_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return U (a × r) and Vᵀ (r × b) of the unrolled weight, views of the two small layers' weights."""
    return (u.T, v.T) if u.dim() == 2 else (u.flatten(1).T, v.transpose(0, 1).flatten(1))


def composed_weight(u: Tensor, v: Tensor) -> Tensor:
    """Multiply the two small layers' weights back to the dense weight (FedHM, Eq. 1).

    >>> composed_weight(torch.ones(2, 3, 3, 1), torch.ones(5, 2, 1, 3)).shape
    torch.Size([5, 3, 3, 3])
    """
    left, right = unrolled_factors(u, v)
    shape = (v.shape[0], u.shape[1]) if u.dim() == 2 else (v.shape[0], u.shape[1], u.shape[2], v.shape[3])
    return roll(left @ right, shape)


class SquaredNorm(torch.autograd.Function):
    """‖LR‖²_F of factors L (a × r) and R (r × b), as ⟨LᵀL, RRᵀ⟩: a scalar, and the two Gram matrices (r × r).

    The derivatives are 2L(RRᵀ) and 2(LᵀL)R, one product each. Autograd does not know that a Gram matrix is symmetric and needs two.
    """

    generate_vmap_rule = True  # several clients' layers at once

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the squared norm and the Gram matrices of L's columns and R's rows."""
        columns, rows = left.t() @ left, right @ right.t()
        return torch.sum(columns * rows), columns, rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Save the factors and their Gram matrices."""
        _, columns, rows = output
        ctx.mark_non_differentiable(columns, rows)
        ctx.save_for_backward(*inputs, columns, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives by the factors."""
        left, right, columns, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative will be differentiated again
            columns, rows = left.t() @ left, right @ right.t()
        by_left, by_right = rows * (2 * gradient), columns * (2 * gradient)
        # In the layout of the factors, which are mostly views of transposed weights.
        return (by_left.t() @ left.t()).t(), by_right @ right if right.is_contiguous() else (right.t() @ by_right.t()).t()


def frobenius_sq(layer: LowRank) -> Tensor:
    """Return ‖UVᵀ‖²_F: r²(a + b) multiplications instead of the r·a·b of the product itself, and as many again for its derivatives."""
    norm: Tensor = SquaredNorm.apply(*layer.factors())[0]  # type: ignore[no-untyped-call]
    return norm
