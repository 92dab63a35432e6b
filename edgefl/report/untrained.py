"""Tiers of a run that no client trained: a sentence for the tables, and what to do about those that are of no use."""

from collections.abc import Iterable

from edgefl.report.metric import metric_of, metric_text
from edgefl.report.tables import Row
from edgefl.report.words import joined, tier_label, tiers_text

_MUCH_WORSE = 0.05
"""A tier that nobody trained is of no use if its accuracy is lower by more than this than that of every tier that was trained."""


def untrained_sentence(tiers: Iterable[Row]) -> str:
    """Return which ``tiers`` of a ``summary.json`` no client trained, and why; "" if all were trained, or none.

    >>> untrained_sentence([{"tier": 1, "updates": 30, "clients": 3}, {"tier": 0.25, "updates": 0, "clients": 0}])
    'No client trained tier 0.25: no device class takes it.'
    """
    rows = list(tiers)
    none = [row for row in rows if row.get("updates") == 0]
    if len(none) == len(rows):
        return ""
    idle, lost = [row["tier"] for row in none if _idle(row)], [row["tier"] for row in none if not _idle(row)]
    sentences = (
        f"No client trained {tiers_text(idle)}: no device class takes {'it' if len(idle) == 1 else 'them'}." if idle else "",
        f"No update of {tiers_text(lost)} was used." if lost else "",
    )
    return " ".join(filter(None, sentences))


def leave_out(summary: Row) -> str:
    """Return the advice to leave out tiers that no device class takes, and that are much worse than those that were trained; else ""."""
    metric, rows = metric_of(summary), summary["tiers"]
    known = [row for row in rows if row["accuracy"] is not None]
    trained = [row["accuracy"] for row in known if row.get("updates")]
    if not metric.share or not trained:
        return ""
    useless = [row for row in known if _idle(row) and row["accuracy"] < min(trained) - _MUCH_WORSE]
    if not useless:
        return ""
    kept = ",".join(tier_label(row["tier"]) for row in rows if row not in useless)
    reached = joined(metric_text(metric, row["accuracy"]) for row in useless)
    what = f"Leave out {tiers_text(row['tier'] for row in useless)} (--tiers {kept})"
    them, own = ("it", "its own it reaches") if len(useless) == 1 else ("them", "their own they reach")
    return f"{what}: no device class takes {them}, and without training of {own} {reached}."


def _idle(row: Row) -> bool:
    """Whether no client trained a tier because no device class takes it; where clients draw their tiers, ``clients`` is None."""
    return row.get("updates") == 0 and row["clients"] == 0
