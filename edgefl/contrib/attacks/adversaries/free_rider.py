"""free-rider: sends back what it received, and does not train."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary, scaled
from edgefl.registry import adversary


@adversary("free-rider", needs=("uploads",))
@dataclass(frozen=True)
class FreeRider(Adversary):
    """w₀ + N(0, σ²), a disguised free rider (Fraboni et al. 2021). It answers when a client that trains would, at no MACs.

    Differs from the paper: σ does not shrink over the rounds; it is ``noise`` times the root mean square of the tensor.

    Attributes:
        noise: standard deviation of the disguise, in units of the root mean square of the received tensor.
    """

    noise: Annotated[float, Field(ge=0)] = 0.001

    trains: ClassVar[bool] = False

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ and a draw of N(0, σ²)."""
        return start + self.noise * scaled(rng, start, start)
