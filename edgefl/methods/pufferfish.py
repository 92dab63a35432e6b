"""Pufferfish: some rounds train the dense network, the following ones low-rank factors of its layers."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field
from torch import nn

from edgefl.factor.svd import truncated, unroll
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Factorizes, Phased
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.layer_rules import FactorizingConfig
from edgefl.methods.networks import upload_shapes
from edgefl.methods.ranks import Ranks, dense_reasons, hybrid_ranks, ranked, truncated_state
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import method
from edgefl.util.compute import in_parallel

_SWITCH = "after the warm-up the factors take the weights' place: "


class PufferfishConfig(FactorizingConfig):
    """Options of Pufferfish.

    Attributes:
        warmup_rounds: rounds that train the dense network. 0 trains factors of the initial weights from the start.
        phase: "dense" in the warm-up, "lowrank" after it. Set by the run.
    """

    warmup_rounds: int = Field(3, ge=0)
    phase: Literal["dense", "lowrank"] = "dense"


@method("pufferfish")
class Pufferfish(Phased, Factorizes, FedAvg):
    """FedAvg of the dense network as a warm-up; then W ≈ (U√Σ)(√ΣVᵀ) of rank ⌊γ·n⌋ in each layer, and FedAvg of the factors.

    The layers that FedHM factorizes are factorized; the option ``factorize`` chooses others.

    Differs from the paper: a convolution is decomposed into a k×1 and a 1×k convolution as in FedHM. The paper has a k×k convolution to r
    channels and a 1×1 convolution. The paper trains on one cluster; FedPara, appendix D.2, applies it to federated clients.
    """

    config: PufferfishConfig
    title = "Pufferfish"
    paper = "Wang et al., MLSys 2021, as in FedPara, appendix D.2"
    tier_meaning = "one tier only: the rank ratio γ of the factorized layers after the warm-up; 1 is dense"
    travels = "every weight in the warm-up, then two factors of each factorized layer and the dense rest, both ways"
    default_tiers = (0.25,)
    unlike_networks = False
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the network changes its form between two rounds, while clients are at work",
        "fixed_coordinates": _SWITCH + "a client's memory of gradients, or control variates, would belong to other coordinates",
        "server_step": _SWITCH + "the server's momentum or moments would belong to other coordinates",
    }

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        return dense_reasons(network, self.config.factorize)

    def _ranks(self, network: nn.Module, tier: Tier) -> Ranks:
        return hybrid_ranks(network, tier.ratio, self.config.factorize)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        self._ranks(architecture.skeleton(), tiers[0])

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return network if self.config.phase == "dense" else ranked(network, self._ranks(network, tier))

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method of the phase "lowrank" and a state of factors, when the warm-up ends."""
        if self.config.phase == "lowrank" or round_ <= self.config.warmup_rounds:
            return self, state
        ranks = self._ranks(state.architecture.skeleton(), state.tiers[0])
        matrices = {layer: unroll(state.tensors[f"{layer}.weight"]) for layer in ranks}
        factors = in_parallel({layer: partial(truncated, matrix, [ranks[layer]]) for layer, matrix in matrices.items()})
        tensors, _ = truncated_state(state.tensors, ranks, factors)
        after = self.after_warmup()
        names = upload_shapes(after, state.architecture, state.tiers[0])  # in the order of the hybrid network, as on the wire
        return after, state.replace({name: tensors[name] for name in (*names, *tensors)})

    def after_warmup(self) -> Self:
        """Return the method of the phase "lowrank"."""
        return self.with_options(phase="lowrank")
