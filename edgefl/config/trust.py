"""Keys of what the server believes of updates."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator

from edgefl.config.field import Count, Keys, Positive, key, known
from edgefl.registry import defences

T = TypeVar("T")
TRUST = "Trust in updates"
"""Heading of these keys in the command line's help."""


SCREENING = (
    *("sample_cap", "clip_norm", "clip_start", "clip_quantile", "clip_rate"),
    *("defence", "defence_strength", "outliers"),
)
"""The keys of the server's screening, which a round with real devices may change."""


def _none_if_off(given: T) -> T | None:
    return None if given == "off" else given


class TrustKeys(Keys):
    """Keys of what the server believes of updates."""

    sample_cap: Count | Literal["auto", "off"] = key(
        "auto",
        TRUST,
        "Most samples that an update counts for; auto: three times the round's median if devices claim their counts, and no cap if the "
        "server knows them.",
        "N|auto|off",
    )
    clip_norm: Annotated[Positive | Literal["adaptive", "off"] | None, AfterValidator(_none_if_off)] = key(
        None,
        TRUST,
        "Largest norm of a client's change; larger changes are scaled down; adaptive: a bound per tier. [off]",
        "X|adaptive|off",
    )
    clip_start: Positive = key(1.0, TRUST, "Bound of --clip-norm adaptive in the first round.")
    clip_quantile: float = key(0.5, TRUST, "Share of changes that --clip-norm adaptive does not clip.", gt=0, lt=1)
    clip_rate: Positive = key(0.2, TRUST, "Rate of --clip-norm adaptive: a round changes its bound by at most e^X.")
    defence: Annotated[str, known(defences)] = key(
        "none", TRUST, "How the server screens updates that differ from the others.", names=defences
    )
    defence_strength: Positive | None = key(
        None,
        TRUST,
        "For trimmed-mean, krum and multi-krum: the share of hostile updates; for norm-filter: the allowed multiple of the median norm. "
        "[0.2; norm-filter: 3]",
    )
    outliers: bool = key(
        False,
        TRUST,
        "Report how much each update differs from the others of its tier; the server holds all updates of a round. [no]",
    )
