"""What is said of a run's tiers: which no client trained, which are of no use, and what the larger ones hold."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from edgefl.report.metric import metric_text
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import TierRow
from edgefl.report.words import joined, tier_label, tiers_text
from edgefl.util.units import human_percent

IDLE = 0.01
"""A tier has learned almost nothing beyond a smaller one if its extra ranks have less than this share of the energy."""
_MUCH_WORSE = 0.05
"""A tier that nobody trained is of no use if its accuracy is lower by more than this than that of every tier that was trained."""


def tier_notes(tiers: Sequence[TierRow]) -> list[str]:
    """Return the sentences below the tiers of a summary: which were not trained, and what the larger ones hold."""
    return [note for note in (untrained_sentence(tiers), energy_sentence(tiers)) if note]


def untrained_sentence(tiers: Sequence[TierRow]) -> str:
    """Return which ``tiers`` of a run no client trained, and why; "" if all were trained, or none."""
    none = [row for row in tiers if row.updates == 0]
    if len(none) == len(tiers):
        return ""
    idle, lost = [row.tier for row in none if _idle(row)], [row.tier for row in none if not _idle(row)]
    sentences = (
        f"No client trained {tiers_text(idle)}: no device class takes {'it' if len(idle) == 1 else 'them'}." if idle else "",
        f"No update of {tiers_text(lost)} was used." if lost else "",
    )
    return " ".join(filter(None, sentences))


def leave_out(summary: RunSummary) -> str:
    """Return the advice to leave out tiers that no device class takes, and that are much worse than those that were trained; else ""."""
    metric, rows = summary.metric, summary.tiers
    known = [(row, row.accuracy) for row in rows if row.accuracy is not None]
    trained = [accuracy for row, accuracy in known if row.updates]
    if not metric.share or not trained:
        return ""
    useless = [row for row, accuracy in known if _idle(row) and accuracy < min(trained) - _MUCH_WORSE]
    if not useless:
        return ""
    kept = ",".join(tier_label(row.tier) for row in rows if row not in useless)
    reached = joined(metric_text(metric, row.accuracy) for row in useless)
    what = f"Leave out {tiers_text(row.tier for row in useless)} (--tiers {kept})"
    them, own = ("it", "its own it reaches") if len(useless) == 1 else ("them", "their own they reach")
    return f"{what}: no device class takes {them}, and without training of {own} {reached}."


def _idle(row: TierRow) -> bool:
    """Whether no client trained a tier because no device class takes it; where clients draw their tiers, ``clients`` is None."""
    return row.updates == 0 and row.clients == 0


def energy_sentence(tiers: Iterable[TierRow]) -> str:
    """Return what the larger ``tiers`` of a run hold beyond the smaller ones; "" if no layers are truncated.

    The energy of a layer is the sum of squares of its weight.
    """
    rows = sorted(((row, row.energy_share) for row in tiers if row.energy_share is not None), key=lambda pair: pair[0].tier)
    if len(rows) < 2:
        return ""
    held = list(accumulate(share for _, share in rows))
    largest, _ = rows[-1]
    for (row, _), of_row in zip(rows[:-1], held, strict=False):
        if (beyond := 1 - of_row / held[-1]) < IDLE:
            same, times = tier_label(row.tier), largest.macs_train_step / row.macs_train_step
            nothing = f"has learned almost nothing that tier {same} cannot hold, but costs {times:.1f} times the MACs"
            share = f"{human_percent(max(beyond, 0.0))} of the sum of squares of its factorized weights"
            return f"Tier {tier_label(largest.tier)} {nothing}: its extra ranks hold {share}."
    first, *others = ((tier_label(row.tier), human_percent(share)) for row, share in rows)
    added = ", ".join(f"{share} in those that tier {tier} adds" for tier, share in others)
    rest = f", {human_percent(1 - held[-1])} in ranks that no tier has" if 1 - held[-1] > 1e-6 else ""
    return f"Sum of squares of the factorized weights: {first[1]} in the ranks of tier {first[0]}, {added}{rest}."
