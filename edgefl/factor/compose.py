"""Factorized layers → the plain layers of torch that compute the same. Each kind has one function, registered with :func:`composes`."""

import copy
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.basis import Composed
from edgefl.factor.hadamard_layers import ComposedConv, ComposedLinear, ComposedRecurrent
from edgefl.factor.kernels import KernelConv, KernelLinear
from edgefl.factor.layers import LowRankConv, LowRankLinear, composed_weight
from edgefl.factor.rank1 import RankOneConv, RankOneLinear
from edgefl.factor.tucker import TuckerConv
from edgefl.factor.tucker import composed_weight as tucker_weight
from edgefl.util.convolutions import Convolution, convolution_for

L = TypeVar("L", bound=nn.Module)
Which = Callable[[str, nn.Module], bool]
_TABLE: dict[type[nn.Module], Callable[[Any], nn.Module]] = {}


def composes(kind: type[L]) -> Callable[[Callable[[L], nn.Module]], Callable[[L], nn.Module]]:
    """Register the decorated function, which maps a layer of ``kind`` to a plain layer; ConfigError if ``kind`` has one already."""

    def register(make: Callable[[L], nn.Module]) -> Callable[[L], nn.Module]:
        if kind in _TABLE:
            raise ConfigError(f"{kind.__name__}: a function that composes it is registered already")
        _TABLE[kind] = make
        return make

    return register


def factorized_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Return name → layer of the layers of ``network`` that can be composed, in the order of definition.

    >>> layer = LowRankLinear(nn.Linear(6, 4), 2)
    >>> list(factorized_layers(nn.Sequential(nn.Flatten(), layer, nn.ReLU())))
    ['1']
    """
    return {name: layer for name, layer in network.named_modules() if type(layer) in _TABLE}


@torch.no_grad()
def plain_layer(layer: nn.Module) -> nn.Module:
    """Return the layer of torch that computes the same as the factorized ``layer``, in the same mode; ConfigError for another kind.

    >>> plain_layer(LowRankLinear(nn.Linear(6, 4), 2))
    Linear(in_features=6, out_features=4, bias=True)
    """
    if (make := _TABLE.get(type(layer))) is None:
        known = ", ".join(sorted(kind.__name__ for kind in _TABLE))
        raise ConfigError(f"{type(layer).__name__} is not a factorized layer that can be composed; known: {known}")
    plain = make(layer).train(layer.training)
    # The replacement has the hooks of the layer.
    plain._forward_hooks, plain._forward_pre_hooks = layer._forward_hooks.copy(), layer._forward_pre_hooks.copy()
    return plain


def composed_network(network: nn.Module, which: Which | None = None) -> nn.Module:
    """Return a copy of ``network`` with plain layers in place of all factorized ones, or of those with ``which(name, layer)`` true.

    >>> network = nn.Sequential(LowRankLinear(nn.Linear(6, 4), 2), LowRankLinear(nn.Linear(4, 3), 1))
    >>> [type(layer).__name__ for layer in composed_network(network, lambda name, layer: name == "1")]
    ['LowRankLinear', 'Linear']
    """
    layers = factorized_layers(network)
    chosen = {name: layer for name, layer in layers.items() if which is None or which(name, layer)}
    if any(layer is network for layer in chosen.values()):
        return plain_layer(network)
    # deepcopy takes the plain layers from its memo, and so never copies the factors.
    return copy.deepcopy(network, {id(layer): plain_layer(layer) for layer in chosen.values()})


def convolution(weight: Tensor, bias: Tensor | None, like: Any) -> nn.Module:
    """Return a convolution with ``weight`` (n, m/g, k₁, …) and the stride, padding, dilation and groups of ``like``."""
    groups = int(getattr(like, "groups", 1))
    plain: nn.Module = convolution_for(weight)(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), like.stride, like.padding, like.dilation,
        groups, bias is not None, getattr(like, "padding_mode", "zeros"), device="meta",
    )  # fmt: skip
    return _filled(plain, {"weight": weight, "bias": bias})


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with ``weight`` (n, m)."""
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return _filled(plain, {"weight": weight, "bias": bias})


def recurrent(cell: Any, weights: dict[str, Tensor]) -> nn.Module:
    """Return a recurrent layer of the kind and size of ``cell`` with these weights and biases."""
    options = {"nonlinearity": cell.nonlinearity} if isinstance(cell, nn.RNN) else {}
    plain = type(cell)(
        cell.input_size, cell.hidden_size, cell.num_layers, bias=cell.bias, batch_first=cell.batch_first, dropout=cell.dropout,
        bidirectional=cell.bidirectional, device="meta", **options,
    )  # fmt: skip
    return _filled(plain, weights)


def _filled(plain: L, values: Mapping[str, Tensor | None]) -> L:
    plain.load_state_dict({k: v.detach().clone().contiguous() for k, v in values.items() if v is not None}, assign=True)
    return plain


@composes(LowRankConv)
def _low_rank_convolution(layer: LowRankConv) -> nn.Module:
    u, v = layer.u, layer.v
    # Along each axis, one of the two does nothing: its stride and dilation are 1, and its padding is 0.
    stride, dilation = (
        tuple(map(math.prod, zip(getattr(u, key), getattr(v, key), strict=True))) for key in ("stride", "dilation")
    )
    padding = u.padding if isinstance(u.padding, str) else tuple(map(sum, zip(u.padding, v.padding, strict=True)))
    place = SimpleNamespace(stride=stride, dilation=dilation, padding=padding, padding_mode=u.padding_mode)
    return convolution(composed_weight(u.weight, v.weight), v.bias, place)


@composes(KernelConv)
def _kernel_convolution(layer: KernelConv) -> nn.Module:
    u, v = layer.factors()
    return convolution((u @ v).view(len(u), *layer.v.weight.shape[1:]), layer.u.bias, layer.v)


@composes(TuckerConv)
def _tucker(layer: TuckerConv) -> nn.Module:
    weight = tucker_weight(layer.reduce.weight, layer.core.weight, layer.expand.weight)
    return convolution(weight, layer.expand.bias, layer.core)


@composes(ComposedRecurrent)
def _composed_recurrent(layer: ComposedRecurrent) -> nn.Module:
    parts = {name: getattr(layer, name) for name in layer.names}
    return recurrent(layer.cell[0], {name: part() if isinstance(part, nn.Module) else part for name, part in parts.items()})


@composes(Composed)
def _of_a_basis(layer: Composed) -> nn.Module:
    weights = {**layer.weights(), **{name: getattr(layer, name) for name in layer.others}}
    skeleton = layer.skeleton[0]
    if isinstance(skeleton, nn.RNNBase):
        return recurrent(skeleton, weights)
    if isinstance(skeleton, Convolution):
        return convolution(weights["weight"], weights.get("bias"), skeleton)
    return linear(weights["weight"], weights.get("bias"))


_TABLE |= {
    LowRankLinear: lambda layer: linear(composed_weight(layer.u.weight, layer.v.weight), layer.v.bias),
    KernelLinear: lambda layer: linear(layer.u.weight @ layer.v.weight, layer.u.bias),
    **dict.fromkeys((ComposedConv, RankOneConv), lambda layer: convolution(layer.weight(), layer.bias, layer)),
    **dict.fromkeys((ComposedLinear, RankOneLinear), lambda layer: linear(layer.weight(), layer.bias)),
}
