"""Rates and normalisation of every row, chosen on a part of the training samples: the test samples are used once, by the final runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from papers.inputs import of_this_code
from papers.runs import Entry, Run, kind_of

SEED = 1000
"""Of all trials: no seed of a table, so that no final run repeats the draws of a trial."""
MOST_RATES = 8
"""A grid grows up to this size."""


@dataclass(frozen=True)
class Tuning:
    """The grid that every row of a table is tuned over.

    Attributes:
        rates: learning rates; of equal accuracies the first counts.
        grows: whether the next rate is tried as well while the best one is at the grid's edge.
        norms: norm layers; empty: the model's own.
        length: rounds of a trial, as a share of the run's.
        share: validation samples, as a share of the training samples.
        column: where all columns of a row are tuned; None: each column is tuned by itself.
        common: whether all rows have the settings of the best mean over the rows; a setting with which one diverges is out.
        same: row → the row whose runs it shares in ``column``, and so its trials.
        fixed: rows whose rates are given.
    """

    rates: tuple[float, ...]
    norms: tuple[str, ...] = ()
    length: float = 0.2
    share: float = 0.1
    column: str | None = None
    common: bool = False
    same: Mapping[str, str] = field(default_factory=dict)
    grows: bool = False
    fixed: frozenset[str] = frozenset()

    def grid(self, rates: Sequence[float]) -> list[dict[str, Any]]:
        """Return all combinations of settings."""
        return [{"lr": lr, **norm} for norm in ([{"norm": norm} for norm in self.norms] or [{}]) for lr in rates]

    def trials(self, run: Run, rates: Sequence[float] = ()) -> list[Run]:
        """Return the trials that choose the settings of ``run``: the same ones for all of its seeds. ``rates``: others than the first."""
        rounds = max(1, math.ceil(self.length * run.settings["rounds"]))
        common = {**run.settings, "seed": SEED, "rounds": rounds, "eval_every": rounds, "validation_share": self.share}
        common.pop("eval_samples", None)
        return [replace(run, settings={**common, **point}, kind="trial", since=0) for point in self.grid(rates or self.rates)]

    def tuned(self, run: Run, runs: Sequence[Run]) -> list[Run]:
        """Return the runs, among all of a table, whose trials choose the settings of ``run``."""
        column = self.column or run.column
        once = {other.row: other for other in reversed(runs) if other.column == column}
        if self.common:
            return list(once.values())[::-1]
        return [once.get(self.same.get(run.row, run.row), run)]

    def resolved(self, run: Run, entries: Sequence[Entry], runs: Sequence[Run] = ()) -> Run | None:
        """Return ``run``, one of ``runs``, with the best settings among stored trials; None while a trial is missing or stale.

        Raises:
            ValueError: with every setting, a trial or a whole run has diverged.
        """
        if run.row in self.fixed:
            return run
        tuned = self.tuned(run, runs)
        rates, results = self._grown(tuned, entries)
        if results is None:
            return None
        if (best := _best(results)) is None:
            raise ValueError(f"{run.row}, {run.column}: all settings of the trials have diverged: give the table smaller rates")
        choice = {key: value for key, value in best.items() if key != "accuracy"}
        chosen = {
            "choice": choice,
            "validation": results,
            "share": self.share,
            "rounds": self.trials(tuned[0])[0].settings["rounds"],
            **({"grown": list(rates[len(self.rates) :])} if len(rates) > len(self.rates) else {}),
            **({"rows": [one.row for one in tuned]} if self.common else {}),
            **({"column": tuned[0].column} if tuned[0].column != run.column else {}),
        }
        return replace(run, settings={**run.settings, **choice}, chosen=chosen)

    def wanted(self, run: Run, entries: Sequence[Entry], runs: Sequence[Run] = ()) -> list[Run]:
        """Return all trials that choose the settings of ``run``, one of ``runs``, as far as stored trials tell."""
        if run.row in self.fixed:
            return []
        tuned = self.tuned(run, runs)
        rates = self._grown(tuned, entries)[0] if self.grows else self.rates
        return [trial for one in tuned for trial in self.trials(one, rates)]

    def _grown(self, tuned: Sequence[Run], entries: Sequence[Entry]) -> tuple[tuple[float, ...], list[dict[str, Any]] | None]:
        """Return the rates of the grid for ``tuned`` rows, and its results; None while a trial is missing or stale."""
        stored = {name: entry for entry in entries if kind_of(entry) == "trial" and (name := _key(entry)) is not None}
        rates = self.rates
        while (results := self._results(tuned, stored, rates)) is not None:
            more = beyond(best["lr"], rates) if self.grows and (best := _best(results)) is not None else None
            if more is None or len(rates) == MOST_RATES:
                break
            rates = (*rates, more)
        return rates, results

    def _results(
        self, tuned: Sequence[Run], stored: Mapping[tuple[Any, ...], Entry], rates: Sequence[float]
    ) -> list[dict[str, Any]] | None:
        """Return each point of the grid with its mean accuracy over ``tuned`` rows; None while a trial is missing or stale."""
        found: list[Entry] = []
        for trial in (trial for one in tuned for trial in self.trials(one, rates)):
            if (entry := current(trial, stored.get(_key(trial.stored({}, "")), {}))) is None:
                return None
            found.append(entry)
        grid = self.grid(rates)
        return [
            {**point, "accuracy": _mean([entry["figures"]["score"] for entry in found[place :: len(grid)]])}
            for place, point in enumerate(grid)
        ]


def beyond(rate: float, rates: Sequence[float]) -> float | None:
    """Return the rate that follows ``rate`` if it is the largest or the smallest of ``rates``, in steps of about 3; None if it is neither.

    >>> beyond(0.3, (0.1, 0.3)), beyond(0.03, (0.1, 0.03)), beyond(0.1, (0.3, 0.1, 0.03))
    (1.0, 0.01, None)
    """
    thrice = f"{rate:e}".startswith("3")
    if rate == max(rates):
        return float(f"{rate * (10 / 3 if thrice else 3):.0e}")
    return float(f"{rate / (3 if thrice else 10 / 3):.0e}") if rate == min(rates) else None


def _best(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first of the most accurate results; None if all have diverged."""
    able = [result for result in results if result["accuracy"] is not None]
    return max(able, key=lambda result: result["accuracy"]) if able else None


