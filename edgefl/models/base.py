"""A network as methods see it: how to build it at a width, and which of its layers they leave unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgefl.errors import ConfigError
from edgefl.models.norm import POLICIES
from edgefl.registry import models


@dataclass(frozen=True)
class Architecture:
    """A reference network for one kind of input.

    Attributes:
        model: a registered name.
        input_shape: of one sample: ``(channels, height, width)``, or ``(length,)`` of a text.
        classes: number of labels.
        norm: a policy of :mod:`edgefl.models.norm`; ``None`` takes the model's own.

    >>> sum(p.numel() for p in Architecture("resnet18", (3, 32, 32), 10).build().parameters())
    11173962
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    norm: str | None = None

    def __post_init__(self) -> None:
        models.check(self.model)
        if self.norm is not None and self.norm not in POLICIES:
            raise ConfigError(f"norm: got {self.norm!r}, expected one of {', '.join(POLICIES)}")
        if min(self.input_shape, default=0) < 1 or self.classes < 1:
            raise ConfigError(f"model {self.model}: sizes must be positive, got input {self.input_shape}, classes {self.classes}")

    def build(self, width: float = 1.0) -> nn.Module:
        """Return the network with every hidden layer scaled to ``width``, freshly initialised; ConfigError for a wrong input shape."""
        options = {} if self.norm is None else {"norm": self.norm}
        network: nn.Module = models.load(self.model)(self.input_shape, self.classes, width=width, **options)
        return network

    def samples(self, count: int) -> Any:
        """Return a batch of ``count`` samples, (count, …): uninitialised float32, or token ids (all 0) for networks that take token ids."""
        if self.vocabulary:
            return torch.zeros(count, *self.input_shape, dtype=torch.int64)
        return torch.empty(count, *self.input_shape)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the network knows; 0 for networks with float32 inputs."""
        return int(models.facts(self.model).get("vocabulary", 0))

    def __str__(self) -> str:
        """Return a sample's shape as it is written."""
        return "x".join(map(str, self.input_shape))

    def skeleton(self, width: float = 1.0) -> nn.Module:
        """Return the network on the ``meta`` device: names and shapes without memory or random draws."""
        with torch.device("meta"), Unfilled():
            return self.build(width)


class Unfilled(TorchFunctionMode):
    """Skips the initialisation of weights: for networks whose weights are overwritten or never read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor unchanged instead of calling a function of ``torch.nn.init``, or one that such a function calls."""
        named = getattr(func, "__name__", "") in ("uniform_", "normal_", "trunc_normal_")
        if named or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def scaled(channels: int, width: float) -> int:
    """Return ⌈width · channels⌉, as HeteroFL rounds; exact decimals are not pushed up by binary rounding.

    >>> scaled(64, 0.25), scaled(10, 0.3), scaled(30, 0.1)
    (16, 3, 3)
    """
    return max(1, math.ceil(channels * width - 1e-9))


ImageShape = tuple[int, int, int]
"""Channels, height and width."""


def image_shape(model: str, input_shape: tuple[int, ...], least: int) -> ImageShape:
    """Check that ``input_shape`` is (channels, height, width) with both sides at least ``least`` pixels, and return it."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        shape = "x".join(map(str, input_shape))
        raise ConfigError(f"model {model} takes channels x height x width with sides of at least {least}, got {shape}")
    return input_shape


def window(model: str, input_shape: tuple[int, ...], norm: str) -> None:
    """Check that ``input_shape`` is one length of at least one token, and that ``norm`` is ``none``: recurrent networks have no other."""
    if len(input_shape) != 1:
        shape = "x".join(map(str, input_shape))
        raise ConfigError(f"model {model} takes a sequence of token ids, one length such as 80, got {shape}")
    if norm != "none":
        raise ConfigError(f"norm: model {model} has no feature maps to normalise, expected 'none', got {norm!r}")


def weighted_layers(network: nn.Module) -> Iterator[tuple[str, nn.Conv2d | nn.Linear]]:
    """Yield convolutions and linear layers by name, in the order of definition, without those of ``nn.MultiheadAttention``."""
    attention = tuple(f"{name}." for name, layer in network.named_modules() if isinstance(layer, nn.MultiheadAttention))
    for name, layer in network.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and not name.startswith(attention):
            yield name, layer


def stem_and_classifier(network: nn.Module) -> tuple[str | None, str]:
    """Return the names of the stem (the first layer, if it is a convolution) and of the classifier (the last layer)."""
    layers = list(weighted_layers(network))
    if not layers:
        raise ConfigError("the network has no convolution and no linear layer: there is nothing to factorize or scale")
    first, last = layers[0], layers[-1]
    return (first[0] if isinstance(first[1], nn.Conv2d) else None), last[0]


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer of ``network`` by its name, buffers that are not in ``state_dict`` too.

    >>> list(named_tensors(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def load(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into those of ``network`` like ``load_state_dict``, but faster; RuntimeError if names or shapes differ.

    >>> layer = nn.Linear(2, 1)
    >>> load(layer, {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.zeros(1)})
    >>> layer.weight.tolist()
    [[1.0, 2.0]]
    """
    own = network.state_dict()
    if own.keys() != tensors.keys() or any(tensor.shape != tensors[name].shape for name, tensor in own.items()):
        network.load_state_dict(tensors)  # raises a message with the difference
    elif own:
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [tensors[name] for name in own])


def replace_layer(network: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer ``name`` of ``network`` by ``layer``."""
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)
