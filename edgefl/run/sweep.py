"""Chooses settings for each method of a comparison on validation samples, and compares the methods at their chosen settings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from edgefl.config import RunConfig
from edgefl.errors import BudgetError, CheckpointError, ConfigError, OutOfTimeError
from edgefl.report.comparison import MethodResult
from edgefl.report.evaluated import RankBy
from edgefl.report.metric import best_of
from edgefl.report.results import Result, Results
from edgefl.report.run_budget import RunBudget
from edgefl.run.compare import Begun, begin
from edgefl.run.compare_entries import OWN_KEYS, ComparedRun, asked_of
from edgefl.run.comparison_result import Comparison
from edgefl.run.folder import Notify, RunFolder
from edgefl.run.parallel import play_all
from edgefl.util.files import write_json

Point = Mapping[str, Any]
"""A setting of the grid: key of a configuration → value."""
VALIDATION_SHARE = 0.1
"""Share of the training samples that no client has, if the configuration has none."""


@dataclass(frozen=True)
class SweepTrial(Result):
    """One method with one setting.

    Attributes:
        setting: key → value.
        score: what methods are ranked by, on validation samples, mean over seeds; None if a run failed.
    """

    method: str
    setting: Point
    score: float | None


@dataclass(frozen=True)
class ChosenSetting(Result):
    """The setting that was chosen for a method.

    Attributes:
        at_edge: the keys whose chosen value is the first or the last of several: a better one may lie beyond.
    """

    method: str
    setting: Point
    score: float
    at_edge: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        trials: every method with every setting.
        choices: the best setting of each method that has one.
        comparison: of the methods at these settings, on the test samples.
    """

    folder: Path
    trials: Results[SweepTrial]
    choices: Results[ChosenSetting]
    comparison: Comparison


def sweep(
    methods: Sequence[str],
    grid: Mapping[str, Sequence[Any]],
    config: RunConfig | None = None,
    out: Path | str = "sweep",
    *,
    seeds: Sequence[int] = (0,),
    trial_seeds: Sequence[int] = (0,),
    trial_rounds: int | None = None,
    budget: RunBudget | None = None,
    rank_by: RankBy = "clients",
    resume: bool = False,
    jobs: int = 1,
    max_hours: float | None = None,
    notify: Notify | None = None,
) -> Sweep:
    """Try every setting of ``grid`` with every method, choose the best of each, and compare the methods at them.

    Every run is made once, also if several settings or methods have the same configuration; one that fails does not stop the others.
    Settings are judged on a tenth of the training samples, or ``config.validation_share`` of them, which no client has. The comparison is
    then made on the test samples, which nothing was chosen by.

    Args:
        methods: names, or ``METHOD@R``.
        grid: key of training or of the server → its values, such as ``{"lr": [0.01, 0.03, 0.1]}``.
        config: what all runs share.
        out: the folder to write: ``trials/``, ``comparison/`` and ``sweep.json``.
        seeds: of the comparison.
        trial_seeds: of the trials.
        trial_rounds: rounds of a trial; None: those of the configuration.
        budget: what a run may take, in trials and in the comparison.
        rank_by: what settings are chosen by, and methods ranked by.
        resume: continue a sweep in ``out``: complete runs are not repeated.
        jobs: how many runs are made at a time, each in a process of its own if it is more than 1.
        max_hours: hours of this computer after which no more rounds are trained.
        notify: called with a line of text for the user.

    Raises:
        InputError: a name, key or value is wrong, or ``out`` holds something else; nothing was written.
        BudgetError: no setting of any method has a result.
        OutOfTimeError: ``max_hours`` are over.
    """
    config = config or RunConfig()
    if jobs < 1 or not (max_hours is None or 0 < max_hours < math.inf):
        raise ConfigError(
            f"sweep: got jobs {jobs} and max_hours {max_hours}, expected at least one job and a positive number of hours"
        )
    points = points_of(grid)
    for point in points:
        RunConfig.of({**config.model_dump(), **point}, "grid")
    if not resume and not RunFolder(Path(out)).is_new():
        raise CheckpointError(f"{out}: exists and is not an empty folder; give another --out, or --resume to continue a sweep")
    judged = {"validation_share": config.validation_share or VALIDATION_SHARE, "rounds": trial_rounds or config.rounds}
    trial = config.model_copy(update=judged | {"bundle": False})
    until_s = None if max_hours is None else time.time() + 3600 * max_hours
    say = notify or (lambda text: None)
    ruled = partial(replace, budget=budget or RunBudget(), rank_by=rank_by)
    begun: dict[str, Begun | str] = {}
    for point in points:
        own = {name.partition("@")[0]: point for name in methods}
        folder = Path(out) / "trials" / text_of(point).replace("/", "-")
        try:
            begun[text_of(point)] = begin(ruled(asked_of(methods, trial, trial_seeds, {}, own)), folder, resume)
        except BudgetError as error:
            begun[text_of(point)] = str(error)
    everything = [run for of in begun.values() if isinstance(of, Begun) for run in of.runs]
    with _timed(out, max_hours):
        done = iter(play_all(everything, resume, say, jobs, until_s))
    trials: list[SweepTrial] = []
    better: Callable[..., Any] = max
    for point in points:
        try:
            found = _finished(begun[text_of(point)], done)
        except BudgetError as error:
            trials += [SweepTrial(name, dict(point), None) for name in methods]
            say(f"{text_of(point)}: {error}")
            continue
        better = best_of(found.summary.metric)
        trials += [SweepTrial(row.label, dict(point), _score(row, found, trial_seeds)) for row in found.methods]
    choices = _choices(trials, grid, better)
    if not choices:
        raise BudgetError(f"no setting of {', '.join(methods)} has a result; the reasons are in {Path(out) / 'trials'}")
    chosen = {choice.method: choice.setting for choice in choices}
    tested = config.model_copy(update={"validation_share": 0.0})
    last = begin(ruled(asked_of(list(chosen), tested, seeds, {}, chosen)), Path(out) / "comparison", resume)
    with _timed(out, max_hours):
        comparison = last.finish(play_all(last.runs, resume, say, jobs, until_s))
    swept = Sweep(Path(out), Results(trials), Results(choices), comparison)
    write_json(Path(out) / "sweep.json", {"trials": swept.trials.to_dict(), "choices": swept.choices.to_dict()})
    return swept


