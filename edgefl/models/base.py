"""A network as methods see it: how to build it at a width, its layers, and how to load tensors."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from edgefl.errors import ConfigError
from edgefl.models.cuts import Cuts, cuts_of
from edgefl.models.input_spec import InputSpec
from edgefl.models.norm import POLICIES
from edgefl.models.ties import named_fully, named_once, second_names, tied
from edgefl.models.valueless import has_values, on_meta
from edgefl.models.weights import WeightsFile, opened_tensors
from edgefl.registry import models
from edgefl.util.convolutions import Convolution
from edgefl.util.fields import Fields

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Architecture:
    """A reference network for one kind of input; ConfigError for an unknown policy or a size below 1, UnknownNameError for a model.

    Attributes:
        model: a registered name.
        input_shape: the shape of one sample: (channels, height, width) of an image, (length,) of a text.
        classes: the number of labels.
        norm: a policy of :mod:`edgefl.models.norm`; None takes the model's own.
        weights: file with the initial weights of the network of width 1; None: random ones.

    >>> sum(p.numel() for p in Architecture("resnet18", (3, 32, 32), 10).build().parameters())
    11173962
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    norm: str | None = None
    weights: WeightsFile | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        models.check(self.model)
        if self.norm is not None and self.norm not in POLICIES:
            raise ConfigError(f"norm: got {self.norm!r}, expected one of {', '.join(POLICIES)}")
        if min(self.input_shape, default=0) < 1 or self.classes < 1:
            raise ConfigError(f"model {self.model}: sizes must be positive, got input {self.input_shape}, classes {self.classes}")

    def build(self, width: float = 1.0) -> nn.Module:
        """Return a freshly initialised network, hidden layers scaled to ``width`` in (0, 1]; ConfigError for a wrong input shape."""
        options = {} if self.norm is None else {"norm": self.norm}
        network = named_once(models.load(self.model)(self.input_shape, self.classes, width=width, **options))
        return self.weighted(network) if width == 1.0 else network

    def at(self, width: float) -> "Architecture":
        """Return the architecture whose network :meth:`build` returns at ``width``: this one, unless tiers have different networks."""
        return self

    @property
    def every(self) -> tuple["Architecture", ...]:
        """All networks: this one, unless tiers have different networks."""
        return (self,)

    def weighted(self, network: nn.Module) -> nn.Module:
        """Return the network of width 1 with its initial weights, unless its tensors have no values; WireError: the file has changed."""
        if self.weights is not None and has_values():
            tensors, second = network.state_dict(), second_names(network)
            for name, tensor in opened_tensors(self.weights.tensors(), tensors).items():
                tensors[second.get(name, name)].copy_(tensor)
        return network

    def bare(self, network: nn.Module) -> nn.Module:
        """Return a network, a tier's for example, as its author knows it: without what runs add to it."""
        return named_fully(network)

    def samples(self, count: int) -> Any:
        """Return a batch of ``count`` samples, (count, …): uninitialised float32, or zeros int64 if the network takes token ids."""
        if self.vocabulary:
            return torch.zeros(count, *self.input_shape, dtype=torch.int64)
        return torch.empty(count, *self.input_shape)

    @property
    def vocabulary(self) -> int:
        """The number of different token ids; 0 for networks with float32 inputs."""
        return int(models.facts(self.model).get("vocabulary", 0))

    @property
    def below(self) -> Fields[int]:
        """A number that ids among a sample's inputs are below; 0 for real numbers, and where it is not known."""
        return self.vocabulary

    @property
    def specs(self) -> Fields[InputSpec]:
        """The inputs of a sample."""
        return InputSpec(self.input_shape, below=self.vocabulary)

    @property
    def labels(self) -> int:
        """How many labels a sample has: one, or one for each token if the network predicts every next token."""
        return self.input_shape[0] if models.facts(self.model).get("per_token") else 1

    def __str__(self) -> str:
        """Return the shape of a sample, such as 3x32x32."""
        return "x".join(map(str, self.input_shape))

    def entries(self, name: str, width: float, within: float = 1.0) -> tuple[Tensor, ...] | None:
        """Return which entries of a tensor the network of ``width`` has, among those of the network of width ``within``.

        One vector of int64 numbers for each dimension, ascending; None: the leading ones, by block where a tensor stacks gates.
        """
        return None

    def described(self) -> dict[str, Any]:
        """Return what checkpoints say about the network, as JSON has it."""
        return {"model": self.model, "input_shape": list(self.input_shape), "classes": self.classes, "norm": self.norm}

    def fields(self) -> dict[str, Any]:
        """Return the JSON form from which another process builds the network: :func:`edgefl.models.custom.architecture_in` reads it."""
        return self.described() | ({} if self.weights is None else {"weights": vars(self.weights)})

    def skeleton(self, width: float = 1.0) -> nn.Module:
        """Return the network on the ``meta`` device: names and shapes without memory or random draws."""
        with torch.device("meta"), Unfilled():
            return self.build(width)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the architecture itself: it does not change, and what was computed for it, such as graphs, cannot be copied."""
        return self

    @cached_property
    def cuts(self) -> Cuts:
        """The blocks of the network, found by tracing it; ConfigError if it does not run without values."""
        return _cuts(self)


def small_models() -> list[str]:
    """Return the names of the reference networks that any computer can train in a moment: those without the fact ``large``."""
    return [name for name in models.names() if not models.facts(name).get("large")]


def once_per_network(compute: C) -> C:
    """Return ``compute(architecture, …)`` with a cache. That of a network that the user brings is part of its architecture."""
    cached = lru_cache(maxsize=256)(compute)

    @wraps(compute)
    def computed(architecture: Architecture, *args: Any) -> Any:
        if type(architecture) is Architecture:
            return cached(architecture, *args)
        # A user's network may change between two requests, each of which makes an architecture of its own.
        results, key = vars(architecture).setdefault("_computed", {}), (compute, args)
        if key not in results:
            results[key] = compute(architecture, *args)
        return results[key]

    return cast(C, computed)


@once_per_network
def _cuts(architecture: Architecture) -> Cuts:
    samples = 3  # unlike the sizes of other axes in most networks
    with _disable_current_modes(), on_meta():
        return cuts_of(architecture.skeleton(), architecture.samples(samples), samples)


class Unfilled(TorchFunctionMode):
    """Skips the initialisation of weights, for networks whose weights are overwritten or never read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor unchanged instead of calling a function of ``torch.nn.init``, or one that such a function calls."""
        named = getattr(func, "__name__", "") in ("uniform_", "normal_", "trunc_normal_")
        if named or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def scaled(channels: int, width: float) -> int:
    """Return ⌈width · channels⌉, at least 1, as HeteroFL rounds; exact for decimals such as 0.3.

    >>> scaled(64, 0.25), scaled(10, 0.3), scaled(30, 0.1)
    (16, 3, 3)
    """
    return max(1, math.ceil(channels * width - 1e-9))


ImageShape = tuple[int, int, int]
"""Channels, height and width."""


def image_shape(model: str, input_shape: tuple[int, ...], least: int) -> ImageShape:
    """Return ``input_shape``; ConfigError unless it is (channels, height, width) with sides of at least ``least`` pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        shape = "x".join(map(str, input_shape))
        raise ConfigError(f"model {model} takes channels x height x width with sides of at least {least}, got {shape}")
    return input_shape


