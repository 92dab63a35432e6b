"""power-of-choice: of a few random candidates, those with the highest loss."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


@sampler("power-of-choice")
@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """d candidates are drawn at random; those with the highest last training loss are asked.

    Cho et al. 2022, Towards Understanding Biased Client Selection in Federated Learning: π_rpow-d, with the losses that clients reported
    when they trained last. Differs from the paper: candidates are drawn uniformly, not by samples; a client that has reported no loss comes
    first.

    Attributes:
        candidates: d; a round that asks more clients draws twice as many as it asks.
    """

    candidates: Annotated[int, Field(ge=1)] = 20

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return the clients with the highest losses of the first d candidates."""
        drawn = candidates[: self.candidates if self.candidates >= count else 2 * count]
        losses = np.nan_to_num(known.losses[drawn], nan=np.inf)
        return drawn[np.argsort(-losses, kind="stable")[:count]]
