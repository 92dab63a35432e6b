"""fresh: each client once before any twice."""

from dataclasses import dataclass

import numpy as np

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


@sampler("fresh")
@dataclass(frozen=True)
class Fresh(Sampler):
    """Clients that have sent the fewest updates come first, in random order."""

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return the candidates with the fewest updates."""
        return candidates[np.argsort(known.rounds[candidates], kind="stable")[:count]]
