"""Who wins: the accuracy that each method reaches within a budget, or at the end of its runs, and what a target accuracy costs.

One rule decides which round of a run counts: its last evaluated round within all limits, each run by itself. Rank, lines, fronts and
sentences are made from these rounds, and nothing is interpolated. What is compared at a round is :meth:`CountedRun.score`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgefl.records import ACCURACY, Metric
from edgefl.report.clock_draws import ClockDraws
from edgefl.report.comparison_clock import DeviceClock, comparison_draws
from edgefl.report.evaluated import CountedRun, Evaluated, RankBy
from edgefl.report.metric import best_of, reaches
from edgefl.report.ranks import Pair, ranked
from edgefl.report.results import Result
from edgefl.report.run_budget import AXES, RunBudget
from edgefl.util.unknown import known_max

COSTS = (*AXES, "macs")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        error: its standard error; None for a single value.
        values: one value per seed.

    >>> Estimate.of([1.0, 3.0])
    Estimate(mean=2.0, error=1.0, values=(1.0, 3.0))
    """

    mean: float
    error: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the estimate from at least one value."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, tuple(values))

    @property
    def spread(self) -> float | None:
        """The standard error."""
        return self.error


@dataclass(frozen=True)
class ClassWithin:
    """One device class at the round that counts. Lists have one entry per run.

    Attributes:
        tiers: the largest that fits it with the data of each seed; None if none fits.
        runs: the tiers that its clients run, largest first; empty if they have no model.
        accuracy: of the models that its clients get; a client without a model counts as 0.
        refused: mean share of its clients that are refused.
        trained_share: share of its clients that had trained at least once.
    """

    device: str
    title: str
    clients: int
    tiers: tuple[float | None, ...]
    runs: tuple[tuple[str, ...], ...]
    accuracy: Estimate
    refused: float
    trained_share: Estimate


@dataclass(frozen=True)
class Step:
    """The accuracy of a method for every budget from ``cost`` on: the mean over its runs and its range, each run by its own last round."""

    cost: float
    accuracy: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class WithinBudget(Result):
    """One method under the budget. Lists have one entry per finished run, in the order of ``seeds``.

    Attributes:
        rank: 1 for the best accuracy; methods that the seeds cannot tell from the best of their rank share it. None: nothing fits.
        accuracy: what methods are ranked by, of the last evaluated models within the budget; None unless some round of every run fits.
        clients_accuracy, worst_accuracy, global_accuracy: the mean over clients of the model that each gets, that of the worst class, and
            the global model's, at the same rounds.
        worst_class: the name of the class with the lowest mean accuracy; None if there is no class.
        refused: mean share of the clients that are refused.
        rounds: the rounds of these models, None where the first evaluated round is above the budget.
        limited_by: what the next evaluated rounds would exceed.
        ended_at: share of the budget at the end of the run that ended earliest within it; None if all came to a limit or there is none.
        best: the best accuracy of the whole runs.
        reached: how many runs reached the target accuracy.
        to_target: what was used at the first evaluated round with the target accuracy; None unless every run reached it.
        first: what was used at the first evaluated round, by the run that used most.
        classes: empty unless there is an accuracy.
        steps: simulated_s, client_bytes and client_j → accuracy for every budget of it up to the whole; none of a cost that is unknown.
        fronts: for which costs the method is the best of some budget.
    """

    label: str
    seeds: tuple[int, ...] = ()
    rank: int | None = None
    accuracy: Estimate | None = None
    clients_accuracy: Estimate | None = None
    worst_accuracy: Estimate | None = None
    global_accuracy: Estimate | None = None
    worst_class: str | None = None
    refused: float | None = None
    rounds: tuple[int | None, ...] = ()
    limited_by: tuple[str, ...] = ()
    ended_at: float | None = None
    best: Estimate | None = None
    reached: int = 0
    to_target: Mapping[str, Estimate | None] | None = None
    first: Mapping[str, float | None] | None = None
    classes: tuple[ClassWithin, ...] = ()
    steps: Mapping[str, tuple[Step, ...]] | None = None
    fronts: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontPoint:
    """A method that is the best for every budget from ``cost`` on, up to the next point; methods that are equally good share a cost."""

    label: str
    cost: float
    accuracy: float


