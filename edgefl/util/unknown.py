"""Sums, means and maxima of quantities of which some may be unknown (None): the whole is unknown if a part is."""

import statistics
from collections.abc import Iterable
from typing import cast


def known_sum(parts: Iterable[float | None]) -> float | None:
    """Return the sum of ``parts``, a whole number if they are; None if one of them is None.

    >>> known_sum([1, 2]), known_sum([1.5, None]), known_sum([])
    (3, None, 0)
    """
    known = _known(parts)
    return None if known is None else sum(known)


def known_mean(parts: Iterable[float | None]) -> float | None:
    """Return the mean of ``parts``, at least one; None if one of them is None.

    >>> known_mean([1, 2]), known_mean([1.5, None])
    (1.5, None)
    """
    known = _known(parts)
    return None if known is None else statistics.fmean(known)


def known_max(parts: Iterable[float | None]) -> float | None:
    """Return the largest of ``parts``, at least one; None if one of them is None.

    >>> known_max([1, 2]), known_max([1.5, None])
    (2, None)
    """
    known = _known(parts)
    return None if known is None else max(known)


def _known(parts: Iterable[float | None]) -> list[float] | None:
    values = list(parts)
    return None if None in values else cast(list[float], values)
