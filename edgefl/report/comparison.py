"""The result of a comparison: means over seeds, accuracy over what was spent, and what each method spent to reach one accuracy."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgefl.records import ACCURACY, Metric
from edgefl.report.added import with_added
from edgefl.report.comparison_budget import BudgetSummary, Rule, budget_summary
from edgefl.report.comparison_clock import clocks_of
from edgefl.report.evaluated import CountedRun, RankBy, counted_run
from edgefl.report.metric import reaches, worst_of
from edgefl.report.results import Result
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_budget import RunBudget
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import TierRow
from edgefl.report.words import statuses_of, tier_label
from edgefl.util.unknown import known_mean
from edgefl.version import __version__

Json = Mapping[str, Any]
FORMAT = 2
"""Of ``compare.json``."""


@dataclass(frozen=True)
class Played:
    """One finished run: the content of its ``summary.json`` and ``rounds.jsonl``."""

    seed: int
    summary: RunSummary
    rounds: Sequence[RoundLine]


@dataclass(frozen=True)
class Failure:
    """A run that failed, and why."""

    seed: int
    reason: str


@dataclass(frozen=True)
class Spread:
    """Values over seeds.

    Attributes:
        mean: their mean.
        sd: their sample standard deviation; None for a single value.
        values: one value per seed.

    >>> Spread.of([1.0, 3.0]).mean, Spread.of([1.0]).sd
    (2.0, None)
    """

    mean: float
    sd: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, tuple(values))

    @property
    def spread(self) -> float | None:
        """The standard deviation."""
        return self.sd


@dataclass(frozen=True)
class Spent:
    """What a method had spent up to the end of a round: bytes both ways, MACs, the clock and energy, None if that is unknown."""

    round: int
    bytes: float
    macs: float
    simulated_s: float
    energy_j: float | None


@dataclass(frozen=True)
class CurvePoint(Spent):
    """One evaluated round: means over the runs of what was spent so far and of the accuracy, and the accuracy's range."""

    accuracy: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class MethodResult(Result):
    """One method of a comparison with its figures, which are None or empty without a finished run.

    Attributes:
        label: how it was asked for: ``fedhm``, ``fedavg@0.5``.
        options: of the method; ``settings`` are keys of the run that it has for itself.
        folders: those of finished runs that were given; empty if the comparison made the runs.
        accuracy_of: "global" (the global model) or "clients" (mean over clients).
        score: what methods are ranked by, after the last round: :attr:`edgefl.report.comparison_budget.BudgetSummary.rank_by`.
        accuracy: accuracy of the global model after the last round, in [0, 1].
        accuracy_after_training: mean over the last round's clients, each with the model that it has just trained, on its own held-out
            samples; None unless every run evaluated them.
        tier_accuracy: tier → its accuracy after the last round, in the runs in which some client trained it.
        statuses: status → how many sessions ended in it, in all runs.
        untrained_tiers: tier → the seeds of the runs in which no client trained it.
        params: tier → number of parameters.
        curve: one point per evaluated round, of what methods are ranked by.
        to_target: what was spent until the curve reached the target accuracy; None if it never did.
        bytes: bytes sent, down and up. This field and those of its kind are totals over the rounds; ``energy_j`` is None if it is unknown.
        epsilon: the largest ε that a run spent; None without noise.
    """

    label: str
    method: str
    title: str
    options: Json
    tiers_why: str
    failures: tuple[Failure, ...]
    settings: Json = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    tiers: tuple[float, ...] = ()
    accuracy_of: str | None = None
    score: Spread | None = None
    accuracy: Spread | None = None
    accuracy_after_training: Spread | None = None
    tier_accuracy: Mapping[str, Spread] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    untrained_tiers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    to_target: Spent | None = None
    bytes: Spread | None = None
    macs: Spread | None = None
    simulated_s: Spread | None = None
    energy_j: Spread | None = None
    download_bytes: Spread | None = None
    upload_bytes: Spread | None = None
    host_s: Spread | None = None
    uncounted_ops: tuple[str, ...] = ()
    epsilon: float | None = None


@with_added
@dataclass(frozen=True)
class ComparisonSummary(Result):
    """The content of ``compare.json``: what all runs have in common (None where they differ, or if none finished), and a row per method.

    Attributes:
        target_accuracy: the lowest final accuracy among the methods, each the mean over its seeds, of what they are ranked by.
        verdict: which method is the best, within the budget if there is one.
        metric: what is under the keys of accuracy.
        defence: the robust aggregation; None: updates are not compared.
    """

    format: int
    edgefl_version: str
    model: str | None
    dataset: str | None
    fleet: str | None
    partition: str | None
    rounds: int | None
    clients: int | None
    per_round: int | None
    local_epochs: int | None
    batch_size: int | None
    objective: str | None
    server_optimizer: str | None
    codec: str | None
    permute_labels: bool | None
    deadline_s: float | None
    seeds: tuple[int, ...]
    tiers: tuple[float, ...] | str
    target_accuracy: float | None
    methods: tuple[MethodResult, ...]
    verdict: BudgetSummary
    metric: Metric = ACCURACY
    defence: str | None = None


_SPENT = tuple(field.name for field in fields(Spent))[1:]
_KEYS = [field.name for field in fields(ComparisonSummary)]
_COMMON = _KEYS[_KEYS.index("model") : _KEYS.index("seeds")]