@dataclass(frozen=True)
class BudgetSummary(Result):
    """All methods under one budget, or at the end of their runs.

    Attributes:
        target_accuracy: the accuracy that was asked for, None if none was.
        methods: by rank; methods of one rank by mean accuracy, those that do not fit last.
        fronts: simulated_s, client_bytes and client_j → the best method of every budget of it up to the whole, cheapest first.
        rank_by: what ``accuracy`` is.
        pairs: every two methods, with the test of their difference.
        clock: how often each method is the best under the error of the devices' clocks; None if no seconds or joules decide.
    """

    budget: RunBudget
    target_accuracy: float | None
    methods: tuple[WithinBudget, ...]
    fronts: Mapping[str, tuple[FrontPoint, ...]]
    rank_by: RankBy = "clients"
    pairs: tuple[Pair, ...] = ()
    clock: ClockDraws | None = None


@dataclass(frozen=True)
class Rule:
    """What decides.

    Attributes:
        metric: what is under the keys of accuracy; one that is no accuracy is ranked by the global model.
        clocks: device → its clock; empty: the error of clocks is left out.
    """

    budget: RunBudget = RunBudget()  # noqa: RUF009 - it is frozen
    target: float | None = None
    rank_by: RankBy = "clients"
    metric: Metric = ACCURACY
    clocks: Mapping[str, DeviceClock] | None = None


def budget_summary(methods: Mapping[str, Sequence[CountedRun]], rule: Rule) -> BudgetSummary:
    """Return how methods (label → finished runs) compare under a budget."""
    rule = rule if rule.metric.share else replace(rule, rank_by="global")
    sign = 1 if rule.metric.better == "higher" else -1
    rows = {label: _within(label, runs, rule) for label, runs in methods.items()}
    fronts = {axis: _front(axis, rows, sign) for axis in AXES}
    values = {label: dict(zip(row.seeds, row.accuracy.values, strict=True)) for label, row in rows.items() if row.accuracy}
    ranks, pairs = ranked(values, sign)
    done = []
    for label in [*ranks, *(label for label in rows if label not in ranks)]:
        on = tuple(axis for axis in AXES if any(point.label == label for point in fronts[axis]))
        done.append(replace(rows[label], rank=ranks.get(label), fronts=on))
    clock = comparison_draws(methods, rule.budget, rule.rank_by, sign, rule.clocks or {}) if len(values) > 1 else None
    return BudgetSummary(rule.budget, rule.target, tuple(done), fronts, rule.rank_by, pairs, clock)


def _within(label: str, runs: Sequence[CountedRun], rule: Rule) -> WithinBudget:
    if not runs:
        return WithinBudget(label=label)
    budget, target = rule.budget, rule.target
    fitting = [[point for point in run.points if not budget.exceeded_by(vars(point))] for run in runs]
    last = [points[-1] if points else None for points in fitting]
    beyond = [run.points[len(points) : len(points) + 1] for run, points in zip(runs, fitting, strict=True)]
    over = {axis for points in beyond for point in points for axis in budget.exceeded_by(vars(point))}
    ended = [_share(run.points[-1], budget) for run, points in zip(runs, beyond, strict=True) if not points]
    scored = [[(point, run.score(point, rule.rank_by)) for point in run.points] for run in runs]
    hits = [next((p for p, s in of if target is not None and reaches(rule.metric, s, target)), None) for of in scored]
    reached = [point for point in hits if point is not None]
    chosen = [(run, point) for run, point in zip(runs, last, strict=True) if point is not None]
    row = WithinBudget(
        label=label,
        seeds=tuple(run.seed for run in runs),
        refused=statistics.fmean(run.refused for run in runs),
        rounds=tuple(None if point is None else point.round for point in last),
        limited_by=tuple(axis for axis in AXES if axis in over),
        ended_at=min(ended) if ended and budget.limits else None,
        best=Estimate.of([best_of(rule.metric)(score for _, score in of) for of in scored]),
        reached=len(reached),
        to_target=_costs(reached) if len(reached) == len(runs) else None,
        first={key: known_max(getattr(run.points[0], key) for run in runs) for key in AXES},
    )
    return row if len(chosen) < len(runs) else _with_accuracies(row, chosen, fitting, rule)


