"""avgm: server momentum."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.registry import server_optimizer
from edgefl.server.optimizer import ServerOptimizer


@server_optimizer("avgm", needs=("server_step",))
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """m ← β₁·m + Δ; w ← w + η·m (Hsu et al. 2019, FedAvgM).

    Attributes:
        beta1: β₁.
    """

    beta1: float = 0.9

    slots: ClassVar[tuple[str, ...]] = ("m",)

    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        """Return m as the change and as the slot."""
        momentum = self.beta1 * slots[0] + delta
        return momentum, momentum
