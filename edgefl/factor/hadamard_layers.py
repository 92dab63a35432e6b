"""Layers that compose their weights from factors in every forward pass, and the modules that compose one weight."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor import hadamard
from edgefl.factor.hadamard import Init, Shape
from edgefl.util.convolutions import Convolution, convolved, take_place

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


class HadamardWeight(nn.Module):
    """Composes W = W₁ ⊙ W₂, or with ``plus_one`` W = W₁ ⊙ (W₂ + 1) (pFedPara). A call returns W.

    The parameters are the factors x1 (n, R), y1 (m, R) and, for kernels larger than 1×1, t1 (R, R, k₁, k₂) of W₁; x2, y2 and t2 of W₂.

    Attributes:
        shape: the shape of W, (n, m) or (n, m, k₁, k₂).
        rank: R.
        tanh: whether tanh is applied to W₁ and W₂ before the product.
        plus_one: whether 1 is added to W₂.
        given: a composed W that calls return, without composing again; None: calls compose.
    """

    given: Tensor | None

    def __init__(self, shape: Shape, rank: int, tanh: bool = False, plus_one: bool = False, init: Init = "he") -> None:
        super().__init__()
        self.shape, self.rank, self.tanh, self.plus_one = tuple(shape), rank, tanh, plus_one
        self.given = None
        for which, stds in enumerate(hadamard.inner_stds(self.shape, rank, init, plus_one), 1):
            for name, size in hadamard.factor_shapes(self.shape, rank).items():
                self.register_parameter(f"{name}{which}", nn.Parameter(hadamard.draw(size, stds[name])))

    def forward(self) -> Tensor:
        """Return W (n, m) or (n, m, k₁, k₂)."""
        if self.given is not None:
            return self.given
        factors = list(self.parameters())
        if self.tanh or torch.compiler.is_exporting():  # an exported graph has plain operators only
            return self.compose(factors)
        half = len(factors) // 2
        first, second = ((part[0], hadamard.inner_half(*part[1:])) for part in (factors[:half], factors[half:]))
        weight: Tensor = hadamard.HadamardProduct.apply(*first, *second, self.plus_one)  # type: ignore[no-untyped-call]
        return weight.view(self.shape)

    def compose(self, factors: Sequence[Tensor]) -> Tensor:
        """Return W of ``factors``, in the order of ``parameters()``, by plain operators. Autograd stores both inner weights."""
        half = len(factors) // 2
        first, second = (hadamard.inner_weight(*part) for part in (factors[:half], factors[half:]))
        if self.tanh:
            first, second = first.tanh(), second.tanh()
        # W₁ ⊙ (W₂ + 1) as W₁ ⊙ W₂ + W₁: the sum W₂ + 1 is never in memory.
        weight = first.addcmul(first, second) if self.plus_one else first * second
        return weight.view(self.shape)

    def extra_repr(self) -> str:
        """Return what ``print(network)`` shows."""
        return f"shape={self.shape}, rank={self.rank}"


class ProductWeight(nn.Module):
    """Composes W = X Yᵀ of rank r from x (n, r) and y (m, r), for recurrent weights, which two layers cannot replace. A call returns W."""

    def __init__(self, shape: Shape, rank: int) -> None:
        super().__init__()
        stds = hadamard.factor_stds(shape, (rank, rank), hadamard.he_variance(shape))
        self.x = nn.Parameter(hadamard.draw((shape[0], rank), stds["x"]))
        self.y = nn.Parameter(hadamard.draw((shape[1], rank), stds["y"]))

    def forward(self) -> Tensor:
        """Return W (n, m)."""
        return hadamard.inner_weight(self.x, self.y)


class ComposedConv(nn.Module):
    """A convolution whose weight the module ``weight`` composes in every pass."""

    def __init__(self, dense: Convolution, weight: nn.Module) -> None:
        super().__init__()
        self.weight = weight
        take_place(self, dense)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), like the dense layer."""
        return convolved(self, x)


class ComposedLinear(nn.Module):
    """A linear layer whose weight the module ``weight`` composes in every pass."""

    def __init__(self, dense: nn.Linear, weight: nn.Module) -> None:
        super().__init__()
        self.weight = weight
        self.bias = dense.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, …, m) to (batch, …, n)."""
        return F.linear(x, self.weight(), self.bias)


class ComposedRecurrent(nn.Module):
    """An ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` that composes some of its weights (gates·H, inputs), once per pass over the sequence.

    Attributes:
        names: the names of all weights and biases. Each is a parameter of this module, or a module that composes a weight.
        cell: the dense layer. It has its weights and biases only during a pass.
    """

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
        """Return the outputs of the dense layer with the composed weights, for a sequence and an initial state."""
        cell = self.cell[0].train(self.training)
        try:
            for name in self.names:
                part = getattr(self, name)
                # view_as: the cell would register a Parameter as its own.
                setattr(cell, name, part() if isinstance(part, nn.Module) else part.view_as(part))
            return cell(x, state)
        finally:
            for name in self.names:
                setattr(cell, name, None)  # frees the composed weights after the pass


def composed(dense: nn.Module, weights: Mapping[str, nn.Module]) -> nn.Module:
    """Return the layer that replaces ``dense``; ``weights``: name → module that composes it. ConfigError for another kind of layer."""
    if isinstance(dense, Convolution):
        return ComposedConv(dense, weights["weight"])
    if isinstance(dense, nn.Linear):
        return ComposedLinear(dense, weights["weight"])
    if isinstance(dense, RECURRENT):
        return ComposedRecurrent(dense, weights)
    raise ConfigError(f"expected a convolution, a linear or a recurrent layer, got {type(dense).__name__}")


def composed_weights(network: nn.Module, kind: type[nn.Module]) -> dict[str, nn.Module]:
    """Return name of a weight in the dense network → module of ``kind`` that composes it."""
    return {name: module for name, module in network.named_modules() if isinstance(module, kind)}
