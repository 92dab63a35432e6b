"""The largest uniform ratio that fits a budget, found by tracing sub-models until one fits."""

from __future__ import annotations

from collections.abc import Callable

STEPS = 1000
"""Ratios are multiples of 1/1000."""

_LEVELS = (0.8, 0.6, 0.45, 0.33, 0.22, 0.12, 0.06, 0.03, 0.01, 1 / STEPS)


def largest_ratio(fits: Callable[[float], bool]) -> float | None:
    """Return the largest multiple of 0.001 in (0, 1] that fits, or None where not even 0.001 does.

    The whole network is tried first: beside it a factorized one can need more memory. Below it the search goes down ten levels and
    then halves the way back up to the last that did not fit, so that what is returned fits, and the next step above it does not.

    >>> largest_ratio(lambda ratio: ratio <= 0.4375), largest_ratio(lambda ratio: True), largest_ratio(lambda ratio: False)
    (0.437, 1.0, None)
    """
    if fits(1.0):
        return 1.0
    above = 1.0
    for level in _LEVELS:
        if fits(level):
            low, high = round(level * STEPS), round(above * STEPS)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle / STEPS) else (low, middle)
            return low / STEPS
        above = level
    return None