def _with_accuracies(
    row: WithinBudget, chosen: Sequence[tuple[CountedRun, Evaluated]], fitting: Sequence[Sequence[Evaluated]], rule: Rule
) -> WithinBudget:
    """Return a row with the accuracies of the ``chosen`` round of every run; ``fitting`` are the rounds within the budget."""

    def estimate(rank_by: RankBy) -> Estimate:
        return Estimate.of([run.score(point, rank_by) for run, point in chosen])

    of_clients = rule.metric.share
    classes = _classes(chosen) if of_clients else ()
    return replace(
        row,
        accuracy=estimate(rule.rank_by),
        clients_accuracy=estimate("clients") if of_clients else None,
        worst_accuracy=estimate("worst") if of_clients else None,
        global_accuracy=estimate("global"),
        worst_class=min((of for of in classes if of.clients), key=lambda of: of.accuracy.mean).title if classes else None,
        classes=classes,
        steps={
            axis: _steps(axis, [run for run, _ in chosen], fitting, rule.rank_by)
            for axis in AXES
            if all(getattr(point, axis) is not None for points in fitting for point in points)
        },
    )


def _share(point: Evaluated, budget: RunBudget) -> float:
    """Return the share of the budget that is used at ``point``: of the limit of which most is used."""
    return max((getattr(point, axis) / limit for axis, limit in budget.limits.items()), default=0.0)


def _costs(points: Sequence[Evaluated]) -> dict[str, Estimate | None]:
    values = {key: [getattr(point, key) for point in points] for key in COSTS}
    return {key: None if None in of_points else Estimate.of(of_points) for key, of_points in values.items()}


def _classes(chosen: Sequence[tuple[CountedRun, Evaluated]]) -> tuple[ClassWithin, ...]:
    found = []
    for same in zip(*(run.classes for run, _ in chosen), strict=True):
        of, points = same[0], [point for _, point in chosen]
        shares = [point.trained.get(of.device, 0) / max(own.clients, 1) for own, point in zip(same, points, strict=True)]
        found.append(
            ClassWithin(
                *(of.device, of.title, of.clients),
                tiers=tuple(own.tier for own in same),
                runs=tuple(tuple(sorted(own.runs, key=float, reverse=True)) for own in same),
                accuracy=Estimate.of([own.accuracy(point.accuracy) for own, point in zip(same, points, strict=True)]),
                refused=statistics.fmean(own.refused for own in same),
                trained_share=Estimate.of(shares),
            )
        )
    return tuple(found)


def _steps(axis: str, runs: Sequence[CountedRun], fitting: Sequence[Sequence[Evaluated]], rank_by: RankBy) -> tuple[Step, ...]:
    """Return the accuracy of a method for every budget of one cost; a budget counts from that on which every run has a round in."""
    costs = [[getattr(point, axis) for point in points] for points in fitting]
    scores = [[run.score(point, rank_by) for point in points] for run, points in zip(runs, fitting, strict=True)]
    least = max(of_run[0] for of_run in costs)
    found = []
    for cost in sorted({cost for of_run in costs for cost in of_run if cost >= least}):
        now = [score[bisect_right(of_run, cost) - 1] for of_run, score in zip(costs, scores, strict=True)]
        found.append(Step(cost, statistics.fmean(now), min(now), max(now)))
    return tuple(found)


def _front(axis: str, rows: Mapping[str, WithinBudget], sign: int) -> tuple[FrontPoint, ...]:
    """Return the best method of every budget of one cost; nothing if the cost of a method is unknown."""
    known = {label: row.steps for label, row in rows.items() if row.steps is not None}
    if any(axis not in steps for steps in known.values()):
        return ()
    costs = {label: [step.cost for step in steps[axis]] for label, steps in known.items()}
    front: list[FrontPoint] = []
    before: list[tuple[str, float]] = []
    for cost in sorted({cost for own in costs.values() for cost in own}):
        places = {label: bisect_right(own, cost) - 1 for label, own in costs.items()}
        now = {label: known[label][axis][place].accuracy for label, place in places.items() if place >= 0}
        best = max(now.values(), key=lambda value: sign * value)
        leading = [(label, value) for label, value in now.items() if value == best]
        if leading != before:
            front += [FrontPoint(label, cost, value) for label, value in leading]
        before = leading
    return tuple(front)
