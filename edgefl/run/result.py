"""What a run returns to its caller, and what it tells the caller meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.records import RoundRecord
from edgefl.report.results import Results, validated
from edgefl.report.run_files import TierRow

OnRound = Callable[[RoundRecord], None]
"""Called with the record of every round."""
Notify = Callable[[str], None]
"""Called with a line of text for the user."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: where it was written.
        summary: the content of ``summary.json``: accuracies, costs per tier, budgets per device class, totals.
    """

    folder: Path
    summary: Mapping[str, Any]

    @property
    def global_accuracy(self) -> float:
        """Share of held-out samples that the global model classifies correctly."""
        return float(self.summary["global_accuracy"])

    @property
    def tiers(self) -> Results[TierRow]:
        """One row per tier, largest first: accuracy, costs, bytes, simulated seconds and joules."""
        return Results(validated(TierRow, row) for row in self.summary["tiers"])

    def to_dict(self) -> dict[str, Any]:
        """Return the summary and ``folder`` as JSON has them."""
        return {"folder": str(self.folder), **self.summary}

    def to_pandas(self) -> Any:
        """Return the tiers as a ``pandas.DataFrame`` with a row each."""
        return self.tiers.to_pandas()
