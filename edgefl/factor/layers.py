"""Layers of rank r: two small layers in place of a convolution or linear layer, with the same input and output shapes."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.svd import roll
from edgefl.util.convolutions import Convolution, convolution_for


class LowRank(nn.Module):
    """A layer of two smaller ones, u and v, run in their order of definition. Its weight is the product of their weights."""

    u: Any
    v: Any

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), like the dense layer."""
        for layer in self._modules.values():
            x = layer(x)  # type: ignore[misc]  # neither is None
        return x

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return views of the parameters: U (a × r) and Vᵀ (r × b) of the unrolled weight (a × b)."""
        return unrolled_factors(self.u.weight, self.v.weight)


class LowRankConv(LowRank):
    """A convolution k₁×1 from m to r channels, then 1×k₂ from r to n with the bias (FedHM, section 2.2).

    Over signals k₂ is 1; over volumes it is k₂×k₃. Each pads along its own axes.

    Raises:
        ConfigError: ``dense`` has groups.
    """

    def __init__(self, dense: Convolution, rank: int) -> None:
        super().__init__()
        if dense.groups != 1:
            raise ConfigError(f"only convolutions of one group have low-rank factors, got {dense}")
        of_both = {"padding_mode": dense.padding_mode, "device": dense.weight.device}
        kind, place = convolution_for(dense.weight), (dense.kernel_size, dense.stride, dense.dilation)
        # One size per axis: the first axis is of the first kernel, the others are of the second.
        kernel, stride, dilation = ((sizes[:1], sizes[1:]) for sizes in place)
        rest = (1,) * len(kernel[1])
        paddings: Any = dense.padding, dense.padding  # a word, such as "same", says the same of both
        if not isinstance(dense.padding, str):
            paddings = (*dense.padding[:1], *(0 for _ in rest)), (0, *dense.padding[1:])
        # A second kernel of one position skips nothing: the whole stride goes to the first, which has fewer positions then.
        strides = (dense.stride, 1) if strides_first(dense) else (stride[0] + rest, (1, *stride[1]))
        first = kernel[0] + rest, strides[0], paddings[0], dilation[0] + rest
        second = (1, *kernel[1]), strides[1], paddings[1], (1, *dilation[1])
        self.u = kind(dense.in_channels, rank, *first, bias=False, **of_both)
        self.v = kind(rank, dense.out_channels, *second, bias=dense.bias is not None, **of_both)


def strides_first(dense: Convolution) -> bool:
    """Return whether the first factor of ``dense`` computes only positions of the output: if the second kernel has one position."""
    return math.prod(dense.kernel_size[1:]) == 1 and (isinstance(dense.padding, str) or not any(dense.padding[1:]))


class LowRankLinear(LowRank):
    """A linear layer x·U·Vᵀ + b of rank r, with U (m × r) and V (n × r)."""

    def __init__(self, dense: nn.Linear, rank: int) -> None:
        super().__init__()
        device = dense.weight.device
        self.u = nn.Linear(dense.in_features, rank, bias=False, device=device)
        self.v = nn.Linear(rank, dense.out_features, bias=dense.bias is not None, device=device)


def low_rank(dense: Convolution | nn.Linear, rank: int) -> LowRankConv | LowRankLinear:
    """Return the layer of ``rank`` that replaces ``dense``, with arbitrary factors.

    Raises:
        ConfigError: as :class:`LowRankConv`.

    >>> layer = low_rank(nn.Conv2d(4, 8, 3, padding=1), 2)
    >>> tuple(layer.u.weight.shape), tuple(layer.v.weight.shape), tuple(layer(torch.zeros(1, 4, 5, 5)).shape)
    ((2, 4, 3, 1), (8, 2, 1, 3), (1, 8, 5, 5))
    """
    return LowRankLinear(dense, rank) if isinstance(dense, nn.Linear) else LowRankConv(dense, rank)


def parameters_of_rank(dense: Convolution | nn.Linear, rank: int) -> int:
    """Return the number of weights, without biases, in the factors of ``dense`` at ``rank``: r(m·k₁ + n·k₂).

    >>> parameters_of_rank(nn.Conv2d(4, 8, 3), 2), parameters_of_rank(nn.Linear(4, 8), 2)
    (72, 24)
    """
    if isinstance(dense, nn.Linear):
        return rank * (dense.in_features + dense.out_features)
    k1, *k2 = dense.kernel_size
    return rank * (dense.in_channels * k1 + dense.out_channels * math.prod(k2))


def factor_weights(left: Tensor, right: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the weights of the two small layers, for factors ``left`` (a × r) and ``right`` (r × b) of an unrolled weight of ``shape``.

    >>> u, v = factor_weights(torch.ones(12, 2), torch.ones(2, 24), (8, 4, 3, 3))
    >>> tuple(u.shape), tuple(v.shape), tuple(composed_weight(u, v).shape)
    ((2, 4, 3, 1), (8, 2, 1, 3), (8, 4, 3, 3))
    """
    copied = partial(torch.clone, memory_format=torch.contiguous_format)  # not a view of factors of a larger rank
    if len(shape) == 2:
        return copied(left.T), copied(right.T)
    n, m, k1, *k2 = shape
    rank = left.shape[1]
    return copied(left.T.reshape(rank, m, k1, *(1 for _ in k2))), copied(right.reshape(rank, n, 1, *k2).transpose(0, 1))


def unrolled_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return views of the two small layers' weights: U (a × r) and Vᵀ (r × b) of the unrolled weight."""
    return (u.T, v.T) if u.dim() == 2 else (u.flatten(1).T, v.transpose(0, 1).flatten(1))


def composed_weight(u: Tensor, v: Tensor) -> Tensor:
    """Return the dense weight (n, m, k₁, …) or (n, m) from the two small layers' weights (FedHM, Eq. 1).

    >>> composed_weight(torch.ones(2, 3, 3, 1), torch.ones(5, 2, 1, 3)).shape
    torch.Size([5, 3, 3, 3])
    """
    left, right = unrolled_factors(u, v)
    shape = (v.shape[0], *u.shape[1:3], *v.shape[3:])
    return roll(left @ right, shape)


def low_rank_layers(network: nn.Module) -> list[LowRank]:
    """Return the modules of ``network`` that have a pair of factors u and v."""
    return [layer for layer in network.modules() if isinstance(layer, LowRank)]


def all_but_factors(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``network`` except the factors u and v: biases, and those of dense layers."""
    pairs = [factor for layer in low_rank_layers(network) for factor in (layer.u, layer.v)]
    factors = {factor if isinstance(factor, nn.Parameter) else factor.weight for factor in pairs}
    return [p for p in network.parameters() if p not in factors]


class SquaredNorm(torch.autograd.Function):
    """‖LR‖²_F = ⟨LᵀL, RRᵀ⟩ of factors L (a × r) and R (r × b), a scalar; also the two Gram matrices (r × r).

    The derivatives are 2L(RRᵀ) and 2(LᵀL)R, one product each. Autograd alone needs two, because it does not use the symmetry.
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
    """Return ‖UVᵀ‖²_F of the unrolled weight (a × b), a scalar.

    It costs r²(a + b) MACs instead of the product's r·a·b, and as many again for its derivatives.

    >>> layer = low_rank(nn.Linear(3, 2), 1)
    >>> bool(torch.isclose(frobenius_sq(layer), composed_weight(layer.u.weight, layer.v.weight).square().sum()))
    True
    """
    norm: Tensor = SquaredNorm.apply(*layer.factors())[0]  # type: ignore[no-untyped-call]
    return norm
