"""Plain low rank: Tucker-2 factors of fixed shapes, averaged by FedAvg. FedPara's baseline of equal size."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from edgefl.errors import ConfigError
from edgefl.factor import hadamard, tucker
from edgefl.factor.hadamard_layers import RECURRENT, ProductWeight
from edgefl.factor.tucker import small_layers
from edgefl.methods.factored_weights import Factored, candidates, dense_reasons, with_weights
from edgefl.methods.layer_rules import FactorizingConfig, kind_of
from edgefl.models.base import Architecture, replace_layer
from edgefl.records import Tier
from edgefl.registry import method
from edgefl.util.convolutions import Convolution


class LowRankConfig(FactorizingConfig):
    """Options of plain low-rank training.

    Attributes:
        linear: whether linear layers before the classifier are factorized, as in FedPara. The option ``factorize`` replaces this one.
        match: the meaning of a tier's ratio. "share": a layer's factors hold at most this share of its dense weight. "fedpara": it is a
            γ, and a layer's factors hold at most as many values as FedPara's at γ; layers that FedPara leaves dense are dense.
    """

    linear: bool | None = None
    match: Literal["share", "fedpara"] = "share"


@method("lowrank")
class LowRankTraining(Factored):
    """W = T ×₁ X ×₂ Y (Tucker-2) for convolutions and X Yᵀ for linear and recurrent weights; FedAvg of the factors.

    FedPara's baseline of equal size ("Low", Table 2). A convolution is trained and deployed as three small ones in a row, a linear layer as
    two. Only recurrent weights are composed. Each layer has the largest rank with factors that fit the budget of its tier, at least 1. It
    stays dense if its factors would not be smaller. The classifier stays dense.

    Differs from the paper: it compares networks with about the same number of parameters (10.25 and 10.15 % of the dense network's). Here,
    with ``match = "fedpara"``, no layer has more parameters than FedPara's.
    """

    config: LowRankConfig
    weight: ClassVar[type[nn.Module]] = ProductWeight
    title = "Low rank (Tucker-2)"
    paper = "Phan et al., ECCV 2020, as trained in FedPara, Table 2"
    tier_meaning = "one tier only: the share of its dense weight that a layer's factors hold at most; 1 is dense"
    travels = "the factors of each factorized layer and the dense rest, both ways"
    default_tiers = (0.25,)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        ranks = self.ranks(network, tier)
        recurrent = {name: rank for name, rank in ranks.items() if type(_layer(network, name)) in RECURRENT}
        return with_weights(self._small(network, ranks), recurrent, ProductWeight)

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return self._small(network, self.ranks(network, tier))

    def _small(self, network: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
        """Replace the convolutions and linear layers that ``ranks`` names by small layers; recurrent layers stay."""
        for name, rank in ranks.items():
            if isinstance(layer := _layer(network, name), Convolution | nn.Linear):
                replace_layer(network, name.rpartition(".")[0], small_layers(layer, rank))
        return network

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        reasons = dense_reasons(network, self.config.linear, rules=self.config.factorize)
        layers = {name: network.get_submodule(name) for name in reasons}
        return {name: why if getattr(layers[name], "groups", 1) == 1 else kind_of(layers[name]) for name, why in reasons.items()}

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return name → rank of the factorized weights, none at the share 1; ConfigError if no layer can be factorized."""
        weights = {
            name: shape
            for name, shape in candidates(network, self.config.linear, rules=self.config.factorize).items()
            if getattr(_layer(network, name), "groups", 1) == 1
        }
        if self.config.match == "fedpara":
            budgets = {n: hadamard.parameters_of_rank(s, r) for n, s in weights.items() if (r := hadamard.rank_of(s, tier.ratio))}
        else:
            budgets = {name: int(tier.ratio * math.prod(shape) + 1e-9) for name, shape in weights.items()}
        ranks = {name: max(1, tucker.rank_within(weights[name], budget)) for name, budget in budgets.items()}
        ranks = {n: r for n, r in ranks.items() if tucker.parameters_of_rank(weights[n], r) < math.prod(weights[n])}
        if not ranks:
            sizes = "; ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in weights.items())
            raise ConfigError(f"lowrank finds no layer that is smaller in factors: {sizes or 'there is none but the classifier'}")
        return {} if self.config.match == "share" and tier.ratio >= 1 else ranks


def _layer(network: nn.Module, weight: str) -> nn.Module:
    return network.get_submodule(weight.rpartition(".")[0])
