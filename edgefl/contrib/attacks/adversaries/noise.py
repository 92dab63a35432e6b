"""noise: sends a random change."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary, scaled
from edgefl.registry import adversary


@adversary("noise", needs=("uploads",))
@dataclass(frozen=True)
class Noise(Adversary):
    """w₀ + N(0, σ²), the Gaussian attack (Blanchard et al. 2017).

    Differs from the paper: σ is not one number for all tensors, but ``scale`` times the root mean square of the change that it trained.

    Attributes:
        scale: standard deviation, in units of the root mean square of the trained change of the tensor.
    """

    scale: Annotated[float, Field(gt=0)] = 10.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ and a draw of N(0, σ²)."""
        return start + self.scale * scaled(rng, start, trained - start)
