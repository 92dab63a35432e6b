"""The differential privacy of a run in words, from its summary."""

from collections.abc import Sequence

from edgefl.contrib.privacy.records import OfPrivacy, PrivacyResult
from edgefl.registry import section
from edgefl.report.added import added
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary, RunSummary
from edgefl.report.section import Section

_WHOM = {
    "central": "every client, by noise of the server",
    "local": "every client, by its own noise",
    "example": "every sample, by DP-SGD",
}


def privacy_text(spent: PrivacyResult) -> str:
    """Return ε and δ of a run, whom they protect and by how much noise.

    >>> privacy_text(PrivacyResult("local", clip=0.1, noise_multiplier=6.5, delta=1e-5, epsilon=8.0, drawn=5, unsampled=""))
    'ε = 8 at δ = 1e-05 protects every client, by its own noise: 6.5 times the clip of 0.1'
    """
    noise = f"{spent.noise_multiplier:g} times the clip of {spent.clip:g}"
    return f"ε = {spent.epsilon:.4g} at δ = {spent.delta:g} protects {_WHOM[spent.level]}: {noise}"


@section("privacy", place=2)
def privacy_section(summary: AnySummary, rounds: Sequence[RoundLine]) -> Section | None:
    """Return what a run has spent of its privacy; None without it."""
    if not isinstance(summary, RunSummary) or (spent := added(summary, OfPrivacy).privacy) is None:
        return None
    drawn = f"{spent.drawn} of {summary.clients} clients a round, in secret"
    sampled = f"not counted: {spent.unsampled}" if spent.unsampled else drawn
    bundle = "bundle: its graphs train without clipping and noise, so devices send no updates"
    text = privacy_text(spent)
    return Section(facts=(("privacy", text), ("random choice of clients", sampled)), remarks=(f"privacy: {text}", bundle))
