"""OrthDrop: every client of a tier trains the kernels of largest singular values, PriSM's baseline in the orthogonal space."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.factor.bands import band_energies
from edgefl.factor.kernels import KernelLayer
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.prism import KernelConfig, PriSM
from edgefl.methods.ranks import NEW_FACTORS
from edgefl.methods.state import GlobalState, Tensors
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.registry import method


@method("orthdrop")
class OrthDrop(PriSM):
    """Clients always train the r = ⌈c·N⌉ kernels of largest σ, at all channels (PriSM, section 4, Baselines).

    A convolution is Conv_V from m to r channels, then Conv_U from r to n. As in FedHM, the server averages the clients' products, so
    kernels that no client's rank includes are lost. All clients have the same weight. c = 1 is the dense network.

    Differs from the paper: it says "such as in FedHM", which unrolls a weight to (m·k) × (n·k). Here a weight is unrolled to PriSM's
    n × m·k², as the costs of Table 1 require.
    """

    config: KernelConfig  # type: ignore[assignment]  # without PriSM's options of a draw

    title = "OrthDrop"
    every_update = "the server multiplies each client's kernels: the product of sums is not the sum of products"
    paper = "Niu et al., TMLR 2023, section 4 (Baselines)"
    tier_meaning = "keep ratio c: the share of principal kernels that a client trains; 1 is dense"
    travels = "both factors of the first kernels and the dense rest, both ways"
    per_client = False
    LACKS: ClassVar[Mapping[Need, str]] = NEW_FACTORS
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "unchanged clients leave the state unchanged": "a tier below 1 sends back its first kernels only, and their sum replaces the "
        "full weights: what the truncation cut off is gone",
    }

    def width(self, tier: Tier) -> float:
        return 1.0

    def outputs(self, tier: Tier) -> float:
        return 1.0

    @property
    def hands_momentum(self) -> bool:
        return False

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        return self, state

    def factorized(self, tier: Tier) -> bool:
        return tier.ratio < 1

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a client trains: at all channels, only its kernels make it small."""
        return self.network(architecture, tier)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        return self.factored(state, tier, personal, client)

    def chosen(self, layer: KernelLayer, values: Tensor, tier: Tier, rng: np.random.Generator) -> Tensor:
        """Return the first r kernels."""
        return torch.arange(layer.count)

    def energy_bands(self, state: GlobalState) -> Mapping[str, Sequence[float]]:
        tiers = [{layer.key: layer for layer in self._kernel_layers(state, tier)} for tier in sorted(state.tiers)]
        energies = {}
        for key, layer in {key: layer for layers in tiers for key, layer in layers.items()}.items():
            values = self._factors(state, layer).values
            ends = [layers[key].count if key in layers else len(values) for layers in tiers]
            energies[key] = band_energies(state.tensors[layer.target][layer.span].flatten(1), values, ends)
        return energies

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the mean of the clients' products U·V and dense tensors, with equal weights."""
        total = WeightedSum(state.tensors)
        for update in checked(self, state, updates):
            rest = dict(update.tensors)
            for layer in self._kernel_layers(state, update.tier):
                u, v = rest.pop(layer.u).flatten(1), rest.pop(layer.v)
                total.add(layer.target, torch.tensordot(u, v, 1), 1.0, (layer.span,))
            for name, tensor in rest.items():
                total.add(update.places[name].target, tensor, 1.0, update.places[name].index)
        return state.replace(total.mean(state.tensors))
