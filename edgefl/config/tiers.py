"""Keys of tiers and who gets which."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from edgefl.config.field import Keys, key

TIERS = "Tiers"
"""Heading of these keys in the command line's help."""


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Raise ValueError unless ``ratios`` can be the tiers of a run: one or more in (0, 1], each name once, largest first."""
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


def _ordered(tiers: Any) -> Any:
    if isinstance(tiers, tuple):
        check_ratios(tiers)
    return tiers


class TiersKeys(Keys):
    """Keys of tiers and who gets which."""

    tiers: Annotated[tuple[float, ...] | Literal["auto"] | None, AfterValidator(_ordered)] = key(
        None,
        TIERS,
        "Sizes of sub-models, largest first; auto: the largest that fits each class. [the method's own]",
        "1,0.5,0.25|auto",
    )
    tier_assignment: Literal["auto", "uniform", "dynamic"] = key(
        "auto",
        TIERS,
        "auto: the largest tier that fits the class; uniform: a random fitting tier per client; dynamic: drawn anew every round.",
    )
    tier_shares: tuple[float, ...] | None = key(
        None, TIERS, "Shares of clients at each tier, unless assigned by auto. [equal]", "0.5,0.3,0.2"
    )
