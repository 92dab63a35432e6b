"""prox: FedProx, a pull towards the received weights."""

from dataclasses import dataclass

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("prox", needs=("received_weights",))
@dataclass(frozen=True)
class Prox(Objective):
    """μ/2·‖w − w₀‖² (Li et al. 2020, Eq. 2), μ = ``strength``."""
