"""What a run's summary says about its differential privacy, in words."""

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


def privacy_facts(summary: Json) -> list[tuple[str, str]]:
    """Return the rows of a report about privacy: none without it."""
    if not (text := privacy_text(summary)):
        return []
    reason = summary["privacy"]["unsampled"]
    sampled = (
        f"not counted: {reason}"
        if reason
        else f"{summary['privacy']['drawn']} of {summary['clients']} clients a round, in secret"
    )
    return [("privacy", text), ("random choice of clients", sampled)]
