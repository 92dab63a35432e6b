"""yogi: adam with a second moment that changes slowly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.registry import server_optimizer
from edgefl.server.optimizers.adam import Adam


@server_optimizer("yogi", needs=("server_step",))
@dataclass(frozen=True)
class Yogi(Adam):
    """FedAdam with v ← v − (1 − β₂)·Δ²·sign(v − Δ²) (Reddi et al. 2021, Algorithm 2, FedYogi)."""

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v, given the one before and Δ²."""
        return before - (1 - self.beta2) * square * torch.sign(before - square)
