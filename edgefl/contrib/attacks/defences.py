"""The defences: robust aggregation of a round's updates."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from edgefl.records import Update
from edgefl.registry import defence
from edgefl.server.coordinates import Changes, Gaps, middle_of
from edgefl.server.defence import Centre, Defence, Filter

_FEW = 3


@defence("none")
@dataclass(frozen=True)
class NoDefence(Defence):
    """Updates are aggregated as they are. It assumes that every client is honest."""

    passes: ClassVar[bool] = True

    def defended(self, changes: Changes) -> list[Update]:
        return list(changes.updates)


@defence("median", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class Median(Centre):
    """Every coordinate changes by the median of its holders' changes; of an even number, by the mean of the two in the middle.

    It assumes that less than half of the clients that hold a coordinate are hostile, and that honest clients change it alike. If labels
    are spread unevenly, the median loses what only a minority of clients learns. A coordinate that one client holds changes as that
    client says, and of two clients the mean is taken: there is no defence for them. Samples do not weigh. The strength has no meaning.

    Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    Differs from the paper: it takes the median of gradients; here it is that of the changes of several local steps.

    >>> Median(0.0).centre(torch.tensor([[1.0, 5.0], [2.0, 7.0], [-90.0, 6.0]]).double()).tolist()
    [1.0, 6.0]
    """

    def centre(self, values: Tensor) -> Tensor:
        return middle_of(values)


@defence("trimmed-mean", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class TrimmedMean(Centre):
    """Every coordinate changes by the mean of its holders' changes, without the ⌈βk⌉ largest and ⌈βk⌉ smallest of k.

    The strength is β, the share of hostile clients that it expects among the holders of a coordinate. It assumes that honest clients change
    a coordinate alike. At most ⌊(k − 1)/2⌋ are cut off at each end: three clients give their median, two their mean, and one its own
    change. Samples do not weigh.

    Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    Differs from the paper: βk is rounded up, so that few holders are defended too.

    >>> TrimmedMean(0.2).centre(torch.tensor([[1.0], [3.0], [-90.0], [2.0], [80.0]]).double()).tolist()
    [2.0]
    """

    usual_strength: ClassVar[float] = 0.2
    most: ClassVar[float | None] = 0.5

    def centre(self, values: Tensor) -> Tensor:
        count = len(values)
        cut = min(math.ceil(self.strength * count - 1e-9), (count - 1) // 2)
        return values.sort(0).values[cut : count - cut].mean(0)


@defence("norm-filter", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class NormFilter(Filter):
    """An update is dropped if the norm of its change is more than κ times the median norm of its tier.

    The strength is κ. It assumes that less than half of a tier is hostile and that honest changes have norms of one size. It cannot see
    attacks with changes of usual size, such as reversed ones. A tier with one or two clients is compared with the norms of the whole
    round: the values of a smaller tier change more, and there are fewer of them.

    Sun et al. 2019, Can You Really Backdoor Federated Learning? Differs from the paper: it
    scales a large change down to a given bound, as ``--clip-norm`` does; here the update is dropped, and the bound is a multiple of the
    median.
    """

    usual_strength: ClassVar[float] = 3.0

    def kept(self, gaps: Gaps) -> list[int]:
        positions, norms = [], gaps.rms if gaps.norms is None else gaps.norms
        for position, tier in enumerate(gaps.tiers):
            in_tier = torch.tensor([other == tier for other in gaps.tiers])
            sizes, peers = (gaps.rms, in_tier) if int(in_tier.sum()) >= _FEW else (norms, in_tier | True)
            if float(sizes[position]) <= self.strength * float(sizes[peers].quantile(0.5)):
                positions.append(position)
        return positions or [int(gaps.rms.argmin())]


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


def nearest_updates(gaps: Gaps, share: float) -> list[int]:
    """Return the positions of the n − f updates with the best scores, best first."""
    count = len(gaps.tiers)
    hostile = expected_hostile(share, count)
    scores = scores_of(gaps.distances, hostile)
    return sorted(range(count), key=lambda position: (scores[position], position))[: count - hostile]


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
        return nearest_updates(gaps, self.strength)


@defence("krum", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class Krum(MultiKrum):
    """Of each tier, the one update is aggregated that lies nearest to its neighbours; a tier that is among the f worst has none.

    Strength, assumptions and distances are those of ``multi-krum``. Since one update per tier remains, the model learns from few clients
    each round. Other entries keep their values.

    Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. Differs from the
    paper: it takes one update in all, and tiers of unlike shapes need one each; f is a share of the updates that arrive.
    """

    def kept(self, gaps: Gaps) -> list[int]:
        best: dict[object, int] = {}
        for position in super().kept(gaps):
            best.setdefault(gaps.tiers[position], position)
        return list(best.values())
