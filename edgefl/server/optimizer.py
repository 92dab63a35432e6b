"""What the server does with an aggregated round: take it, or treat the change as a gradient.

Δ = aggregated − old, with the slots m and v of every tensor (Reddi et al. 2021, Adaptive Federated Optimization, Algorithm 2):

======== =====================================================================================
``avg``  w ← w + η·Δ; with η = 1 the aggregate itself (FedAvg)
``avgm`` m ← β₁·m + Δ;            w ← w + η·m (Hsu et al. 2019)
``adam`` m ← β₁·m + (1 − β₁)·Δ,   v ← β₂·v + (1 − β₂)·Δ²,              w ← w + η·m/(√v + τ)
``yogi`` the same m,              v ← v − (1 − β₂)·Δ²·sign(v − Δ²),    w ← w + η·m/(√v + τ)
======== =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]

SLOT = "optimizer:"
_LR = {"avg": 1.0, "avgm": 1.0, "adam": 0.01, "yogi": 0.01}


@dataclass(frozen=True)
class ServerOptimizer:
    """One of the rules above; ``lr`` is η, ``beta1``, ``beta2`` and ``tau`` as FedPara uses them with FedAdam (its section C)."""

    name: str = "avg"
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @classmethod
    def of(cls, name: str, lr: float | None) -> ServerOptimizer:
        """Return the rule ``name`` with its usual rate, or ``lr``.

        >>> ServerOptimizer.of("adam", None).lr
        0.01
        """
        return cls(name, _LR[name] if lr is None else lr)

    def step(self, old: Tensors, aggregated: Tensors, slots: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the new tensors and slots; server memory of single clients (``client/…``) is taken as it is.

        >>> old, new = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
        >>> tensors, slots = ServerOptimizer("avgm").step(old, new, {})
        >>> ServerOptimizer("avgm").step(tensors, {"w": torch.ones(1)}, slots)[0]["w"]
        tensor([1.9000])
        """
        if self.name == "avg" and self.lr == 1.0:
            return dict(aggregated), {}
        tensors, kept = {}, {}
        for name, after in aggregated.items():
            before = old.get(name)
            if before is None or name.startswith("client/") or before.shape != after.shape or not after.is_floating_point():
                tensors[name] = after
                continue
            first, second = (slots.get(f"{SLOT}{slot}/{name}", torch.zeros_like(after)) for slot in "mv")
            change, first, second = self._change(after - before, first, second)
            tensors[name] = before + self.lr * change
            if self.name != "avg":
                kept[f"{SLOT}m/{name}"] = first
            if self.name in ("adam", "yogi"):
                kept[f"{SLOT}v/{name}"] = second
        return tensors, kept

    def _change(self, delta: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.name == "avg":
            return delta, first, second
        if self.name == "avgm":
            first = self.beta1 * first + delta
            return first, first, second
        first = self.beta1 * first + (1 - self.beta1) * delta
        square = delta.square()
        if self.name == "adam":
            second = self.beta2 * second + (1 - self.beta2) * square
        else:
            second = second - (1 - self.beta2) * square * torch.sign(second - square)
        return first / (second.sqrt() + self.tau), first, second


AVERAGE = ServerOptimizer()
"""FedAvg: the aggregate itself."""
