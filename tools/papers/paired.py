"""Paired comparisons in words: differences in points with their standard errors, and whether there is capacity to lose."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from edgefl.report.paired import Difference, difference

__all__ = ["Alone", "Difference", "capacity", "difference", "has_capacity", "in_points"]

Alone = tuple[Mapping[int, float], Mapping[int, float]]
"""Seed → share correct, of the full network alone and of the smallest tier alone."""


def in_points(found: Difference | None) -> str:
    """Return a difference of shares in percentage points, with its standard error and verdict.

    >>> in_points(Difference(-0.0123, 0.004, 3, p=0.04)), in_points(Difference(0.02, None, 1)), in_points(None)
    ('−1.2 ± 0.4, reversed', '+2.0, not decided', '–')
    """
    if found is None:
        return "–"
    error = "" if found.error is None else f" ± {100 * found.error:.1f}"
    return f"{100 * found.mean:+z.1f}{error}, {found.verdict}".replace("-", "−")


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


def has_capacity(full: Mapping[int, float], smallest: Mapping[int, float]) -> bool:
    """Whether the full network alone is shown to be above the smallest tier alone. Else tiers cannot be compared."""
    found = difference(full, smallest)
    return found is not None and found.verdict == "shown"
