"""Figures in words: means and spreads over seeds, paired differences, sizes, and the sentences that say how a table's runs were made."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counters.markdown import table

from papers.paired import Alone, difference, has_capacity, in_points
from papers.runs import FULL, SMALLEST, Entry

NONE = "–"
STALE = "†"
Measure = Callable[[Mapping[str, Any]], float]
"""Takes one number out of a run's figures."""


def percent(values: Sequence[float]) -> str:
    """Return mean ± sample standard deviation of shares, in percent; one value stands alone, none is a dash.

    >>> percent([0.80, 0.82, 0.84]), percent([0.5]), percent([])
    ('82.0 ± 2.0', '50.0', '–')
    """
    if not values:
        return NONE
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}"


def size(amount: float | None, unit: str = "") -> str:
    """Return three digits with k, M, G or T.

    >>> size(285_186), size(1.25e9, "B"), size(999_600), size(12), size(None)
    ('285 k', '1.25 GB', '1 M', '12', '–')
    """
    if amount is None:
        return NONE
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= 0.9995 * factor:
            return f"{amount / factor:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}".rstrip()


def at_tier(tier: str = "global") -> Measure:
    """Return the measure of a tier's accuracy; KeyError where a run has no such tier."""
    return lambda figures: float(figures["accuracy"][tier])


def late(tier: str, what: str = "mean") -> Measure:
    """Return the measure of a tier's accuracy over the late rounds: their mean, or their best."""
    return lambda figures: float(figures["late"][what][tier])


def local(figures: Mapping[str, Any]) -> float:
    """Return the mean accuracy over clients, with the models that they receive."""
    return float(figures["local_accuracy"])


def local_after(figures: Mapping[str, Any]) -> float:
    """Return the mean accuracy over clients, with the models that they have after their last local training."""
    return float(figures["local_accuracy_after"])


ORDERINGS = (
    "Orderings: differences in points, paired by seed, ± standard error. *Shown* and *reversed*: above and below zero by Student's t for "
    "the number of seeds. Of rows that are equal, 5 % are shown or reversed by chance."
)
BEFORE_AND_AFTER = (
    "*Accuracy*: the mean over clients, each on its own held-out samples, with the model that it receives after the last aggregation. "
    "*After training*: with the model that the client has right after its last local training."
)


def mean_of_tiers(figures: Mapping[str, Any]) -> float:
    """Return the mean accuracy over tiers."""
    return statistics.mean(figures["accuracy"][label] for label in figures["tiers"])


class Figures:
    """The stored runs of one table, asked by row and column. What comes from stale runs ends with a dagger."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries

    def of(self, row: str, column: str | None = None) -> list[Entry]:
        """Return the entries of a row: of one column, or of all."""
        return [entry for entry in self.entries if entry["row"] == row and column in (None, entry["column"])]

    def values(self, row: str, column: str | None, read: Measure) -> dict[int, float]:
        """Return seed → what ``read`` takes from a run's figures, without runs that do not have it."""
        found: dict[int, float] = {}
        for entry in self.of(row, column):
            try:
                found[entry["seed"]] = read(entry["figures"])
            except KeyError:
                continue  # a stale run with other tiers
        return found

    def alone(self, column: str, full: str = FULL, smallest: str = SMALLEST, read: Measure = at_tier()) -> Alone:  # noqa: B008
        """Return what tells whether there is capacity to lose: the values of the full network alone and of the smallest tier alone."""
        return self.values(full, column, read), self.values(smallest, column, read)

    def measured(self, row: str, column: str, read: Measure) -> str:
        """Return mean ± spread of an accuracy."""
        return self._marked(percent(list(self.values(row, column, read).values())), [row], column)

    def accuracy(self, row: str, column: str, tier: str = "global") -> str:
        """Return mean ± spread of a tier's accuracy."""
        return self.measured(row, column, at_tier(tier))

    def local(self, row: str, column: str) -> tuple[str, str]:
        """Return mean ± spread of the mean accuracy over clients: with the models that they receive, and after local training."""
        return self.measured(row, column, local), self.measured(row, column, local_after)

    def paired(self, above: str, below: str, column: str, read: Measure) -> str:
        """Return the paired difference of two rows with its standard error and verdict."""
        one, other = (self.values(row, column, read) for row in (above, below))
        return self._marked(in_points(difference(one, other)), [above, below], column)

    def mean(self, row: str, column: str | None, read: Measure) -> float | None:
        """Return the mean over seeds of what ``read`` takes from an entry's figures; None without entries."""
        found = list(self.values(row, column, read).values())
        return statistics.mean(found) if found else None

    def cost(self, row: str, column: str | None, tier: str, key: str) -> float | None:
        """Return a cost of one client's round at a tier."""
        return self.mean(row, column, lambda figures: figures["tiers"][tier][key])

    def bytes_of_round(self, row: str, column: str | None, tier: str) -> float | None:
        """Return what travels down and up in one client's round."""
        return self.mean(row, column, lambda f: f["tiers"][tier]["download_bytes"] + f["tiers"][tier]["upload_bytes"])

    def total(self, row: str, column: str | None, *keys: str) -> float | None:
        """Return a total over all rounds and clients; several keys are added."""
        return self.mean(row, column, lambda figures: sum(figures["total"][key] for key in keys))

    def traffic(self, row: str, column: str | None = None) -> str:
        """Return all bytes of a run, both ways."""
        return size(self.total(row, column, "download_bytes", "upload_bytes"), "B")

    def setting(self, row: str, key: str) -> Any:
        """Return a setting of a row's first run, None without one."""
        found = self.of(row)
        return found[0]["settings"].get(key) if found else None

    def _marked(self, text: str, rows: Sequence[str], column: str) -> str:
        stale = any(entry.get("stale") for row in rows for entry in self.of(row, column))
        return f"{text} {STALE}" if stale and text != NONE else text


def before_and_after(columns: Sequence[str]) -> dict[str, tuple[str, Measure]]:
    """Return what :func:`orderings` compares in each of ``columns``: the mean over clients, before and after local training."""
    before = {column: (column, local) for column in columns}
    return {**before, **{f"{column}, after training": (column, local_after) for column in columns}}


def orderings(
    found: Figures,
    pairs: Sequence[tuple[str, str]],
    measures: Mapping[str, tuple[str, Measure]],
    alone: Mapping[str, Alone] | None = None,
) -> str:
    """Return the table of the orderings that a paper claims or that a reader asks for: for each pair (above, below) the paired differences.

    ``measures`` maps a title to a column and what is compared there. ``alone`` tells of each column whether there is capacity to lose;
    where there is none, no ordering is printed. None: the rows do not differ in size.
    """
    tied = dict.fromkeys(column for column, _ in measures.values() if alone is not None and not has_capacity(*alone[column]))
    able = {title: of for title, of in measures.items() if of[0] not in tied}
    said = [f"No orderings for {' and '.join(tied)}: tiers cannot be compared there."] if tied else []
    if able:
        lines = [
            [f"{above} above {below}", *(found.paired(above, below, column, read) for column, read in able.values())]
            for above, below in pairs
        ]
        said = [f"{ORDERINGS}{' ' if said else ''}{''.join(said)}", table(["", *able], lines)]
    return "\n\n".join(said)
