"""krum and multi-krum: the updates that lie nearest to their neighbours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.registry import defence
from edgefl.server.coordinates import Gaps
from edgefl.server.defence import Filter


def expected_hostile(share: float, count: int) -> int:
    """Return f for ``count`` updates: ⌈share · n⌉, but at most ⌊(n − 3)/2⌋, since Krum needs n ≥ 2f + 3.

    >>> [expected_hostile(0.2, n) for n in (1, 4, 5, 10, 20)]
    [0, 0, 1, 2, 4]
    """
    return max(0, min(math.ceil(share * count - 1e-9), (count - 3) // 2))


def scores_of(distances: Tensor, hostile: int) -> list[float]:
    """Return Krum's score of each update, the mean of its distances to the nearest of the c others that it shares coordinates with.

    These are c − f − 1 updates, at least one, which is n − f − 2 if all tiers share coordinates. An update without others has infinity.
    """
    scores = []
    for position, row in enumerate(distances.tolist()):
        others = sorted(d for other, d in enumerate(row) if other != position and not math.isnan(d))
        nearest = others[: max(1, len(others) - hostile - 1)]
        scores.append(math.fsum(nearest) / len(nearest) if nearest else math.inf)
    return scores


def nearest_updates(gaps: Gaps, share: float) -> tuple[list[int], Sequence[float]]:
    """Return the positions of the n − f updates with the best scores, best first, and all scores."""
    count = len(gaps.tiers)
    hostile = expected_hostile(share, count)
    scores = scores_of(gaps.distances, hostile)
    return sorted(range(count), key=lambda position: (scores[position], position))[: count - hostile], scores


@defence("multi-krum", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class MultiKrum(Filter):
    """The f updates that lie farthest from their nearest neighbours are dropped; the other n − f are aggregated.

    The strength is the share of hostile updates that it expects. f follows from it, see :func:`expected_hostile`. It assumes that honest
    clients change shared coordinates alike, and that hostile ones are fewer than f. It drops f honest updates in a round without hostile
    ones. With fewer than 5 updates it keeps all. Distances are mean squared differences over the coordinates that two clients share, of all
    tiers. A tier with a single client is judged by what it shares with others. An update that shares nothing is dropped first.

    Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. Differs from the
    paper: f is a share of the updates that arrive, and distances are means over shared coordinates.
    """

    usual_strength: ClassVar[float] = 0.2
    most: ClassVar[float | None] = 0.5

    def kept(self, gaps: Gaps) -> list[int]:
        return nearest_updates(gaps, self.strength)[0]


@defence("krum", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class Krum(Filter):
    """Of each tier, the one update is aggregated that lies nearest to its neighbours; a tier that is among the f worst has none.

    Strength, assumptions and distances are those of ``multi-krum``. Since one update per tier remains, the model learns from few clients
    each round. Other entries keep their values.

    Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. Differs from the
    paper: it takes one update in all, and tiers of unlike shapes need one each; f is a share of the updates that arrive.
    """

    usual_strength: ClassVar[float] = 0.2
    most: ClassVar[float | None] = 0.5

    def kept(self, gaps: Gaps) -> list[int]:
        best: dict[object, int] = {}
        for position in nearest_updates(gaps, self.strength)[0]:
            best.setdefault(gaps.tiers[position], position)
        return list(best.values())