def comparison_of(
    contenders: Sequence[tuple[MethodResult, Sequence[Played]]],
    seeds: Sequence[int],
    tiers: Sequence[float] | str,
    budget: RunBudget | None = None,
    target_accuracy: float | None = None,
    rank_by: RankBy = "clients",
) -> ComparisonSummary:
    """Return the content of ``compare.json`` from the methods with their finished runs.

    ``to_target`` is read from the mean curve of each method, at the first evaluated round with at least the target accuracy.
    """
    summaries = [played.summary for _, runs in contenders for played in runs]
    metric, clocks = (summaries[0].metric, clocks_of(summaries[0])) if summaries else (ACCURACY, {})
    rule = Rule(budget or RunBudget(), target_accuracy, rank_by if metric.share else "global", metric, clocks)
    counted = {row.label: [counted_run(of.seed, of.summary, of.rounds) for of in runs] for row, runs in contenders}
    rows = [_result(row, runs, counted[row.label], rule.rank_by) for row, runs in contenders]
    finals = [row.score.mean for row in rows if row.score]
    target = worst_of(metric)(finals) if finals else None
    return ComparisonSummary(
        FORMAT,
        __version__,
        **_common(summaries),
        seeds=tuple(seeds),
        tiers=tiers if isinstance(tiers, str) else tuple(tiers),
        target_accuracy=target,
        methods=tuple(replace(row, to_target=_reached(row.curve, target, metric)) for row in rows),
        verdict=budget_summary(counted, rule),
        metric=metric,
    )


def _common(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """Return what all runs have in common; None where they differ, as methods may have settings of their own."""
    found: dict[str, Any] = {}
    for key in _COMMON:
        values = [getattr(summary, key) for summary in summaries]
        found[key] = values[0] if values and all(value == values[0] for value in values) else None
    return found


def curve_of(runs: Sequence[CountedRun], rank_by: RankBy) -> tuple[CurvePoint, ...]:
    """Return a point per evaluated round of all runs of a method."""
    curve = []
    for points in zip(*(run.points for run in runs), strict=True):
        reached = [run.score(point, rank_by) for run, point in zip(runs, points, strict=True)]
        curve.append(
            CurvePoint(
                points[0].round,
                statistics.fmean(of.bytes for of in points),
                statistics.fmean(of.macs for of in points),
                statistics.fmean(of.simulated_s for of in points),
                known_mean(of.energy_j for of in points),
                *(statistics.fmean(reached), min(reached), max(reached)),
            )
        )
    return tuple(curve)


def _reached(curve: Sequence[CurvePoint], target: float | None, metric: Metric) -> Spent | None:
    """Return what was spent at the first point with the accuracy ``target``."""
    found = next((point for point in curve if target is not None and reaches(metric, point.accuracy, target)), None)
    return None if found is None else Spent(found.round, *(getattr(found, key) for key in _SPENT))


def _result(row: MethodResult, runs: Sequence[Played], counted: Sequence[CountedRun], rank_by: RankBy) -> MethodResult:
    """Return ``row`` with the figures of its finished ``runs``."""
    if not runs:
        return row
    last = [played.rounds[-1].accuracy for played in runs]
    tiers = _tiers(runs)
    trained = [_trained(played) for played in runs]
    after = [found for played in runs if (found := played.summary.accuracy_after_training) is not None]
    ends = [run.points[-1] for run in counted]
    totals: dict[str, list[Any]] = {key: [getattr(end, key) for end in ends] for key in _SPENT}
    totals = {key: [None if value is None else float(value) for value in values] for key, values in totals.items()}
    totals |= {key: [getattr(played.summary, key) for played in runs] for key in ("download_bytes", "upload_bytes", "host_s")}
    spreads: dict[str, Any] = {key: Spread.of(values) for key, values in totals.items() if None not in values}
    return replace(
        row,
        seeds=tuple(played.seed for played in runs),
        tiers=tuple(row.tier for row in tiers.values()),
        accuracy_of=runs[0].summary.accuracy_of,
        score=Spread.of([run.score(end, rank_by) for run, end in zip(counted, ends, strict=True)]),
        accuracy=Spread.of([accuracy["global"] for accuracy in last]),
        accuracy_after_training=Spread.of(after) if len(after) == len(runs) else None,
        tier_accuracy={
            label: Spread.of(values)
            for label in tiers
            if (values := [at[label] for at, own in zip(last, trained, strict=True) if label in own])
        },
        statuses=sum((statuses_of(played.summary) for played in runs), Counter()),
        untrained_tiers={
            label: idle
            for label in tiers
            if (idle := tuple(played.seed for played in runs if label in _labels(played) - _trained(played)))
        },
        params={label: row.params for label, row in tiers.items()},
        curve=curve_of(counted, rank_by),
        **spreads,
        uncounted_ops=tuple(sorted({name for row in tiers.values() for name in row.uncounted_ops})),
        epsilon=max((spent for played in runs if (spent := played.summary.epsilon) is not None), default=None),
    )


def _tiers(runs: Sequence[Played]) -> dict[str, TierRow]:
    """Return label → the first row of each tier, largest first. With tiers "auto" the runs may differ: shards depend on the seed."""
    rows = sorted((row for played in reversed(runs) for row in played.summary.tiers), key=lambda row: -row.tier)
    return {tier_label(row.tier): row for row in rows}


def _labels(played: Played) -> set[str]:
    return {tier_label(row.tier) for row in played.summary.tiers}


def _trained(played: Played) -> set[str]:
    """Return the tiers that some client trained in a run; older summaries do not say."""
    return {tier_label(row.tier) for row in played.summary.tiers if row.updates != 0}
