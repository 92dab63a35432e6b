"""The common part of FedPara, pFedPara and plain low rank: a network that composes its weights from trained factors."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard import Shape, rank_of, rank_range
from edgefl.factor.hadamard_layers import RECURRENT, HadamardWeight, composed, composed_weights
from edgefl.methods.capabilities import Composes, Factorizes
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.layer_rules import kept_layers, kind_of, why_dense
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, loaded, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Tier
from edgefl.util.convolutions import Convolution

Weights = dict[str, Shape]


class Factored(Composes, Factorizes, FedAvg):
    """FedAvg of the factors of weights. Devices run the plain dense network, with weights that were composed once.

    Attributes:
        weight: the class of module that composes a weight.
    """

    weight: ClassVar[type[nn.Module]] = HadamardWeight
    tier_meaning = "one tier only: γ, where every layer's rank lies between full-rank capacity and dense size"
    unlike_networks = False

    @abc.abstractmethod
    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return name → rank of the factorized weights of ``network``; ConfigError if no layer can be factorized."""

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return a module with freshly drawn factors that composes a weight of ``shape``."""
        return self.weight(shape, rank)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        self.ranks(architecture.skeleton(), tiers[0])

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the dense network with factors in place of the weights that :meth:`ranks` names."""
        network = architecture.build()
        return with_weights(network, self.ranks(network, tier), self.made)

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build()

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        network = self.factored(state, tier, personal, client)
        return with_products(self.device_network(state.architecture, tier), network, self.weight)


def candidates(network: nn.Module, linear: bool | None, classifier: bool = False, rules: str = "") -> Weights:
    """Return name → shape of the weights that may be factorized, by :func:`dense_reasons`."""
    reasons = dense_reasons(network, linear, classifier, rules)
    weights = (name for name in network.state_dict() if name.rpartition(".")[2].startswith("weight"))
    return {name: tuple(network.get_parameter(name).shape) for name in weights if reasons.get(name.rpartition(".")[0]) == ""}


def dense_reasons(network: nn.Module, linear: bool | None, classifier: bool = False, rules: str = "") -> dict[str, str]:
    """Return layer → why it is not factorized, "" if it may be, for each convolution, linear and recurrent layer of ``network``.

    Args:
        network: the dense network.
        linear: whether linear layers are factorized. None: only if convolutions hold less than half of the weights that may be.
        classifier: whether the classifier may be factorized.
        rules: the option ``factorize``, which replaces ``linear``. "": convolutions, recurrent layers, and linear ones as above.

    Raises:
        ConfigError: the rules are wrong.
    """
    recurrent = {name: layer for name, layer in network.named_modules() if type(layer) in RECURRENT}
    layers: dict[str, nn.Module] = {**recurrent, **dict(weighted_layers(network))}
    reasons = kept_layers(network)
    never = {name: reason for name, layer in layers.items() if (reason := reasons.get(name) or _formless(layer))}
    spared = {} if classifier else {stem_and_classifier(network)[1]: "classifier"}
    sizes: dict[Any, int] = dict.fromkeys((Convolution, nn.Linear, nn.RNNBase), 0)
    for name, layer in layers.items():
        if name not in never and name not in spared:
            kind = next(kind for kind in sizes if isinstance(layer, kind))
            sizes[kind] += sum(value.numel() for key, value in layer.named_parameters() if key.startswith("weight"))
    usual = {kind_of(layer) for layer in layers.values()}
    if not linear and (linear is not None or 2 * sizes[Convolution] >= sum(sizes.values())):
        usual.discard("linear")
    return why_dense(layers, rules, usual, spared, never)


def _formless(layer: nn.Module) -> str:
    """Return why layers of its kind cannot compose their weights, "" if they can."""
    return "projection" if isinstance(layer, nn.RNNBase) and layer.proj_size else ""


def factorized_ranks(weights: Mapping[str, Shape], gamma: float, who: str) -> dict[str, int]:
    """Return name → rank R at ``gamma`` of those ``weights`` (name → shape) that are smaller in factors.

    Raises:
        ConfigError: there is no such weight; the message names the method ``who``.
    """
    ranks = {name: rank for name, shape in weights.items() if (rank := rank_of(shape, gamma))}
    if not ranks:
        sizes = "; ".join(
            f"{name} {'x'.join(map(str, shape))} needs rank {rank_range(shape)[0]}, at most {rank_range(shape)[1]} is smaller"
            for name, shape in weights.items()
        )
        raise ConfigError(f"{who} finds no layer that is smaller in factors: {sizes or 'there is none besides the classifier'}")
    return ranks


def with_weights(network: nn.Module, ranks: Mapping[str, int], make: Callable[[Shape, int], nn.Module]) -> nn.Module:
    """Return ``network`` with the module ``make(shape, rank)`` in place of each weight that ``ranks`` names."""
    shapes = {name: tuple(network.get_parameter(name).shape) for name in ranks}
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in ranks):
        keys = [name for name in ranks if name.rpartition(".")[0] == layer]
        parts = {name.rpartition(".")[2]: make(shapes[name], ranks[name]) for name in keys}
        replace_layer(network, layer, composed(network.get_submodule(layer), parts))
    return network


@torch.no_grad()
def with_products(dense: nn.Module, network: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return ``dense``, in evaluation mode, with the weights of ``network``, in which modules of ``kind`` compose some of them."""
    weights = composed_weights(network, kind)
    plain = {name: value for name, value in network.state_dict().items() if name.rpartition(".")[0] not in weights}
    return loaded(dense, {**plain, **{name: weight() for name, weight in weights.items()}})
