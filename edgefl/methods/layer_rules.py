"""Which layers a method factorizes: by kind and by patterns of names, as the option ``factorize`` has them."""

import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from edgefl.errors import ConfigError, nearest
from edgefl.factor.hadamard_layers import RECURRENT
from edgefl.methods.options import MethodConfig
from edgefl.models.base import named_tensors
from edgefl.models.ties import tied
from edgefl.util.convolutions import Convolution

KINDS = ("conv", "1x1", "linear", "recurrent")
"""Kinds of layers that methods factorize: convolutions of larger kernels, those of 1×1, linear and recurrent layers."""
OUTSIDE = "not chosen"
"""The reason of layers that stay dense because the option ``factorize`` does not choose them."""
FROZEN = "frozen"
"""The reason of layers with a weight or bias that is not trained. Adapters are for such layers."""
_PLAIN = (*get_args(Convolution), nn.Linear, *RECURRENT)
_COMPUTING = ("__call__", "forward", "_conv_forward")


def _joined(value: Any) -> Any:
    """Return the rules as one text: a list of words is joined."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        return value  # pydantic names the type that it expects
    words = [word.strip() for word in words]
    if words != [""] and not all(word.removeprefix("!") for word in words):
        raise ConfigError(f"method_options.factorize: {value!r} has an empty rule; expected rules such as conv,1x1,!fc")
    return ",".join(words)


class FactorizingConfig(MethodConfig):
    """Options of every method that factorizes layers.

    Attributes:
        factorize: the layers to factorize: kinds (``conv``, ``1x1``, ``linear``, ``recurrent``) and patterns of layer names, such as
            ``conv,1x1,blocks.*.conv_pw,!fc``. ``!`` excludes. Exclusions alone reduce the usual layers. A kind does
            not choose layers that the method keeps dense, such as the classifier; a pattern does. A layer stays dense if its
            factors would not be smaller. Empty: the usual layers of the method. ``edgefl inspect NETWORK --method NAME`` shows them.
    """

    factorize: Annotated[str, BeforeValidator(_joined)] = ""


def rules_of(config: MethodConfig) -> str:
    """Return the option ``factorize``, "" if the method has none."""
    return config.factorize if isinstance(config, FactorizingConfig) else ""


def kind_of(layer: nn.Module) -> str:
    """Return the kind of a layer: one of :data:`KINDS`, or another word.

    >>> kind_of(nn.Conv2d(4, 8, 1)), kind_of(nn.Conv2d(8, 8, 3, groups=8)), kind_of(nn.LSTM(2, 3)), kind_of(nn.BatchNorm2d(8))
    ('1x1', 'depthwise', 'recurrent', 'BatchNorm2d')
    """
    if isinstance(layer, Convolution):
        if layer.groups > 1:
            return "depthwise" if layer.groups == layer.in_channels else "grouped"
        return "1x1" if math.prod(layer.kernel_size) == 1 else "conv"
    return "linear" if isinstance(layer, nn.Linear) else "recurrent" if type(layer) in RECURRENT else type(layer).__name__


def kept_layers(network: nn.Module) -> dict[str, str]:
    """Return layer → why no method may put factors in its place, of convolutions, linear and recurrent layers; others are left out.

    Factors compute what torch's own class computes, with a weight and a bias of their own that are trained.

    >>> tied = nn.Linear(4, 4)
    >>> kept_layers(nn.Sequential(tied, nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4), tied))
    {'0': 'shared', '1': 'frozen'}
    """
    shared = {name for names in tied(network) for name in names}
    reasons = {}
    for name, layer in network.named_modules():
        plain = next((kind for kind in _PLAIN if isinstance(layer, kind)), None)
        if plain is not None and (reason := _why_kept(name, layer, plain, shared)):
            reasons[name] = reason
    return reasons


def _why_kept(name: str, layer: nn.Module, plain: type[nn.Module], shared: Collection[str]) -> str:
    tensors = named_tensors(layer)
    kinds = {key.partition("_")[0] if issubclass(plain, nn.RNNBase) else key for key in tensors}
    if is_parametrized(layer):
        return "parametrized"
    if "forward" in vars(layer) or any(getattr(type(layer), call, 0) is not getattr(plain, call, 0) for call in _COMPUTING):
        return "own forward"
    if name and (layer._forward_hooks or layer._forward_pre_hooks):  # those of the whole network are no layer's
        return "own forward"
    if not {"weight"} <= kinds <= {"weight", "bias"}:
        return "own tensors"
    if any(f"{name}.{key}" in shared for key in tensors):
        return "shared"
    return "" if all(tensor.requires_grad for tensor in tensors.values()) else FROZEN


def why_dense(
    layers: Mapping[str, nn.Module], rules: str, usual: Collection[str], spared: Mapping[str, str], never: Mapping[str, str]
) -> dict[str, str]:
    """Return layer → why it stays dense, "" if it may be factorized.

    Args:
        layers: name → layer, of all layers that have a weight.
        rules: the option ``factorize``.
        usual: kinds that are factorized if the rules name none.
        spared: layer → why it stays dense unless a pattern matches its name, such as "stem".
        never: layer → why it cannot be factorized, such as "grouped".

    Raises:
        ConfigError: a pattern matches no layer, or only layers that cannot be factorized.

    >>> layers = {"stem": nn.Conv2d(3, 8, 3), "conv": nn.Conv2d(8, 8, 3), "fc": nn.Linear(8, 2)}
    >>> why_dense(layers, "conv", ("conv", "linear"), {"stem": "stem"}, {})
    {'stem': 'stem', 'conv': '', 'fc': 'not chosen'}
    """
    words = rules.split(",") if rules else []
    excluded = [word[1:] for word in words if word.startswith("!")]
    named = [word for word in words if not word.startswith("!")]
    for pattern in (word for word in (*named, *excluded) if word not in KINDS):
        matches = [name for name in layers if fnmatchcase(name, pattern)]
        if not matches:
            problem = f"no kind ({', '.join(KINDS)}), and no layer has such a name"
            raise ConfigError(f"method_options.factorize: {pattern!r} is {problem};{_near(pattern, layers)}")
        if pattern in named and all(name in never for name in matches):
            raise ConfigError(f"method_options.factorize: {pattern!r}: {matches[0]} cannot be factorized: {never[matches[0]]}")
    kinds = [word for word in named if word in KINDS] if named else usual

    def why(name: str, kind: str) -> str:
        if name in never:
            return never[name]
        if any(kind == word if word in KINDS else fnmatchcase(name, word) for word in excluded):
            return OUTSIDE
        if any(fnmatchcase(name, pattern) for pattern in named):
            return ""
        return spared.get(name, "") or ("" if kind in kinds else OUTSIDE)

    return {name: why(name, kind_of(layer)) for name, layer in layers.items()}


def _near(pattern: str, layers: Collection[str]) -> str:
    return nearest(pattern, [*KINDS, *layers]) or f" layers are {', '.join(list(layers)[:5])}{', …' * (len(layers) > 5)}"
