"""Pufferfish: a few rounds train the dense network, then low-rank layers that begin as its decomposition."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from edgefl.factor.svd import truncated, unroll
from edgefl.methods.axes import Need
from edgefl.methods.base import Method, MethodConfig
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.ranks import hybrid_ranks, ranked, truncated_state
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import method
from edgefl.util.compute import in_parallel

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
        """Raise :class:`ConfigError` if no layer can be factorized."""
        hybrid_ranks(architecture.skeleton(), tiers[0].ratio)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the dense network or, after the warm-up, the hybrid one."""
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
