"""avg and avgm: the aggregate itself or a part of the way to it, and server momentum."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.registry import server_optimizer
from edgefl.server.optimizer import ServerOptimizer, Tensors


@server_optimizer("avg")
@dataclass(frozen=True)
class Average(ServerOptimizer):
    """w ← w + η·Δ; with η = 1 the aggregate itself (McMahan et al. 2017, FedAvg)."""

    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        """Return Δ."""
        return (delta,)

    def step(self, old: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the aggregate, without a rounding, if η = 1."""
        return (dict(aggregated), {}) if self.lr == 1.0 else super().step(old, aggregated, memory)


AVERAGE = Average(1.0)
"""FedAvg."""


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
        """Return m, which is remembered too."""
        momentum = self.beta1 * slots[0] + delta
        return momentum, momentum
