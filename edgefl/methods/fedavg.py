"""FedAvg: everyone trains the whole network."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import nn

from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState, Tensors, copied
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import method
from edgefl.rng import torch_seeded


@method("fedavg")
class FedAvg(Method):
    """w ← Σ n_k w_k / Σ n_k over the clients of a round (McMahan et al. 2017, Algorithm 1).

    With ``--tiers 0.5`` the global network itself has half the width: the "slimming model on all clients" of FedHM, section 4.1.
    """

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    tier_meaning: ClassVar[str] = "one tier only: the width of the network that everyone trains"
    travels: ClassVar[str] = "every weight, both ways"
    default_tiers: ClassVar[tuple[float, ...]] = (1.0,)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the dense network at the tier's width."""
        return architecture.build(tier.ratio)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the initial weights at the width of the only tier."""
        with torch_seeded(rng):
            network = self.network(architecture, tiers[0])
        return GlobalState(architecture, tiers, copied(network))

    def trained(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network with what the server sends; what does not travel, such as personal tensors, has its first values."""
        network = self.network(state.architecture, tier)
        sent = self.submodel(state, tier, np.random.default_rng(0), client).tensors
        network.load_state_dict({**state.tensors, **sent, **(personal or {})})
        return network.eval()

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the run's only width."""
        return state.tiers[0]
