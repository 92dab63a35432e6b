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


@dataclass(frozen=True)
class Tuning:
    """The grid that every row of a table is tuned over.

    Attributes:
        rates: learning rates; of equal accuracies the first counts.
        norms: norm layers; empty: the model's own.
        length: rounds of a trial, as a share of the run's.
        share: validation samples, as a share of the training samples.
        column: where all columns of a row are tuned; None: each column is tuned by itself.
        common: whether all rows have the settings of the best mean over the rows; a setting with which one diverges is out.
        same: row → the row whose runs it shares in ``column``, and so its trials.
    """

    rates: tuple[float, ...]
    norms: tuple[str, ...] = ()
    length: float = 0.2
    share: float = 0.1
    column: str | None = None
    common: bool = False
    same: Mapping[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> list[dict[str, Any]]:
        """All combinations of settings."""
        return [{"lr": lr, **norm} for norm in ([{"norm": norm} for norm in self.norms] or [{}]) for lr in self.rates]

    def trials(self, run: Run) -> list[Run]:
        """Return the trials that choose the settings of ``run``: the same ones for all of its seeds."""
        rounds = max(1, math.ceil(self.length * run.settings["rounds"]))
        common = {**run.settings, "seed": SEED, "rounds": rounds, "eval_every": rounds, "validation_share": self.share}
        common.pop("eval_samples", None)
        return [replace(run, settings={**common, **point}, kind="trial") for point in self.grid]

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
        stored = {name: entry for entry in entries if kind_of(entry) == "trial" and (name := _key(entry)) is not None}
        tuned = self.tuned(run, runs)
        found: list[Entry] = []
        for trial in (trial for one in tuned for trial in self.trials(one)):
            if (entry := current(trial, stored.get(_key(trial.stored({}, "")), {}))) is None:
                return None
            found.append(entry)
        size = len(self.grid)
        results = [
            {**point, "accuracy": _mean([entry["figures"]["score"] for entry in found[place::size]])}
            for place, point in enumerate(self.grid)
        ]
        able = [result for result in results if result["accuracy"] is not None]
        if not able:
            raise ValueError(f"{run.row}, {run.column}: all settings of the trials have diverged: give the table smaller rates")
        best = max(able, key=lambda result: result["accuracy"])  # the first of several
        choice = {key: value for key, value in best.items() if key != "accuracy"}
        chosen = {
            "choice": choice,
            "validation": results,
            "share": self.share,
            "rounds": found[0]["settings"]["rounds"],
            **({"rows": [one.row for one in tuned]} if self.common else {}),
            **({"column": tuned[0].column} if tuned[0].column != run.column else {}),
        }
        return replace(run, settings={**run.settings, **choice}, chosen=chosen)


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
