"""The privacy that a run has spent, in its summary."""

from dataclasses import dataclass
from typing import Literal

from edgefl.registry import added_fields
from edgefl.report.results import Result
from edgefl.report.run_rows import Number, Whole


@dataclass(frozen=True)
class PrivacyResult(Result):
    """The privacy that a run has spent.

    Attributes:
        level: whom noise protects.
        clip: C, the longest contribution; with bounds that adapt, the first one.
        noise_multiplier: z: noise has the standard deviation z·C.
        epsilon: ε(``delta``) after all rounds, of a client that takes part in each.
        drawn: how many clients a round draws at random, if that protects them too; None: it does not, for the reason ``unsampled``.
    """

    level: Literal["central", "local", "example"]
    clip: Number
    noise_multiplier: Number
    delta: Number
    epsilon: Number
    drawn: Whole | None
    unsampled: str


@added_fields("privacy", of="RunSummary")
@dataclass(frozen=True, kw_only=True)
class OfPrivacy:
    """The differential privacy that was spent; None: there was no noise."""

    privacy: PrivacyResult | None = None

    @property
    def epsilon(self) -> float | None:
        """ε that the run spent."""
        return None if self.privacy is None else self.privacy.epsilon

    @property
    def noise_multiplier(self) -> float | None:
        """Z of the run."""
        return None if self.privacy is None else self.privacy.noise_multiplier
