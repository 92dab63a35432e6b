"""Layers whose weights are composed from factors in every forward pass. Each replaces a dense layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard import (
    HadamardProduct,
    Shape,
    draw,
    factor_shapes,
    factor_stds,
    he_variance,
    inner_half,
    inner_variances,
    inner_weight,
)

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


class HadamardWeight(nn.Module):
    """W₁ ⊙ W₂ or, with ``plus_one``, W₁ ⊙ (W₂ + 1) (pFedPara), of factors x1, y1 (t1), x2, y2 (t2); calling it returns W of ``shape``.

    While ``given``, a weight that was composed before, is set, a call returns that and composes nothing.
    """

    given: Tensor | None

    def __init__(self, shape: Shape, rank: int, tanh: bool = False, plus_one: bool = False) -> None:
        super().__init__()
        self.shape, self.rank, self.tanh, self.plus_one = tuple(shape), rank, tanh, plus_one
        self.given = None
        for which, variance in enumerate(inner_variances(self.shape, plus_one), 1):
            stds = factor_stds(self.shape, (rank, rank), variance)
            for name, size in factor_shapes(self.shape, rank).items():
                self.register_parameter(f"{name}{which}", nn.Parameter(draw(size, stds[name])))

    def forward(self) -> Tensor:
        """Return W (n, m) or (n, m, k₁, k₂)."""
        if self.given is not None:
            return self.given
        factors = list(self.parameters())
        if self.tanh or torch.compiler.is_exporting():  # a graph is made of plain operators
            return self.compose(factors)
        half = len(factors) // 2
        first, second = ((part[0], inner_half(*part[1:])) for part in (factors[:half], factors[half:]))
        weight: Tensor = HadamardProduct.apply(*first, *second, self.plus_one)  # type: ignore[no-untyped-call]
        return weight.view(self.shape)

    def compose(self, factors: Sequence[Tensor]) -> Tensor:
        """Return W of other factors, in the order of ``parameters()``, by plain operators: the inner weights are held as W is."""
        half = len(factors) // 2
        first, second = (inner_weight(*part) for part in (factors[:half], factors[half:]))
        if self.tanh:
            first, second = first.tanh(), second.tanh()
        # W₁ ⊙ (W₂ + 1) as W₁ ⊙ W₂ + W₁: the sum is never held.
        weight = first.addcmul(first, second) if self.plus_one else first * second
        return weight.view(self.shape)

    def extra_repr(self) -> str:
        """Return what ``print(network)`` shows."""
        return f"shape={self.shape}, rank={self.rank}"


class ProductWeight(nn.Module):
    """X Yᵀ of rank r with r(n + m) numbers, for weights that two layers cannot replace; calling it returns it, (n, m)."""

    def __init__(self, shape: Shape, rank: int) -> None:
        super().__init__()
        stds = factor_stds(shape, (rank, rank), he_variance(shape))
        self.x = nn.Parameter(draw((shape[0], rank), stds["x"]))
        self.y = nn.Parameter(draw((shape[1], rank), stds["y"]))

    def forward(self) -> Tensor:
        """Return the product."""
        return inner_weight(self.x, self.y)


class ComposedConv2d(nn.Module):
    """A convolution, zero-padded, whose weight is composed in every pass."""

    def __init__(self, dense: nn.Conv2d, weight: nn.Module) -> None:
        super().__init__()
        if dense.padding_mode != "zeros":
            raise ConfigError(f"only convolutions that pad with zeros can be composed, got {dense}")
        self.weight = weight
        self.bias = dense.bias
        self.stride, self.padding, self.dilation, self.groups = dense.stride, dense.padding, dense.dilation, dense.groups

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, h, w) to (batch, n, h', w')."""
        return F.conv2d(x, self.weight(), self.bias, self.stride, self.padding, self.dilation, self.groups)


class ComposedLinear(nn.Module):
    """A linear layer whose weight is composed in every pass."""

    def __init__(self, dense: nn.Linear, weight: nn.Module) -> None:
        super().__init__()
        self.weight = weight
        self.bias = dense.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, …, m) to (batch, …, n)."""
        return F.linear(x, self.weight(), self.bias)


class ComposedRecurrent(nn.Module):
    """An ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``, some of whose weights (gates·H, inputs) are composed once per pass over the sequence."""

    def __init__(self, dense: nn.RNNBase, weights: Mapping[str, nn.Module]) -> None:
        super().__init__()
        names = [name for name, _ in dense.named_parameters()]
        for name in names:
            if name in weights:
                self.add_module(name, weights[name])
            else:
                self.register_parameter(name, getattr(dense, name))
            delattr(dense, name)
        self.names = tuple(names)
        self.cell = (dense,)  # in a tuple, so that its parameters are not this module's

    def forward(self, x: Any, state: Any = None) -> Any:
        """Compute what the dense layer computes for a sequence and an initial state."""
        cell = self.cell[0].train(self.training)
        try:
            for name in self.names:
                own = getattr(self, name)
                # A bias is put there as a plain tensor, or the cell would count it among its own parameters.
                setattr(cell, name, own() if isinstance(own, nn.Module) else own.view_as(own))
            return cell(x, state)
        finally:
            for name in self.names:
                setattr(cell, name, None)  # a composed weight lives as long as its pass


def composed(dense: nn.Module, weights: Mapping[str, nn.Module]) -> nn.Module:
    """Return the layer that replaces ``dense``; ``weights`` maps a weight's name to the module that composes it."""
    if isinstance(dense, nn.Conv2d):
        return ComposedConv2d(dense, weights["weight"])
    if isinstance(dense, nn.Linear):
        return ComposedLinear(dense, weights["weight"])
    if isinstance(dense, RECURRENT):
        return ComposedRecurrent(dense, weights)
    raise ConfigError(f"expected a convolution, a linear or a recurrent layer, got {type(dense).__name__}")


def composed_weights(network: nn.Module, kind: type[nn.Module]) -> dict[str, nn.Module]:
    """Return the modules of ``kind`` by the name that their weight has in the dense network."""
    return {name: module for name, module in network.named_modules() if isinstance(module, kind)}
