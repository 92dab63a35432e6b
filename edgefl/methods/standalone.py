"""Stand-alone training: every client trains on its own data only. The baseline without federation."""

import copy
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from edgefl.methods.axes import Need
from edgefl.methods.networks import submodel_of
from edgefl.methods.personal import Personal
from edgefl.methods.state import GlobalState, Tensors
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture, loaded
from edgefl.records import Submodel, Tier, Update
from edgefl.registry import method

_NO_WEIGHTS = "nothing travels in stand-alone training: "


@method("standalone")
class StandAlone(Personal):
    """Every client trains the widest dense network that its device fits, on its own samples only. The server learns nothing.

    All clients of a tier begin with the same weights. The server's state has these under the names ``<tier>/<name>``, and deploys them for
    a client that never trained. Any federation must beat this baseline.
    """

    title = "Stand-alone"
    weighs_samples = False
    every_update = "clients send no tensors"
    paper = "no federation; the baseline of personalised federated learning, as in FedPara, Figure 5"
    tier_meaning = "width of the client's own network"
    travels = "nothing"
    stays = "the whole network"
    whole = False
    personalised = True
    unlike_networks = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the server takes no updates",
        "received_weights": _NO_WEIGHTS + "no weights arrive that a client could be pulled to",
        "common_model": _NO_WEIGHTS + "there is no common direction to correct a client's gradient towards",
        "server_step": _NO_WEIGHTS + "the server has no step to take",
        "shared_coordinates": _NO_WEIGHTS + "there are no updates to compare",
        "uploads": _NO_WEIGHTS + "there is nothing to compress",
        "changing_tiers": "a client's network has the width of its tier and lives on the client alone: with another tier it would be lost",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "one full-tier client alone wins outright": "nothing travels: the server learns nothing from a client, alone or not",
    }

    def personal(self, network: nn.Module) -> frozenset[str]:
        return frozenset(network.state_dict())

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        tensors: dict[str, Tensor] = {}
        for tier in tiers:
            first = self.first_personal(architecture, tier, copy.deepcopy(rng))  # tiers draw anew, as clients do
            tensors |= {f"{tier.label}/{name}": tensor for name, tensor in first.items()}
        return GlobalState(architecture, tiers, tensors)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        return submodel_of(self, state, tier, {}, {})

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Check that only sample counts arrived, and return the same state."""
        for _ in checked(self, state, updates):
            pass
        return state

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the client's own network, or the initial one if the client never trained."""
        network = self.network(state.architecture, tier)
        return loaded(network, personal or {name: state.tensors[f"{tier.label}/{name}"] for name in network.state_dict()})
