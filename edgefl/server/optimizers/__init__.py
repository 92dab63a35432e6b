"""The server optimizers: avg, avgm, adam and yogi."""

from dataclasses import dataclass
from typing import ClassVar

import torch
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


@server_optimizer("adam", needs=("server_step",))
@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """m ← β₁·m + (1 − β₁)·Δ; v ← β₂·v + (1 − β₂)·Δ²; w ← w + η·m/(√v + τ) (Reddi et al. 2021, Algorithm 2, FedAdam).

    Attributes:
        beta1: β₁; this and the other values are FedPara's (its section C).
        beta2: β₂.
        tau: τ, which bounds the step where v is small.
        start: v before the first round. None: τ², the least that Algorithm 2 allows. Flower's FedAdam and FedYogi begin with 0. Newer
            versions of FedAdam also scale η for that in the first rounds, which this does not.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    start: float | None = None

    usual_lr: ClassVar[float] = 0.01
    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    def first(self, slot: str) -> float:
        """Return 0 for m, and ``start`` for v."""
        if slot == "m":
            return 0.0
        return self.tau**2 if self.start is None else self.start

    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        """Return m/(√v + τ), m and v."""
        first = self.beta1 * slots[0] + (1 - self.beta1) * delta
        second = self.second(slots[1], delta.square())
        return first / (second.sqrt() + self.tau), first, second

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v, given the one before and Δ²."""
        return self.beta2 * before + (1 - self.beta2) * square


@server_optimizer("yogi", needs=("server_step",))
@dataclass(frozen=True)
class Yogi(Adam):
    """FedAdam with v ← v − (1 − β₂)·Δ²·sign(v − Δ²) (Reddi et al. 2021, Algorithm 2, FedYogi)."""

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v, given the one before and Δ²."""
        return before - (1 - self.beta2) * square * torch.sign(before - square)
