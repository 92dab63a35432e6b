"""avg, avgm, adam and yogi: the aggregate or a part of the way to it, momentum, and steps scaled by moments of the rounds before."""

from dataclasses import dataclass
from typing import ClassVar

import torch
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


@server_optimizer("adam", needs=("server_step",))
@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """m ← β₁·m + (1 − β₁)·Δ; v ← β₂·v + (1 − β₂)·Δ²; w ← w + η·m/(√v + τ) (Reddi et al. 2021, Algorithm 2, FedAdam).

    Attributes:
        beta1, beta2, tau: β₁, β₂ and τ, as FedPara uses them (its section C).
    """

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    usual_lr: ClassVar[float] = 0.01
    slots: ClassVar[tuple[str, ...]] = ("m", "v")

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
