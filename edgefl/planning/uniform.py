"""The largest uniform ratio that fits a budget."""

from __future__ import annotations

from collections.abc import Callable

STEPS = 1000
"""Ratios are multiples of 1/1000."""


def largest_ratio(fits: Callable[[float], bool]) -> float | None:
    """Return the largest multiple of 0.001 in (0, 1] that fits, or None if even 0.001 does not.

    The whole network is tried first, because a factorized one can need more memory. Below it needs grow with the ratio: bisection.

    >>> largest_ratio(lambda ratio: ratio <= 0.4375), largest_ratio(lambda ratio: True), largest_ratio(lambda ratio: False)
    (0.437, 1.0, None)
    """
    if fits(1.0):
        return 1.0
    if not fits(1 / STEPS):
        return None
    low, high = 1, STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle / STEPS) else (low, middle)
    return low / STEPS
