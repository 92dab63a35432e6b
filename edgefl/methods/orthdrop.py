"""OrthDrop: every client of a tier trains the same first kernels, PriSM's baseline in the orthogonal space."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.factor.kernels import KernelLayer
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.prism import KernelConfig, PriSM
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.registry import method


@method("orthdrop")
class OrthDrop(PriSM):
    """The r = ⌈c·N⌉ kernels of largest σ, always, with all output channels: Conv_V from m to r, Conv_U from r to n (PriSM, section 4).

    As in FedHM, the server averages the clients' products, so kernels beyond every client's rank are lost. All clients have the same
    weight. c = 1 is the dense network.

    Differs from the paper: it says "such as in FedHM", which unrolls a weight to (m·k) × (n·k); here it is PriSM's n × m·k², as
    the costs of Table 1 require.
    """

    config: KernelConfig  # type: ignore[assignment]  # it draws no kernels, and has no options of a draw

    title: ClassVar[str] = "OrthDrop"
    paper: ClassVar[str] = "Niu et al., TMLR 2023, section 4 (Baselines)"
    tier_meaning: ClassVar[str] = "keep ratio c: the share of principal kernels that a client trains; 1 is dense"
    travels: ClassVar[str] = "both factors of the first kernels and the dense rest, both ways"
    per_client: ClassVar[bool] = False
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the factors of every step are a new decomposition: what an older one changed has no place in it",
        "fixed_coordinates": "a client's factors are a new decomposition every round: remembered gradients and "
        "control variates would be of other coordinates",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "unchanged clients leave the state unchanged": "a tier below 1 sends back its first kernels only, and their sum replaces the "
        "full weights: what the truncation cut off is gone",
    }

    def width(self, tier: Tier) -> float:
        """Return 1: all channels."""
        return 1.0

    def factorized(self, tier: Tier) -> bool:
        """Return whether the tier is below 1."""
        return tier.ratio < 1

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network as it trains: its kernels make it small."""
        return self.network(architecture, tier)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        return self.factored(state, tier, personal, client)

    def chosen(self, layer: KernelLayer, values: Tensor, tier: Tier, rng: np.random.Generator) -> Tensor:
        """Return the first r kernels."""
        return torch.arange(layer.count)

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Multiply every update back to full shape and average."""
        total = WeightedSum(state.tensors)
        for update in self.checked(state, updates):
            rest = dict(update.tensors)
            for layer in self._kernel_layers(state, update.tier):
                u, v = rest.pop(layer.u).flatten(1), rest.pop(layer.v)
                total.add(layer.target, torch.tensordot(u, v, 1), 1.0, (layer.span,))
            for name, tensor in rest.items():
                total.add(update.places[name].target, tensor, 1.0, update.places[name].index)
        return state.replace(total.mean(state.tensors))
