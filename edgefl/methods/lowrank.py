"""Plain low rank: every weight is a product of small factors, which are trained and sent."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from edgefl.errors import ConfigError
from edgefl.factor import hadamard, tucker
from edgefl.factor.hadamard_layers import RECURRENT, ProductWeight
from edgefl.factor.tucker import small_layers
from edgefl.methods.base import MethodConfig
from edgefl.methods.fedpara import Factored, candidates, with_weights
from edgefl.models.base import Architecture, replace_layer
from edgefl.records import Tier
from edgefl.registry import method


class LowRankConfig(MethodConfig):
    """Options of plain low-rank training.

    Attributes:
        linear: which layers are factorized, as FedPara's option.
        match: what a tier is. "share": the share of its dense weight that a layer's factors may hold. "fedpara": a γ at which a layer's
            factors may hold what FedPara's hold; a layer that FedPara leaves dense is dense.
    """

    linear: bool | None = None
    match: Literal["share", "fedpara"] = "share"


@method("lowrank")
class LowRankTraining(Factored):
    """W = T ×₁ X ×₂ Y (Tucker-2) for convolutions and X Yᵀ for linear and recurrent weights; FedAvg of the factors.

    FedPara's baseline of equal size ("Low", Table 2). A convolution is trained and deployed as three small ones in a row, a linear layer as
    two. Only recurrent weights are composed. Each layer has the largest rank whose factors fit its tier's budget, at least 1; it stays
    dense if its factors would hold no fewer values. The classifier stays dense.

    Differs from the paper: it compares networks of about the same number of parameters (10.25 % against 10.15 % of the dense one);
    with ``match = "fedpara"`` no layer has more than FedPara's.
    """

    config: LowRankConfig
    weight: ClassVar[type[nn.Module]] = ProductWeight
    title: ClassVar[str] = "Low rank (Tucker-2)"
    paper: ClassVar[str] = "Phan et al., ECCV 2020, as trained in FedPara, Table 2"
    tier_meaning: ClassVar[str] = "one tier only: the share of its dense weight that a layer's factors hold at most; 1 is dense"
    travels: ClassVar[str] = "the factors of each factorized layer and the dense rest, both ways"
    default_tiers: ClassVar[tuple[float, ...]] = (0.25,)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network of small layers."""
        network = architecture.build()
        ranks = self.ranks(network, tier)
        recurrent = {name: rank for name, rank in ranks.items() if type(_layer(network, name)) in RECURRENT}
        return with_weights(self._small(network, ranks), recurrent, ProductWeight)

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network of small layers, recurrent weights composed."""
        network = architecture.build()
        return self._small(network, self.ranks(network, tier))

    def _small(self, network: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
        """Replace the layers that ``ranks`` names by small ones, except recurrent layers."""
        for name, rank in ranks.items():
            if isinstance(layer := _layer(network, name), (nn.Conv2d, nn.Linear)):
                replace_layer(network, name.rpartition(".")[0], small_layers(layer, rank))
        return network

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return weight → rank of the factorized weights; none at the share 1.

        Raises:
            ConfigError: no layer can be factorized.
        """
        weights = {
            name: shape
            for name, shape in candidates(network, self.config.linear).items()
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
