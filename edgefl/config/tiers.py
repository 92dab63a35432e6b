"""Keys of tiers and who gets which."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from edgefl.config.field import Keys, key
from edgefl.util.ratios import check_ratios

TIERS = "Tiers"
"""Heading of these keys in the command line's help."""


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