def window(model: str, input_shape: tuple[int, ...], norm: str) -> None:
    """Raise :class:`ConfigError` unless ``input_shape`` is (length,) and ``norm`` is ``none``, the only policy of recurrent networks."""
    if len(input_shape) != 1:
        shape = "x".join(map(str, input_shape))
        raise ConfigError(f"model {model} takes a sequence of token ids, one length such as 80, got {shape}")
    if norm != "none":
        raise ConfigError(f"norm: model {model} has no feature maps to normalise, expected 'none', got {norm!r}")


def weighted_layers(network: nn.Module) -> Iterator[tuple[str, Convolution | nn.Linear]]:
    """Yield name and layer of convolutions and linear layers, in the order of definition, but none inside ``nn.MultiheadAttention``."""
    attention = tuple(f"{name}." for name, layer in network.named_modules() if isinstance(layer, nn.MultiheadAttention))
    for name, layer in network.named_modules():
        if isinstance(layer, Convolution | nn.Linear) and not name.startswith(attention):
            yield name, layer


def stem_and_classifier(network: nn.Module) -> tuple[str | None, str]:
    """Return the names of the stem (the first layer, or None if that is linear) and of the classifier (the last); ConfigError: no layer."""
    layers = list(weighted_layers(network))
    if not layers:
        raise ConfigError("the network has no convolution and no linear layer: there is nothing to factorize or scale")
    first, last = layers[0], layers[-1]
    return (None if isinstance(first[1], nn.Linear) else first[0]), last[0]


@once_per_network
def classifier_tensors(architecture: Architecture) -> frozenset[str]:
    """Return the names of the classifier's tensors that have one row per label: its weight and bias.

    A tensor that another layer uses too, such as an embedding, is left out: its rows are not for labels alone.

    >>> sorted(classifier_tensors(Architecture("mlp", (64,), 10)))
    ['fc.bias', 'fc.weight']
    """
    network = architecture.skeleton()
    name = stem_and_classifier(network)[1]
    parameters = network.get_submodule(name).named_parameters()
    rows = {f"{name}.{part}" for part, tensor in parameters if len(tensor) == architecture.classes}
    return frozenset(rows.difference(*tied(network)))


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return name → tensor of every parameter and buffer of ``network``, including buffers that ``state_dict`` lacks.

    >>> list(named_tensors(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def load(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into ``network`` like ``load_state_dict``, but faster; RuntimeError if names or shapes differ.

    >>> layer = nn.Linear(2, 1)
    >>> load(layer, {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.zeros(1)})
    >>> layer.weight.tolist()
    [[1.0, 2.0]]
    """
    targets = network.state_dict()
    if targets.keys() != tensors.keys() or any(tensor.shape != tensors[name].shape for name, tensor in targets.items()):
        network.load_state_dict(tensors)  # raises an error that names the difference
    elif targets:
        with torch.no_grad():
            torch._foreach_copy_(list(targets.values()), [tensors[name] for name in targets])


def loaded(network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return ``network`` with the state_dict ``tensors``, in evaluation mode; RuntimeError if names or shapes differ."""
    load(network, tensors)
    return network.eval()


def replace_layer(network: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer ``name`` of ``network`` by ``layer``, which notes the sizes that torch's class notes, such as ``in_features``."""
    path, _, child = name.rpartition(".")
    parent = network.get_submodule(path)
    before = parent.get_submodule(child)
    for noted in getattr(before, "__constants__", ()):
        if not hasattr(layer, noted):
            setattr(layer, noted, getattr(before, noted))
    setattr(parent, child, layer)
    if isinstance(parent, nn.TransformerEncoderLayer):
        # In evaluation torch's fused kernels would read the dense weights of the block's layers, also from the encoder around it.
        parent.activation_relu_or_gelu = 0
        for encoder in network.modules():
            if isinstance(encoder, nn.TransformerEncoder):
                encoder.use_nested_tensor = False
