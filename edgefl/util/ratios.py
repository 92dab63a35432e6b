"""The ratios of tiers that belong together."""

from itertools import pairwise
from typing import Any


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Raise ValueError unless ``ratios`` can be the tiers of a run: one or more in (0, 1], each name once, largest first.

    >>> check_ratios((1, 0.5))
    >>> check_ratios((0.5, 1))
    Traceback (most recent call last):
    ValueError: expected each tier once, largest first: 1,0.5
    """
    if not ratios:
        raise ValueError("expected at least one tier")
    for ratio in ratios:
        if not 0 < ratio <= 1:
            raise ValueError(f"a tier lies in (0, 1], got {ratio:g}")
    ordered = tuple(sorted(set(ratios), reverse=True))
    if ordered != tuple(ratios):
        raise ValueError(f"expected each tier once, largest first: {','.join(f'{r:g}' for r in ordered)}")
    for larger, smaller in pairwise(ordered):
        if (label := f"{larger:g}") == f"{smaller:g}":  # files and tables name a tier by six digits
            raise ValueError(f"{larger!r} and {smaller!r} have one name, {label}; give ratios that differ within six digits")


def ratio_in(tier: Any) -> float:
    """Return the ratio of a tier that a number or a text names, at the precision of its name; ValueError unless it lies in (0, 1].

    >>> ratio_in("0.250"), ratio_in(1)
    (0.25, 1.0)
    """
    try:
        ratio = float(f"{float(tier):g}")
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected the ratio of a tier, such as 0.25, got {tier!r}") from None
    check_ratios((ratio,))
    return ratio
