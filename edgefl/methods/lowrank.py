"""Factors of fixed shapes, averaged by FedAvg: plain low rank (Tucker-2), and Pufferfish, which first trains the dense network."""

import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from edgefl.errors import ConfigError
from edgefl.factor import hadamard, tucker
from edgefl.factor.hadamard_layers import RECURRENT, ProductWeight
from edgefl.factor.svd import truncated, unroll
from edgefl.factor.tucker import small_layers
from edgefl.methods.axes import Need
from edgefl.methods.base import Method, MethodConfig
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.fedpara import Factored, candidates, with_weights
from edgefl.methods.ranks import hybrid_ranks, ranked, truncated_state
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture, replace_layer
from edgefl.records import Tier
from edgefl.registry import method
from edgefl.util.compute import in_parallel


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
        network = architecture.build()
        ranks = self.ranks(network, tier)
        recurrent = {name: rank for name, rank in ranks.items() if type(_layer(network, name)) in RECURRENT}
        return with_weights(self._small(network, ranks), recurrent, ProductWeight)

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return self._small(network, self.ranks(network, tier))

    def _small(self, network: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
        """Replace the layers that ``ranks`` names by small ones, except recurrent layers."""
        for name, rank in ranks.items():
            if isinstance(layer := _layer(network, name), (nn.Conv2d, nn.Linear)):
                replace_layer(network, name.rpartition(".")[0], small_layers(layer, rank))
        return network

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return weight → rank of the factorized weights; none at the share 1."""
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


_SWITCH = "after the warm-up the factors take the weights' place: "


class PufferfishConfig(MethodConfig):
    """Options of Pufferfish.

    Attributes:
        warmup_rounds: rounds of the dense network; 0 trains the factors of the initial weights from the start.
        phase: "dense" in the warm-up, "lowrank" after it; set by the run.
    """

    warmup_rounds: int = Field(3, ge=0)
    phase: Literal["dense", "lowrank"] = "dense"


@method("pufferfish")
class Pufferfish(FedAvg):
    """Vanilla warm-up: FedAvg of the dense network; then each layer W ≈ (U√Σ)(√ΣVᵀ) of rank ⌊γ·n⌋, and FedAvg of the factors.

    The stem, 1×1 convolutions, the classifier, and the layers in the network's ``hybrid_dense`` stay dense throughout.

    Differs from the paper: a convolution is decomposed into k×1 and 1×k convolutions as in FedHM, where Pufferfish has k×k to r channels
    and 1×1. The paper trains on one cluster; FedPara, appendix D.2, brings it to federated clients.
    """

    config: PufferfishConfig
    title: ClassVar[str] = "Pufferfish"
    paper: ClassVar[str] = "Wang et al., MLSys 2021, as in FedPara, appendix D.2"
    tier_meaning: ClassVar[str] = "one tier only: the rank ratio γ of the factorized layers after the warm-up; 1 is dense"
    travels: ClassVar[str] = (
        "every weight in the warm-up, then two factors of each factorized layer and the dense rest, both ways"
    )
    default_tiers: ClassVar[tuple[float, ...]] = (0.25,)
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the network changes its form between two rounds, while clients are at work",
        "fixed_coordinates": _SWITCH + "a client's memory of gradients, or control variates, would be of other coordinates",
        "server_step": _SWITCH + "the server's momentum or moments would be of other coordinates",
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        hybrid_ranks(architecture.skeleton(), tiers[0].ratio)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return network if self.config.phase == "dense" else ranked(network, hybrid_ranks(network, tier.ratio))

    def advance(self, state: GlobalState, round_: int) -> tuple[Method, GlobalState]:
        """After the warm-up, decompose every layer that the hybrid network has low rank."""
        if self.config.phase == "lowrank" or round_ <= self.config.warmup_rounds:
            return self, state
        ranks = hybrid_ranks(state.architecture.skeleton(), state.tiers[0].ratio)
        matrices = {layer: unroll(state.tensors[f"{layer}.weight"]) for layer in ranks}
        found = in_parallel({layer: partial(truncated, matrix, [ranks[layer]]) for layer, matrix in matrices.items()})
        tensors = {name: tensor for name, (tensor, _) in truncated_state(state.tensors, ranks, found).items()}
        after = type(self)(self.config.model_copy(update={"phase": "lowrank"}))
        names = after.shapes(state.architecture, state.tiers[0])  # in the order of the hybrid network, as on the wire
        return after, state.replace({name: tensors[name] for name in (*names, *tensors)})

    def global_tier(self, state: GlobalState) -> Tier:
        """Return 1 in the warm-up, when the server's network is dense; then the only tier."""
        return Tier(1.0) if self.config.phase == "dense" else state.tiers[0]
