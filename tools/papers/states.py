"""Which runs of a table are stored, stale or still to be trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from papers.runs import Entry, Run, kind_of, seeded
from papers.tuning import Tuning, current


@dataclass(frozen=True)
class Table:
    """The runs of one table at one scale.

    Attributes:
        runs: every run, each once per seed.
        tuning: how their rates are chosen; None: the settings are fixed.
    """

    runs: Sequence[Run]
    tuning: Tuning | None = None

    def of_seeds(self, seeds: Iterable[int]) -> Table:
        """Return the same table with other seeds."""
        first = self.runs[0].seed if self.runs else 0
        return replace(self, runs=seeded([run for run in self.runs if run.seed == first], seeds))

    def resolved(self, entries: Sequence[Entry]) -> dict[tuple[str, str], Run | None]:
        """Return row and column → the run with its chosen settings; None while its trials are not all there."""
        found: dict[tuple[str, str], Run | None] = {}
        for run in self.runs:
            if (place := (run.row, run.column)) not in found:
                found[place] = run if self.tuning is None else self.tuning.resolved(run, entries, self.runs)
        return found

    def trials(self, entries: Sequence[Entry], of: Sequence[Run] | None = None) -> list[Run]:
        """Return the trials that are missing or stale: those of all runs, or those that choose the settings of the runs ``of``."""
        if self.tuning is None:
            return []
        once = {(run.row, run.column): run for run in reversed(self.runs if of is None else of)}
        if self.tuning.common:
            once = dict(list(once.items())[:1])  # whose trials are those of all rows
        wanted = [trial for run in reversed(once.values()) for trial in self.tuning.wanted(run, entries, self.runs)]
        every = {(trial.row, trial.column, *trial.tried.values()): trial for trial in wanted}
        return missing(entries, list(every.values()))

    def left(self, entries: Sequence[Entry]) -> list[Run]:
        """Return the runs that are missing or stale and whose trials are all there, seed by seed, those that take longest first."""
        resolved = self.resolved(entries)
        ready = [own.at_seed(run.seed) for run in self.runs if (own := resolved[run.row, run.column]) is not None]
        return sorted(missing(entries, ready), key=lambda run: (run.seed, -run.work))

    def missing(self, entries: Sequence[Entry]) -> list[Run]:
        """Return the runs that are missing or stale, also those whose trials are."""
        resolved = self.resolved(entries)
        ready = {(run.row, run.column, run.seed) for run in self.left(entries)}
        return [run for run in self.runs if resolved[run.row, run.column] is None or (run.row, run.column, run.seed) in ready]

    def shown(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return the stored runs of the table's cells, of any seed, each with ``stale``: made by other settings or other code."""
        resolved = self.resolved(entries)
        locals_ = {(run.row, run.column): run.local for run in self.runs}
        found = []
        for entry in entries:
            place = entry["row"], entry["column"]
            if kind_of(entry) == "run" and locals_.get(place) == entry["local"]:
                own = resolved[place]
                stale = own is None or current(own.at_seed(entry["seed"]), entry) is None
                found.append({**entry, "stale": stale})
        return found

    def complete(self, entries: Sequence[Entry]) -> bool:
        """Whether every cell has a stored run for every seed, stale or not."""
        stored = {(entry["row"], entry["column"], entry["seed"]) for entry in self.shown(entries)}
        return all((run.row, run.column, run.seed) in stored for run in self.runs)


def missing(entries: Sequence[Entry], runs: Sequence[Run]) -> list[Run]:
    """Return the runs without a current entry."""
    by_place: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        by_place.setdefault((entry["row"], entry["column"], kind_of(entry)), []).append(entry)
    return [
        run
        for run in runs
        if not any(current(run, entry) is not None for entry in by_place.get((run.row, run.column, run.kind), []))
    ]
