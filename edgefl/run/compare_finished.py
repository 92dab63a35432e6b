"""Compares finished runs: those that differ in nothing but their seeds are one method, and settings that differ are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.config import RunConfig, changed
from edgefl.errors import ConfigError, InputError
from edgefl.registry import methods as known_methods
from edgefl.report.comparison import MethodResult, Played, comparison_of
from edgefl.report.evaluated import RankBy, check_rank_by
from edgefl.report.run_budget import RunBudget, check_target
from edgefl.report.run_files import RunSummary, read_rounds, read_summary
from edgefl.report.words import of_devices
from edgefl.run.comparison_result import Comparison
from edgefl.run.folder import RunFolder

_SAME = ("data set", "validation share", "number of evaluated samples", "metric", "content of the data")
"""What runs must have in common, so that their accuracies are of the same samples."""
_TITLED = {"method", "seed", "method_options", "sources"}


@dataclass(frozen=True)
class Finished:
    """A finished run: its folder, its configuration and its results."""

    folder: Path
    config: RunConfig
    played: Played

    @classmethod
    def of(cls, folder: Path) -> Finished:
        """Read a run.

        Raises:
            InputError: the folder holds no finished run that trained simulated clients.
        """
        summary, rounds = read_summary(folder / "summary.json"), read_rounds(folder / "rounds.jsonl")
        if not isinstance(summary, RunSummary) or of_devices(rounds):
            raise InputError(f"{folder}: expected a simulation that trained, got a dry run or a run of real devices")
        return cls(folder, RunFolder(folder).config(), Played(summary.seed, summary, rounds))


def compare_runs(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    budget: RunBudget | None = None,
    target_accuracy: float | None = None,
    rank_by: RankBy = "clients",
) -> Comparison:
    """Compare finished simulations, and write ``compare.html`` and ``compare.json`` to ``out``.

    Runs that differ in nothing but their seeds are one method. Settings that differ are listed, and name the methods.

    Args:
        runs: their folders.
        out: a new or empty folder, or that of an earlier comparison of finished runs.
        budget: what a run may take, as for :func:`edgefl.compare`.
        target_accuracy: share in (0, 1]; the comparison shows what each method uses until then.
        rank_by: what methods are ranked by, as for :func:`edgefl.compare`.

    Raises:
        InputError: a folder holds no such run, runs have different data or metrics, or a seed is there twice; nothing was written.
    """
    check_target(target_accuracy)
    found = [Finished.of(Path(folder)) for folder in runs]
    if len(found) < 2:
        raise ConfigError(f"runs: got {len(found)}, expected at least two finished runs")
    _check_same(found)
    check_target(target_accuracy, found[0].played.summary.metric)
    groups = _grouped(found)
    keys = _differing([own[0].config for own in groups])
    labels = _labels([own[0].config for own in groups], keys)
    _check_seeds(dict(zip(labels, groups, strict=True)))
    contenders = [_contender(label, own, keys) for label, own in zip(labels, groups, strict=True)]
    seeds = sorted({run.played.seed for run in found})
    tiers = sorted({float(row.tier) for run in found for row in run.played.summary.tiers}, reverse=True)
    summary = comparison_of(contenders, seeds, tiers, budget, target_accuracy, check_rank_by(rank_by))
    comparison = Comparison(Path(out), summary)
    _check_out(Path(out))
    comparison.write()
    return comparison


def _check_out(out: Path) -> None:
    found = {path.name for path in out.iterdir()} if out.is_dir() else {out.name} if out.exists() else set()
    if found - {"compare.html", "compare.json"}:
        raise InputError(f"{out}: exists and holds something else; give another --out")


def _check_same(runs: Sequence[Finished]) -> None:
    """Raise :class:`InputError` if accuracies of runs are not of the same samples, or not the same metric."""
    first = runs[0]
    for run in runs[1:]:
        for what, of_first, of_run in zip(_SAME, _compared(first), _compared(run), strict=True):
            if of_first != of_run:
                raise InputError(
                    f"{run.folder}: its {what} is {of_run}, that of {first.folder} is {of_first}; give runs of the same {what}"
                )


def _compared(run: Finished) -> tuple[str, ...]:
    sources = dict[Any, str](run.config.sources or {})
    own = run.config.dataset, run.config.validation_share, run.config.eval_samples, run.played.summary.metric.name
    return (*map(str, own), str(sources.get("data", "that of its name")))


def _grouped(runs: Sequence[Finished]) -> list[list[Finished]]:
    """Return runs that differ in nothing but their seeds together, in the order given."""
    groups: list[list[Finished]] = []
    for run in runs:
        own = next((group for group in groups if not set(changed(group[0].config, run.config)) - {"seed"}), None)
        if own is None:
            groups.append([run])
        else:
            own.append(run)
    return groups


def _check_seeds(groups: Mapping[str, Sequence[Finished]]) -> None:
    for label, own in groups.items():
        twice = [seed for seed, count in Counter(run.played.seed for run in own).items() if count > 1]
        if twice:
            folders = ", ".join(str(run.folder) for run in own if run.played.seed == twice[0])
            raise InputError(f"{label}: seed {twice[0]} is there twice ({folders}); give each run once")


def _differing(configs: Sequence[RunConfig]) -> list[str]:
    """Return the keys that are not the same in all runs, beside method and seed."""
    return list(dict.fromkeys(key for config in configs[1:] for key in changed(configs[0], config) if key not in _TITLED))


def _labels(configs: Sequence[RunConfig], keys: Sequence[str]) -> list[str]:
    """Return a name for each group: its method, with the settings that differ if others have the same method."""
    names = [config.method for config in configs]
    found = []
    for config in configs:
        peers = [other for other in configs if other.method == config.method]
        own = [key for key in keys if len({str(getattr(other, key)) for other in peers}) > 1]
        told = [f"{key}={_text(getattr(config, key))}" for key in own]
        if len({str(other.method_options) for other in peers}) > 1:
            told += [f"{key}={value}" for key, value in config.method_options.items()]
        found.append(" ".join([config.method, *told]) if names.count(config.method) > 1 else config.method)
    return found


def _contender(label: str, runs: Sequence[Finished], keys: Sequence[str]) -> tuple[MethodResult, list[Played]]:
    config = runs[0].config
    row = MethodResult(
        label=label,
        method=config.method,
        title=known_methods.load(config.method).title,
        options=config.model_dump(mode="json")["method_options"],
        tiers_why="those of the runs",
        failures=(),
        settings={key: _text(getattr(config, key)) for key in keys},
        folders=tuple(str(run.folder) for run in runs),
    )
    return row, [run.played for run in sorted(runs, key=lambda run: run.played.seed)]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
