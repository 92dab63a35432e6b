"""Paired comparisons: the difference of two rows at each seed, its mean and standard error, and what they decide.

Rows that share partition, clients and draws at a seed are pairs. Most of the spread over seeds is common to them and cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["shown", "reversed", "not decided"]
ERRORS = 2.0
"""An ordering is decided if the mean difference is this many standard errors from zero."""


@dataclass(frozen=True)
class Difference:
    """One row minus another, over the seeds that both have.

    Attributes:
        mean: of the differences, in the unit of the values.
        error: the standard error of the mean; None with a single seed.
        seeds: how many seeds both rows have.
    """

    mean: float
    error: float | None
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """Whether the ordering (the difference is positive) is shown, reversed, or not decided by these seeds.

        >>> Difference(2.0, 1.0, 3).verdict, Difference(-2.5, 1.0, 3).verdict, Difference(9.0, None, 1).verdict
        ('shown', 'reversed', 'not decided')
        """
        if self.error is None or self.mean == 0 or abs(self.mean) < ERRORS * self.error:
            return "not decided"
        return "shown" if self.mean > 0 else "reversed"


def difference(above: Mapping[int, float], below: Mapping[int, float]) -> Difference | None:
    """Return the paired difference of ``above`` minus ``below`` (seed → value); None if they have no seed in common.

    >>> difference({0: 5.0, 1: 7.0, 2: 9.0}, {0: 4.0, 1: 5.0, 2: 6.0})
    Difference(mean=2.0, error=0.5773502691896258, seeds=3)
    """
    common = sorted(above.keys() & below.keys())
    if not common:
        return None
    found = [above[seed] - below[seed] for seed in common]
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return Difference(statistics.mean(found), error, len(found))
