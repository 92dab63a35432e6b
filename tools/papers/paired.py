"""Paired comparisons in words: differences in points with their standard errors, and whether there is capacity to lose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from edgefl.report.paired import ERRORS, Difference, difference

__all__ = ["Difference", "capacity", "chance", "difference", "in_points"]


def in_points(found: Difference | None) -> str:
    """Return a difference of shares in percentage points, with its standard error and verdict.

    >>> in_points(Difference(-0.0123, 0.004, 3)), in_points(Difference(0.02, None, 1)), in_points(None)
    ('−1.2 ± 0.4, reversed', '+2.0, not decided', '–')
    """
    if found is None:
        return "–"
    error = "" if found.error is None else f" ± {100 * found.error:.1f}"
    return f"{100 * found.mean:+z.1f}{error}, {found.verdict}".replace("-", "−")


def chance(seeds: int) -> float:
    """Return how often two equal rows are decided by chance: P(|t| ≥ 2) of Student's t with ``seeds`` − 1 degrees of freedom.

    >>> [round(chance(seeds), 3) for seeds in (2, 3, 5)]  # 1 − 2·arctan(2)/π, 1 − 2/√6
    [0.295, 0.184, 0.116]
    """
    free, steps = seeds - 1, 1000
    scale = math.exp(math.lgamma(seeds / 2) - math.lgamma(free / 2)) / math.sqrt(math.pi * free)
    at = [scale * (1 + (ERRORS * step / steps) ** 2 / free) ** (-seeds / 2) for step in range(steps + 1)]
    return 1 - 2 * ERRORS / steps * (math.fsum(at) - (at[0] + at[-1]) / 2)  # the trapezoidal rule


def capacity(full: Mapping[int, float], smallest: Mapping[int, float]) -> str:
    """Return the sentence that says whether the full network alone is above the smallest tier alone, at the seeds that both have.

    ``full`` and ``smallest`` are seed → share correct.
    """
    found = difference(full, smallest)
    if found is None:
        return "Capacity: the full network alone and the smallest tier alone have not both been run."
    of_full, of_smallest = (100 * statistics.mean(of[seed] for seed in full.keys() & smallest.keys()) for of in (full, smallest))
    figures = (
        f"Capacity: the full network alone reaches {of_full:.1f} %, the smallest tier alone {of_smallest:.1f} %. "
        f"The paired difference is {in_points(found).rpartition(', ')[0]} points"
    )
    if found.verdict == "shown":
        return f"{figures}. There is capacity to lose."
    if found.error is None:
        return f"{figures}. One seed does not decide whether there is capacity to lose."
    if found.verdict == "reversed":
        return f"{figures}. The smallest tier is the better one: **tiers cannot be compared here.**"
    return f"{figures}. They tie: **tiers cannot be compared here.**"
