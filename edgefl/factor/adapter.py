"""Adapters: a frozen layer with a trained pair of small layers beside it. The pair's output is added to the layer's."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from edgefl.factor.layers import LowRank, composed_weight, low_rank
from edgefl.util.convolutions import Convolution

PART = "adapter"
"""Name of the pair in its layer: the weights are ``LAYER.adapter.u.weight`` (A) and ``LAYER.adapter.v.weight`` (B)."""


def attach(layer: Convolution | nn.Linear, rank: int, scale: float) -> None:
    """Attach a pair of ``rank`` to ``layer``, which then returns W·x + ``scale``·B·A·x (LoRA, section 4.1).

    A has torch's initial values, and B is zero. The pair of a convolution is FedHM's: k×1 to ``rank`` channels, then 1×k. The layer has
    the same class as before, and its tensors have the same names.

    Raises:
        ConfigError: a convolution has groups.

    >>> layer = nn.Linear(3, 2)
    >>> attach(layer, 1, 2.0)
    >>> [(name, tuple(weight.shape)) for name, weight in layer.named_parameters() if name.startswith(PART)]
    [('adapter.u.weight', (1, 3)), ('adapter.v.weight', (2, 1))]
    """
    pair = low_rank(layer, rank)
    pair.v.bias = None
    nn.init.zeros_(pair.v.weight)
    layer.add_module(PART, pair)

    def changed(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        attached: LowRank | None = getattr(module, PART, None)
        if attached is None:  # merged into the layer
            return output
        # Scaled where it has the fewest values.
        inner = attached.u(inputs[0])
        return output + attached.v(inner if scale == 1 else inner * scale)

    layer.register_forward_hook(changed)
    pair.scale = scale  # type: ignore[assignment]


def adapted(network: nn.Module) -> Iterator[tuple[str, nn.Module, LowRank]]:
    """Yield name, layer and pair of the layers of ``network`` that have one."""
    for name, layer in network.named_modules():
        if isinstance(pair := getattr(layer, PART, None), LowRank):
            yield name, layer, pair


def merged(network: nn.Module) -> nn.Module:
    """Return a copy of ``network`` that computes the same without pairs: each product is added to its layer's weight.

    >>> layer = nn.Linear(3, 2)
    >>> attach(layer, 1, 2.0)
    >>> _ = nn.init.ones_(layer.adapter.v.weight)
    >>> torch.allclose(merged(layer)(torch.ones(1, 3)), layer(torch.ones(1, 3)))
    True
    """
    network = copy.deepcopy(network)
    for _, layer, pair in [*adapted(network)]:
        with torch.no_grad():
            layer.weight.add_(composed_weight(pair.u.weight, pair.v.weight), alpha=pair.scale)  # type: ignore[operator, arg-type]
        delattr(layer, PART)
    return network


def names_of(layer: str) -> tuple[str, str]:
    """Return the names of the weights (A, B) of a layer's pair."""
    return f"{layer}.{PART}.u.weight", f"{layer}.{PART}.v.weight"
