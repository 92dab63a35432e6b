"""Ranks of methods from their values at each seed: what the seeds decide, pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from edgefl.report.paired import LEVEL, Difference, Test, difference, holm
from edgefl.report.results import Result


@dataclass(frozen=True)
class Pair(Result):
    """Two methods of a comparison, the one with the better mean first.

    Attributes:
        mean: how much better it is, over the seeds that both have.
        error: the standard error of this mean; None with a single seed.
        low, high: its 95 % interval, of this pair alone.
        p: by ``test``; ``corrected_p`` is after Holm's correction for the number of pairs. None with a single seed.
        decided: whether the seeds decide which of the two is better.
    """

    above: str
    below: str
    mean: float
    error: float | None
    low: float | None
    high: float | None
    seeds: int
    test: Test
    p: float | None
    corrected_p: float | None
    decided: bool


def ranked(values: Mapping[str, Mapping[int, float]], sign: int = 1) -> tuple[dict[str, int], tuple[Pair, ...]]:
    """Return label → rank, best mean first, from label → seed → value, and all pairs; with the ``sign`` −1 low values are good.

    A method shares the rank of the best method before it unless their paired difference is decided, after Holm's correction for all pairs.
    One seed decides nothing.

    >>> ranks, pairs = ranked({"a": {0: 0.5, 1: 0.7, 2: 0.6}, "b": {0: 0.9, 1: 1.0, 2: 0.98}, "c": {0: 0.8, 1: 0.96, 2: 0.9}})
    >>> ranks, [(pair.above, pair.below, round(pair.corrected_p, 2)) for pair in pairs]
    ({'b': 1, 'c': 1, 'a': 3}, [('b', 'c', 0.05), ('b', 'a', 0.01), ('c', 'a', 0.01)])
    """
    order = sorted(values, key=lambda label: -sign * statistics.fmean(values[label].values()))
    pairs = _pairs(order, values, sign)
    decided = {(pair.above, pair.below) for pair in pairs if pair.decided}
    ranks: dict[str, int] = {}
    leader = ""
    for place, label in enumerate(order, start=1):
        if not leader or (leader, label) in decided:
            leader = label
            ranks[label] = place
        else:
            ranks[label] = ranks[leader]
    return ranks, pairs


def _pairs(order: list[str], values: Mapping[str, Mapping[int, float]], sign: int) -> tuple[Pair, ...]:
    count = len(order) * (len(order) - 1) // 2
    found: dict[tuple[str, str], Difference] = {}
    for above, below in combinations(order, 2):
        one, other = ({seed: sign * value for seed, value in values[label].items()} for label in (above, below))
        if (of_pair := difference(one, other, count)) is not None:
            found[above, below] = of_pair
    corrected = holm({pair: of.p for pair, of in found.items()})
    return tuple(_pair(pair, of, corrected[pair]) for pair, of in found.items())


def _pair(labels: tuple[str, str], of: Difference, corrected_p: float | None) -> Pair:
    # Methods that lack seeds are ordered by the means of the seeds that each has; those of the common seeds may say the opposite.
    decided = corrected_p is not None and corrected_p < LEVEL and of.mean > 0
    return Pair(*labels, of.mean, of.error, of.low, of.high, of.seeds, of.test, of.p, corrected_p, decided)
