"""inflated: claims more samples than it has, so that its update weighs more."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary
from edgefl.registry import adversary


@adversary("inflated", needs=("uploads", "weighed_samples"))
@dataclass(frozen=True)
class Inflated(Adversary):
    """n·``times`` samples instead of n. With ``flip``, it also sends w₀ − (w − w₀): the weight alone does little harm.

    Attributes:
        times: how many times its samples it claims.
        flip: whether it sends the opposite of what it has learned.
    """

    times: Annotated[int, Field(ge=1, le=10**6)] = 100
    flip: bool = False

    claims: ClassVar[bool] = True

    def claimed(self, samples: int) -> int:
        """Return n·``times``."""
        return samples * self.times

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ − (w − w₀) with ``flip``, else w."""
        return start - (trained - start) if self.flip else trained
