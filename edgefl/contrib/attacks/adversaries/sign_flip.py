"""sign-flip: sends the opposite of what it has learned."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary
from edgefl.registry import adversary


@adversary("sign-flip", needs=("uploads",))
@dataclass(frozen=True)
class SignFlip(Adversary):
    """w₀ − k·(w − w₀), where w₀ was received, w was trained, and k is ``scale`` (Li et al. 2019, the sign-flipping attack).

    Attributes:
        scale: factor k of the change.
    """

    scale: Annotated[float, Field(gt=0)] = 1.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ − k·(w − w₀)."""
        return start - self.scale * (trained - start)
