"""Paired comparisons: the difference of two rows at each seed, its interval and p value, and what they decide.

Rows that share partition, clients and draws at a seed are pairs. Most of the spread over seeds is common to them and cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

Verdict = Literal["shown", "reversed", "not decided"]
Test = Literal["Student's t", "permutation"]
K = TypeVar("K", bound=Hashable)
_T: Test = "Student's t"
_PERMUTATION: Test = "permutation"

LEVEL = 0.05
"""An ordering is decided if its p value, after the correction for the number of pairs, is below this."""
_EXACT = range(6, 17)
"""Numbers of seeds for which all signs of the differences are tried: fewer are too coarse, and with more both tests agree."""


@dataclass(frozen=True)
class Difference:
    """One row minus another, over the seeds that both have.

    Attributes:
        mean: of the differences, in the unit of the values.
        error: the standard error of the mean; None with a single seed.
        seeds: how many seeds both rows have.
        p: chance of a mean at least as far from zero if the rows are equal; None with a single seed.
        test: where ``p`` comes from.
        low, high: the 95 % interval of the mean by Student's t, of this pair alone; None with a single seed.
    """

    mean: float
    error: float | None
    seeds: int
    p: float | None = None
    test: Test = _T
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the ordering (the difference is positive) is shown, reversed, or not decided by these seeds."""
        return verdict_of(self.mean, self.p)


def verdict_of(mean: float, p: float | None) -> Verdict:
    """Return what a mean difference and its p value decide.

    >>> verdict_of(2.0, 0.04), verdict_of(-2.0, 0.04), verdict_of(2.0, 0.05), verdict_of(9.0, None)
    ('shown', 'reversed', 'not decided', 'not decided')
    """
    if p is None or p >= LEVEL:
        return "not decided"
    return "shown" if mean > 0 else "reversed"


def difference(above: Mapping[int, float], below: Mapping[int, float], pairs: int = 1) -> Difference | None:
    """Return the paired difference of ``above`` minus ``below`` (seed → value); None if they have no seed in common.

    The test is Student's t, with one degree of freedom less than there are seeds. From six seeds on it is the exact permutation test,
    which tries all signs of the differences, as soon as its smallest p value times the number of ``pairs`` that are compared can decide.
    Equal differences have no spread to judge by; the permutation test judges them, too.

    >>> found = difference({0: 5.0, 1: 7.0, 2: 9.0}, {0: 4.0, 1: 5.0, 2: 6.0})
    >>> found.mean, round(found.error, 3), round(found.p, 4), found.verdict
    (2.0, 0.577, 0.0742, 'not decided')
    """
    common = sorted(above.keys() & below.keys())
    if not common:
        return None
    found = [above[seed] - below[seed] for seed in common]
    mean, n = statistics.fmean(found), len(found)
    if n < 2:
        return Difference(mean, None, n)
    error = statistics.stdev(found) / math.sqrt(n)
    if error <= 1e-12 * abs(mean) or (n in _EXACT and 2 * pairs / 2**n < LEVEL):
        p, test = permutation_p(found), _PERMUTATION
    else:
        p, test = 2 * t_below(-abs(mean) / error, n - 1), _T
    reach = t_quantile(1 - LEVEL / 2, n - 1) * error
    return Difference(mean, error, n, p, test, mean - reach, mean + reach)


def permutation_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of the exact paired permutation test: the share of signs with a sum at least as far from zero.

    Beyond 16 differences, which come here only if they are all equal, the share is that of the two extreme choices of signs.

    >>> permutation_p([1.0, 2.0, 3.0]), permutation_p([1.0, -1.0])
    (0.25, 1.0)
    """
    n, total = len(differences), abs(math.fsum(differences))
    if n >= _EXACT.stop:
        return 2.0 ** (1 - n) if total else 1.0
    signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    sums = np.abs(signs @ np.array(differences))
    return float(np.mean(sums >= total - 1e-9 * (total or 1.0)))


def t_below(t: float, free: int) -> float:
    """Return the chance that Student's t with ``free`` degrees of freedom is below ``t``.

    >>> round(2 * t_below(-2.0, 2), 3)
    0.184
    """
    from scipy.special import stdtr  # imported here, because it takes long and only comparisons need it

    return float(stdtr(free, t))


def t_quantile(share: float, free: int) -> float:
    """Return what Student's t with ``free`` degrees of freedom is below with the chance ``share``.

    >>> round(t_quantile(0.975, 2), 3)
    4.303
    """
    from scipy.special import stdtrit

    return float(stdtrit(free, share))


def holm(values: Mapping[K, float | None]) -> dict[K, float | None]:
    """Return p values after Holm's correction: with it, any false decision among all pairs has at most the chance :data:`LEVEL`.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    {'a': 0.03, 'b': 0.06, 'c': 0.06, 'd': None}
    """
    known = sorted(((p, key) for key, p in values.items() if p is not None), key=lambda pair: pair[0])
    found: dict[K, float | None] = dict.fromkeys(values)
    least = 0.0
    for place, (p, key) in enumerate(known):
        least = max(least, min(1.0, (len(known) - place) * p))
        found[key] = least
    return found
