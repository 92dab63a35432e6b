"""tifl: all clients of a round are about equally fast."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


@sampler("tifl")
@dataclass(frozen=True)
class TiFL(Sampler):
    """Clients are divided by the duration of their last session into groups of equal size; a round asks clients of one group.

    The group is drawn by its mean last loss, so that a group which learns less is asked more often. Clients without a session so far come
    first: a round measures them, as the paper's profiling does.

    Chai et al. 2020, TiFL: A Tier-based Federated Learning System, Algorithm 2. Differs from the paper: losses of training stand for
    accuracies on test data, which a server does not have; groups have no credits; a group with too few eligible clients is filled from the
    next slower one.

    Attributes:
        groups: number of groups.
    """

    groups: Annotated[int, Field(ge=1)] = 5

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return clients that were not measured, else clients of one group."""
        durations_s = known.durations_s[candidates]
        new, old = candidates[np.isnan(durations_s)], candidates[~np.isnan(durations_s)]
        if len(new) >= count or not len(old):
            return new[:count]
        ordered = old[np.argsort(known.durations_s[old], kind="stable")]
        parts = [part for part in np.array_split(ordered, self.groups) if len(part)]
        first = int(rng.choice(len(parts), p=self._shares(parts, known)))
        order = [*parts[first:], *reversed(parts[:first])]
        return np.concatenate([new, *(rng.permutation(part) for part in order)])[:count]

    def _shares(self, parts: list[np.ndarray], known: Known) -> np.ndarray:
        """Return the probability of each group."""
        losses = [known.losses[part][np.isfinite(known.losses[part])] for part in parts]
        reported = np.concatenate(losses)
        usual = float(reported.mean()) if len(reported) else 1.0
        weights = np.maximum([float(values.mean()) if len(values) else usual for values in losses], 1e-12)
        return np.asarray(weights / weights.sum())
