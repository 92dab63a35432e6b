"""dyn: FedDyn, a dynamic regulariser."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("dyn", needs=("received_weights", "fixed_coordinates", "common_model", "rounds"))
@dataclass(frozen=True)
class Dyn(Objective):
    """α/2·‖w − w₀‖² − ⟨hₖ, w⟩ (Acar et al. 2021, Algorithm 1), α = ``strength``.

    After training, the client stores hₖ ← hₖ − α(w − w₀). The server stores h ← h − α/N·Σ(wₖ − w₀), where N is the number of all clients.
    Its new weights are the aggregate minus h/α.
    """

    remembers: ClassVar[bool] = True

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return hₖ."""
        return before - self.strength * moved

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return h."""
        return before - self.strength / clients * total

    def corrected(self, aggregated: Tensor, stored: Tensor) -> Tensor:
        """Return the aggregate minus h/α."""
        return aggregated - stored / self.strength