def _mean(scores: Sequence[float | None]) -> float | None:
    """Return the mean of scores; None if a trial has none."""
    able = [score for score in scores if score is not None]
    return statistics.mean(able) if len(able) == len(scores) else None


def _key(entry: Entry) -> tuple[Any, ...]:
    settings = entry["settings"]
    return entry["row"], entry["column"], entry["local"], settings.get("lr"), settings.get("norm")


def excluded(run: Run, line: Entry, why: str) -> dict[str, Any]:
    """Return a stored ``line``; the trial that chose the settings of ``run`` loses its score, because the whole run has diverged."""
    if not chose(run, line) or line["figures"]["score"] is None:
        return dict(line)
    lost = {"score": None, "score_before": line["figures"]["score"], "diverged": f"the whole run with seed {run.seed}: {why}"}
    return {**line, "figures": {**line["figures"], **lost}}


def chose(run: Run, line: Entry) -> bool:
    """Return whether a stored ``line`` is the trial that chose the settings of ``run``."""
    if run.chosen is None or kind_of(line) != "trial":
        return False
    tuned = replace(run, column=run.chosen.get("column", run.column))
    return _key(line) == _key(tuned.stored({}, ""))


def current(run: Run, entry: Entry) -> Entry | None:
    """Return ``entry`` if it has the settings of ``run`` and this checkout's code gives its figures; else None."""
    if not entry or not run.is_stored_as(entry) or not of_this_code(run.settings, entry):
        return None
    return entry


def score(figures: Mapping[str, Any]) -> float:
    """Return the accuracy by which trials are compared: clients' own after training where it is measured, else the mean over tiers."""
    if figures["local_accuracy"] is not None:
        return float(figures["local_accuracy_after"])
    return statistics.mean(figures["accuracy"][label] for label in figures["tiers"])
