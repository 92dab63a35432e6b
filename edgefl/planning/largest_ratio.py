"""The largest tier that fits: a search over ratios."""

from collections.abc import Callable, Collection
from functools import cache
from itertools import pairwise

from edgefl.methods.base import Method
from edgefl.methods.networks import skeleton
from edgefl.models.base import Architecture
from edgefl.records import Tier

STEPS = 1000
"""Ratios are multiples of 1/1000, unless a method needs coarser ones."""


def largest_ratio(fits: Callable[[float], bool], parts: Callable[[float], Collection[str]], steps: int = STEPS) -> float | None:
    """Return the largest multiple of 1/``steps`` in (0, 1] that fits, or None if none does.

    Args:
        fits: whether a ratio fits. While a network only gains ``parts``, its needs grow with the ratio.
        parts: the names of the parameters at a ratio. Factors that give way to a dense layer are parts lost, and needs may fall: a layer
            with a stride, for one, can take fewer MACs dense. Each range of ratios without such a loss is searched by bisection.
        steps: how fine the ratios are.

    >>> largest_ratio(lambda ratio: ratio <= 0.4375, lambda ratio: ["weight"])
    0.437
    >>> largest_ratio(lambda ratio: ratio <= 0.3 or 0.5 <= ratio <= 0.7, lambda ratio: ["u", "v"] if ratio < 0.5 else ["weight"])
    0.7
    """
    if fits(1.0):
        return 1.0
    names = cache(lambda step: frozenset(parts(step / steps)))

    def losses(low: int, high: int) -> list[int]:
        if names(low) <= names(high):
            return []
        middle = (low + high) // 2
        return [high] if high - low == 1 else losses(low, middle) + losses(middle, high)

    starts = [1, *losses(1, steps - 1)]
    for low, high in reversed([*pairwise([*starts, steps])]):
        if fits(low / steps):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle / steps) else (low, middle)
            return low / steps
    return None


def parts_of(method: Method, architecture: Architecture, ratio: float) -> set[str]:
    """Return the names of the parameters of a tier's network."""
    return {name for name, _ in skeleton(method, architecture, Tier(ratio)).named_parameters()}
