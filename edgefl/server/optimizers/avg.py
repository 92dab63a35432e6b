"""avg: the aggregate of the updates, or a step towards it."""

from dataclasses import dataclass

from torch import Tensor

from edgefl.methods.state import Tensors
from edgefl.registry import server_optimizer
from edgefl.server.optimizer import ServerOptimizer


@server_optimizer("avg")
@dataclass(frozen=True)
class Average(ServerOptimizer):
    """w ← w + η·Δ; with η = 1 the aggregate itself (McMahan et al. 2017, FedAvg)."""

    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        """Return Δ."""
        return (delta,)

    def step(self, old: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the new tensors, and no slots. With η = 1 they are the aggregate itself, without rounding."""
        return (dict(aggregated), {}) if self.lr == 1.0 else super().step(old, aggregated, memory)


AVERAGE = Average(1.0)
"""FedAvg."""
