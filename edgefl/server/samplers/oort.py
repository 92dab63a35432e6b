"""oort: clients that are useful and fast, and some new ones."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler

_CUT = 0.95  # clients with at least this share of the lowest utility that is needed may be drawn (section 4.3)
_DECAY = 0.98
Share = Annotated[float, Field(ge=0, le=1)]


@sampler("oort")
@dataclass(frozen=True)
class Oort(Sampler):
    """Clients are drawn by their utility U = n·loss + √(0.1·ln R / L), times (T/t)^α if a session takes t > T.

    n are the client's samples, L the round of its last update, R the present round. A share ε of the clients is new: they have sent no
    update so far. ε falls by 2 % a round, from ``explore`` down to ``least_explore``.

    Lai et al. 2021, Oort: Efficient Federated Learning via Guided Participant Selection, Algorithm 1. Differs from the paper: the mean loss
    stands for the root mean square of the samples' losses; T is a quantile of the known durations, which no pacer moves; new clients are
    drawn at random, since their speed is not known.

    Attributes:
        explore, least_explore: ε in the first round, and at least.
        penalty: α.
        fast: the share of the known durations that are at most T.
    """

    explore: Share = 0.9
    least_explore: Share = 0.2
    penalty: Annotated[float, Field(ge=0)] = 2.0
    fast: Share = 0.5

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return new clients, and others by their utility."""
        seen = np.isfinite(known.losses[candidates])
        old, new = candidates[seen], candidates[~seen]
        share = max(self.least_explore, self.explore * _DECAY ** (known.round - 1))
        wanted = min(count, len(candidates))
        explored = min(len(new), max(round(share * wanted), wanted - len(old)))
        return np.concatenate([new[:explored], self._useful(old, wanted - explored, known, rng)])

    def _useful(self, old: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return so many of the clients ``old``, drawn by their utility from those with the highest."""
        if not count:
            return old[:0]
        worth = self.utilities(old, known)
        cut = _CUT * np.sort(worth)[-count]
        able = np.flatnonzero(worth >= cut)
        weights = np.maximum(worth[able], 1e-12)
        return old[able[rng.choice(len(able), count, replace=False, p=weights / weights.sum())]]

    def utilities(self, clients: np.ndarray, known: Known) -> np.ndarray:
        """Return U of clients that have reported a loss, (n,) float64."""
        worth = known.samples[clients] * np.abs(known.losses[clients])
        worth = worth + np.sqrt(0.1 * np.log(max(known.round, 1)) / np.maximum(known.last[clients], 1))
        durations_s = known.durations_s[clients]
        preferred_s = np.nanquantile(known.durations_s, self.fast)
        slow = np.minimum(1.0, preferred_s / np.maximum(durations_s, 1e-12)) ** self.penalty
        return np.asarray(worth * slow)
