"""scaled: sends a change that is too large, so that its model replaces the average."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary
from edgefl.registry import adversary


@adversary("scaled", needs=("uploads",))
@dataclass(frozen=True)
class ScaledChange(Adversary):
    """w₀ + γ·(w − w₀), model replacement with γ = ``scale`` (Bagdasaryan et al. 2020).

    Attributes:
        scale: factor γ of the change; the number of clients in a round replaces their average.
    """

    scale: Annotated[float, Field(gt=0)] = 10.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ + γ·(w − w₀)."""
        return start + self.scale * (trained - start)
