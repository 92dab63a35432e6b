"""Who wins under a budget: the accuracy that each method reaches within it, the cost of a target accuracy, ranks and Pareto fronts.

Seconds are those of the simulated clock at the end of a round. Bytes and joules are those of one client: of the client that has used most
up to that round, so that no client exceeds its budget. All sessions count, also those whose updates the server did not use.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.report.paired import difference
from edgefl.report.results import Result
from edgefl.report.run_budget import AXES, RunBudget
from edgefl.util.unknown import known_max, known_mean, known_sum

Json = Mapping[str, Any]

COSTS = (*AXES, "macs")


@dataclass(frozen=True)
class Evaluated(Result):
    """One evaluated round of a run, and what had been used at its end.

    Attributes:
        client_bytes, client_j: of the client that had used most; ``client_j`` is None if the energy of a client is unknown.
        macs: of all clients together.
        accuracy: "global" and each tier's label → a share in [0, 1].
        trained: device → how many of its clients had trained at least once.
    """

    round: int
    simulated_s: float
    client_bytes: float
    client_j: float | None
    macs: float
    accuracy: Mapping[str, float]
    trained: Mapping[str, int]


def evaluated_of(rounds: Sequence[Json]) -> tuple[Evaluated, ...]:
    """Return the evaluated rounds of a run from the lines of its ``rounds.jsonl``."""
    sent: Counter[int] = Counter()
    joules: dict[int, float | None] = {}
    trained: dict[int, str] = {}
    macs, found = 0, []
    for record in rounds:
        macs += record["macs"]
        for client in record["clients"]:
            number = client["client"]
            sent[number] += client["download_bytes"] + client["upload_bytes"]
            spent_j = 0.0 if client["download_s"] is None else client["energy_j"]  # nothing was sent to it
            joules[number] = known_sum((joules.get(number, 0.0), spent_j))
            if client["status"] == "trained":
                trained[number] = client["device"]
        if record["accuracy"]:
            unknown = None in joules.values()
            most = (
                max(sent.values(), default=0),
                None if unknown else max((j for j in joules.values() if j is not None), default=0.0),
            )
            devices = dict(sorted(Counter(trained.values()).items()))
            found.append(Evaluated(record["round"], record["clock_s"], *most, macs, dict(record["accuracy"]), devices))
    return tuple(found)


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


@dataclass(frozen=True)
class ClassWithin:
    """One device class at the last evaluated round within the budget.

    Attributes:
        tiers: the largest that fits it with the data of each seed; None if none fits.
        accuracy: of these tiers; None if some seed has none.
        trained_share: share of its clients that had trained at least once.
    """

    device: str
    title: str
    clients: int
    tiers: tuple[float | None, ...]
    accuracy: Estimate | None
    trained_share: Estimate


@dataclass(frozen=True)
class MeanPoint:
    """One evaluated round of a method: means over its runs, and the range of accuracies."""

    round: int
    simulated_s: float
    client_bytes: float
    client_j: float | None
    accuracy: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class WithinBudget(Result):
    """One method under the budget. Lists have one entry per finished run, in the order of ``seeds``.

    Attributes:
        rank: 1 for the best accuracy; methods that the seeds cannot tell from the best of their rank share it. None: nothing fits.
        accuracy: of the last evaluated models within the budget; None unless some round of every run fits.
        rounds: the rounds of these models, None where the first evaluated round is above the budget.
        limited_by: what the next evaluated rounds would exceed.
        ended_at: share of the budget at the end of the run that ended earliest within it; None if all came to a limit or there is none.
        best: the best accuracy of the whole runs.
        reached: how many runs reached the target accuracy.
        to_target: what was used at the first evaluated round with the target accuracy; None unless every run reached it.
        first: what was used at the first evaluated round, by the run that used most.
        classes: empty unless there is an accuracy.
        fronts: on which Pareto fronts the method is.
    """

    label: str
    seeds: tuple[int, ...] = ()
    rank: int | None = None
    accuracy: Estimate | None = None
    rounds: tuple[int | None, ...] = ()
    limited_by: tuple[str, ...] = ()
    ended_at: float | None = None
    best: Estimate | None = None
    reached: int = 0
    to_target: Mapping[str, Estimate | None] | None = None
    first: Mapping[str, float | None] | None = None
    classes: tuple[ClassWithin, ...] = ()
    curve: tuple[MeanPoint, ...] = ()
    fronts: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontPoint:
    """An evaluated round of a method that no other within the budget beats: no accuracy is as high for less."""

    label: str
    round: int
    cost: float
    accuracy: float


@dataclass(frozen=True)
class BudgetSummary(Result):
    """All methods under one budget.

    Attributes:
        target_accuracy: the accuracy that was asked for, None if none was.
        methods: by rank; methods of one rank by mean accuracy, those that do not fit last.
        fronts: simulated_s, client_bytes and client_j → the Pareto front of accuracy against it, cheapest point first.
    """

    budget: RunBudget
    target_accuracy: float | None
    methods: tuple[WithinBudget, ...]
    fronts: Mapping[str, tuple[FrontPoint, ...]]


@dataclass(frozen=True)
class BudgetRun:
    """One finished run.

    Attributes:
        classes: one line per device, with the keys device, title, clients and tier.
    """

    seed: int
    points: tuple[Evaluated, ...]
    classes: Sequence[Json]


def budget_summary(methods: Mapping[str, Sequence[BudgetRun]], budget: RunBudget, target: float | None) -> BudgetSummary:
    """Return how methods (label → finished runs) compare under a budget. Nothing is interpolated between evaluated rounds."""
    rows = {label: _within(label, runs, budget, target) for label, runs in methods.items()}
    fronts = {axis: _front(axis, rows) for axis in AXES}
    values = {label: dict(zip(row.seeds, row.accuracy.values, strict=True)) for label, row in rows.items() if row.accuracy}
    ranks = ranked(values)
    done = []
    for label in [*ranks, *(label for label in rows if label not in ranks)]:
        on = tuple(axis for axis in AXES if any(point.label == label for point in fronts[axis]))
        done.append(WithinBudget(**{**vars(rows[label]), "rank": ranks.get(label), "fronts": on}))
    return BudgetSummary(budget, target, tuple(done), fronts)


def ranked(values: Mapping[str, Mapping[int, float]]) -> dict[str, int]:
    """Return label → rank, best mean first, from label → seed → accuracy.

    A method shares the rank of the best method before it if their paired difference is below two standard errors. With one seed there is
    no error, and only equal accuracies share a rank.

    >>> ranked({"a": {0: 0.5, 1: 0.7}, "b": {0: 0.9, 1: 0.9}, "c": {0: 0.8, 1: 0.96}})
    {'b': 1, 'c': 1, 'a': 3}
    """
    order = sorted(values, key=lambda label: -statistics.fmean(values[label].values()))
    ranks: dict[str, int] = {}
    leader = ""
    for place, label in enumerate(order, start=1):
        found = difference(values[leader], values[label]) if leader else None
        tied = found is not None and found.verdict == "not decided" and (found.error is not None or found.mean == 0)
        ranks[label] = ranks[leader] if tied else place
        leader = leader if tied else label
    return ranks


def _within(label: str, runs: Sequence[BudgetRun], budget: RunBudget, target: float | None) -> WithinBudget:
    if not runs:
        return WithinBudget(label=label)
    fitting = [[point for point in run.points if not budget.exceeded_by(vars(point))] for run in runs]
    last = [points[-1] if points else None for points in fitting]
    beyond = [run.points[len(points) : len(points) + 1] for run, points in zip(runs, fitting, strict=True)]
    over = {axis for points in beyond for point in points for axis in budget.exceeded_by(vars(point))}
    ended = [_share(run.points[-1], budget) for run, points in zip(runs, beyond, strict=True) if not points]
    # A share that is the target itself may differ from it in its last bit.
    hits = [next((p for p in run.points if target is not None and p.accuracy["global"] >= target - 1e-12), None) for run in runs]
    reached = [point for point in hits if point is not None]
    chosen = [point for point in last if point is not None]
    fits = len(chosen) == len(runs)
    return WithinBudget(
        label=label,
        seeds=tuple(run.seed for run in runs),
        accuracy=Estimate.of([point.accuracy["global"] for point in chosen]) if fits else None,
        rounds=tuple(None if point is None else point.round for point in last),
        limited_by=tuple(axis for axis in AXES if axis in over),
        ended_at=min(ended) if ended and budget.limits else None,
        best=Estimate.of([max(point.accuracy["global"] for point in run.points) for run in runs]),
        reached=len(reached),
        to_target=_costs(reached) if len(reached) == len(runs) else None,
        first={key: known_max(getattr(run.points[0], key) for run in runs) for key in AXES},
        classes=_classes(runs, chosen) if fits else (),
        curve=_curve(runs),
    )


def _share(point: Evaluated, budget: RunBudget) -> float:
    """Return the share of the budget that is used at ``point``: of the limit of which most is used."""
    return max((getattr(point, axis) / limit for axis, limit in budget.limits.items()), default=0.0)


def _costs(points: Sequence[Evaluated]) -> dict[str, Estimate | None]:
    values = {key: [getattr(point, key) for point in points] for key in COSTS}
    return {key: None if None in of_points else Estimate.of(of_points) for key, of_points in values.items()}


def _classes(runs: Sequence[BudgetRun], points: Sequence[Evaluated]) -> tuple[ClassWithin, ...]:
    found = []
    for same in zip(*(run.classes for run in runs), strict=True):
        device, title, clients = (same[0][key] for key in ("device", "title", "clients"))
        tiers = tuple(line["tier"] for line in same)
        able = None not in tiers
        at = [point.accuracy[f"{line['tier']:g}"] for line, point in zip(same, points, strict=True)] if able else []
        shares = [point.trained.get(device, 0) / max(line["clients"], 1) for line, point in zip(same, points, strict=True)]
        found.append(ClassWithin(device, title, clients, tiers, Estimate.of(at) if able else None, Estimate.of(shares)))
    return tuple(found)


def _curve(runs: Sequence[BudgetRun]) -> tuple[MeanPoint, ...]:
    points = []
    for same in zip(*(run.points for run in runs), strict=False):
        reached = [point.accuracy["global"] for point in same]
        costs: dict[str, Any] = {axis: known_mean(getattr(point, axis) for point in same) for axis in AXES}
        range_ = {"accuracy": statistics.fmean(reached), "lowest": min(reached), "highest": max(reached)}
        points.append(MeanPoint(round=same[0].round, **costs, **range_))
    return tuple(points)


def _fits(point: MeanPoint, row: WithinBudget) -> bool:
    """Return whether a round is within the budget in every run of its method; means over runs may be where a run is not."""
    return all(last is not None and point.round <= last for last in row.rounds)


def _front(axis: str, rows: Mapping[str, WithinBudget]) -> tuple[FrontPoint, ...]:
    """Return the evaluated rounds that fit in every run, and that no other beats: none is as accurate for less, or better for as much.

    There is no front of a cost that is unknown.
    """
    curves = [(label, row, point) for label, row in rows.items() for point in row.curve]
    if any(getattr(point, axis) is None for *_, point in curves):
        return ()
    points = [
        FrontPoint(label, point.round, getattr(point, axis), point.accuracy) for label, row, point in curves if _fits(point, row)
    ]
    front: list[FrontPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.accuracy)):
        best = front[-1] if front else None
        if best is None or point.accuracy > best.accuracy or (point.accuracy, point.cost) == (best.accuracy, best.cost):
            front.append(point)
    return tuple(front)