def _finished(begun: Begun | str, done: Iterator[ComparedRun]) -> Comparison:
    """Return the comparison of one setting, whose runs are the next that are ``done``; BudgetError if it has no result."""
    if isinstance(begun, str):
        raise BudgetError(begun)
    return begun.finish([next(done) for _ in begun.runs])


@contextmanager
def _timed(out: Path | str, max_hours: float | None) -> Iterator[None]:
    try:
        yield
    except OutOfTimeError:
        raise OutOfTimeError(
            f"{out}: {max_hours:g} hours are over; complete runs and checkpoints stay: continue with --resume, and --max-hours for more"
        ) from None


def points_of(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return every combination of the values of a grid.

    Raises:
        ConfigError: it is empty, a key has no value or one twice, or may not differ between methods.

    >>> points_of({"lr": [0.1, 0.2], "batch_size": [8]})
    [{'lr': 0.1, 'batch_size': 8}, {'lr': 0.2, 'batch_size': 8}]
    """
    if not grid:
        raise ConfigError("grid: it is empty; give at least one key, such as lr=0.01,0.03,0.1")
    for key, values in grid.items():
        if key not in OWN_KEYS:
            raise ConfigError(f"grid: {key} is no key of training or of the server; known: {', '.join(OWN_KEYS)}")
        if not values or len(set(map(str, values))) < len(values):
            raise ConfigError(f"grid: {key}: expected different values, got {', '.join(map(str, values)) or 'none'}")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def text_of(point: Point) -> str:
    """Return a setting in words: ``lr=0.1,batch_size=8``."""
    return ",".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items())


def _score(row: MethodResult, found: Comparison, seeds: Sequence[int]) -> float | None:
    """Return the mean of what a method is ranked by, within the budget; None unless every run has a result."""
    ranked = next(of for of in found.summary.verdict.methods if of.label == row.label)
    return ranked.accuracy.mean if ranked.accuracy is not None and len(row.seeds) == len(seeds) else None


def _choices(trials: Sequence[SweepTrial], grid: Mapping[str, Sequence[Any]], better: Callable[..., Any]) -> list[ChosenSetting]:
    found = []
    for method in dict.fromkeys(trial.method for trial in trials):
        own = [(trial.score, trial) for trial in trials if trial.method == method and trial.score is not None]
        if own:
            score, best = better(own, key=lambda pair: pair[0])
            found.append(ChosenSetting(method, best.setting, score, _edges(best.setting, grid)))
    return found


def _edges(setting: Point, grid: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the keys whose value is the least or the largest of several numbers."""
    numbers = {key: sorted(values) for key, values in grid.items() if len(values) > 1 and all(map(_number, values))}
    return tuple(key for key, values in numbers.items() if setting[key] in (values[0], values[-1]))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
