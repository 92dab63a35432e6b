"""FedAvg: the mean of the clients' weights, by their samples. Baselines at one width derive from it."""

from functools import partial

import numpy as np

from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import method


@method("fedavg")
class FedAvg(Method):
    """w ← Σ n_k w_k / Σ n_k over the clients k of a round, with weights w_k and n_k samples (McMahan et al. 2017, Algorithm 1).

    A client receives and sends all weights. With ``--tiers 0.5`` the global network itself has half the width: the "slimming model on all
    clients" of FedHM, section 4.1.
    """

    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017, Algorithm 1"
    tier_meaning = "one tier only: the width of the network that everyone trains"
    travels = "every weight, both ways"
    default_tiers = (1.0,)
    whole = False
    unlike_networks = True

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        return GlobalState.begun(architecture, tiers, rng, partial(self.network, architecture, tiers[0]))
