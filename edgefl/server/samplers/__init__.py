"""The client samplers: uniform and fresh. Those of papers have files of their own."""

from dataclasses import dataclass

import numpy as np

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


@sampler("uniform")
@dataclass(frozen=True)
class Uniform(Sampler):
    """Clients are drawn without replacement, all equally likely (McMahan et al. 2017, FedAvg)."""

    blind = True

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return the first candidates: their order is random."""
        return candidates[:count]


UNIFORM = Uniform()
"""The one object of this class that is needed."""


@sampler("fresh")
@dataclass(frozen=True)
class Fresh(Sampler):
    """Clients that have sent the fewest updates come first, in random order."""

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return the candidates with the fewest updates."""
        return candidates[np.argsort(known.rounds[candidates], kind="stable")[:count]]
