"""What a run's summary says about its differential privacy, in words."""

from collections.abc import Sequence

from edgefl.registry import section
from edgefl.report.section import Section
from edgefl.report.words import Json

_WHOM = {
    "central": "every client, by noise of the server",
    "local": "every client, by its own noise",
    "example": "every sample, by DP-SGD",
}


def privacy_text(summary: Json) -> str:
    """Return ε and δ of a run, whom they protect and by how much noise; "" without privacy.

    >>> privacy_text({"privacy": {"level": "local", "epsilon": 8.0, "delta": 1e-5, "noise_multiplier": 6.5, "clip": 0.1}})
    'ε = 8 at δ = 1e-05 protects every client, by its own noise: 6.5 times the clip of 0.1'
    """
    if not (spent := summary.get("privacy")):
        return ""
    noise = f"{spent['noise_multiplier']:g} times the clip of {spent['clip']:g}"
    return f"ε = {spent['epsilon']:.4g} at δ = {spent['delta']:g} protects {_WHOM[spent['level']]}: {noise}"


@section("privacy", place=2)
def privacy_section(summary: Json, rounds: Sequence[Json]) -> Section | None:
    """Return what a run has spent of its privacy; None without it."""
    if not (text := privacy_text(summary)):
        return None
    spent, clients = summary["privacy"], summary["clients"]
    drawn = f"{spent['drawn']} of {clients} clients a round, in secret"
    sampled = f"not counted: {spent['unsampled']}" if spent["unsampled"] else drawn
    bundle = "bundle: its graphs train without clipping and noise, so devices send no updates"
    return Section(facts=(("privacy", text), ("random choice of clients", sampled)), remarks=(bundle,))
