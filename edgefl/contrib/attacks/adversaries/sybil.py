"""sybil: one attacker under several names, all of which send the same random change."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary, scaled
from edgefl.registry import adversary


@adversary("sybil", needs=("uploads",))
@dataclass(frozen=True)
class Sybil(Adversary):
    """w₀ + N(0, σ²), the same draw for all adversaries of a round and tier (Douceur 2002), none of which trains.

    Updates that are equal to each other deceive defences that look for neighbours.

    Attributes:
        scale: standard deviation σ, in units of the root mean square of the received tensor.
    """

    scale: Annotated[float, Field(gt=0)] = 1.0

    trains: ClassVar[bool] = False
    together: ClassVar[bool] = True

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ and a draw of N(0, σ²)."""
        return start + self.scale * scaled(rng, start, start)
