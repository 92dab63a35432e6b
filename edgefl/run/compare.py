"""Compares methods on the same clients, data, random draws and tiers: one ordinary run each, and one report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic_core import from_json, to_json

from edgefl.config import RunConfig
from edgefl.errors import BudgetError, CheckpointError, ConfigError
from edgefl.fleet.load import load_fleet
from edgefl.fleet.profile import unknown_energy
from edgefl.records import RoundRecord
from edgefl.registry import Options, compared_keys
from edgefl.registry import methods as known_methods
from edgefl.report.comparison import ComparisonSummary, Failure, MethodResult, Played, comparison_of
from edgefl.report.evaluated import RankBy
from edgefl.report.run_budget import RunBudget
from edgefl.report.run_files import read_rounds, read_trained
from edgefl.report.verdict_words import budget_text, nothing_fits
from edgefl.run.compare_entries import ComparedRun, ComparisonRequest, asked_of, own_settings, parts_of
from edgefl.run.comparison_result import Comparison
from edgefl.run.folder import Notify, RunFolder
from edgefl.run.parallel import PlannedRun, play
from edgefl.util.compute import one_thread
from edgefl.util.files import write_bytes

OnRound = Callable[[ComparedRun, RoundRecord], None]
_ASKED = "comparison.toml"


def compare(
    methods: Sequence[str],
    config: RunConfig | None = None,
    out: Path | str = "compare",
    *,
    seeds: Sequence[int] | None = None,
    options: Mapping[str, Options] | None = None,
    settings: Mapping[str, Options] | None = None,
    budget: RunBudget | None = None,
    target_accuracy: float | None = None,
    rank_by: RankBy = "clients",
    resume: bool = False,
    on_round: OnRound | None = None,
    notify: Notify | None = None,
) -> Comparison:
    """Run ``methods`` on identical shards, seeds and tiers, and write one report of them.

    Every configuration is checked before the first run starts. A method with a single size may train any ratio of the comparison's tiers,
    or its own default. It trains the largest that fits every class of the fleet. A class that none of them fits does not count here.
    ``METHOD@R`` sets the single ratio R. If a run fits no device, its updates cannot be aggregated, or its metric is not
    finite, its row has the reason.

    Args:
        methods: names, or ``METHOD@R``.
        config: what all runs share; its ``method`` and ``seed`` are ignored. Without tiers, those of the first method with several count.
        out: the folder to write: ``compare.html``, ``compare.json``, and a run folder ``METHOD/seed-N`` each.
        seeds: one run of every method each; None for the configuration's seed.
        options: method → its own options.
        settings: method, or ``METHOD@R`` → keys of the configuration that it has for itself, such as ``{"heterofl": {"lr": 0.01}}``: those
            of training and of the server.
        budget: what a run may take. Methods are ranked by the accuracy that they reach within it, and all runs train to their end.
        target_accuracy: share in (0, 1]; the comparison shows what each method uses until it has this accuracy. The metric must be a share.
        rank_by: "clients": the mean over clients of the model that each gets; "worst": that of the worst device class; "global": the
            global model. It is always the global model if values are no shares, as with a loss of the run's own and some metrics.
        resume: continue the comparison in ``out``: complete runs stay, interrupted runs resume.
        on_round: called with the run and the record of every round.
        notify: called with a line of text for the user.

    Raises:
        InputError: a name or value is wrong, or ``out`` holds something else; nothing was written. The message has all problems.
        BudgetError: no run can start, no run finished, or no evaluated round of any run is within ``budget``.

    Example:
        >>> import tempfile
        >>> small = RunConfig(rounds=1, clients=3, local_epochs=1, data_share=0.2)
        >>> found = compare(["heterofl@0.5", "fedavg@0.5"], small, Path(tempfile.mkdtemp()) / "both")
        >>> [(row.label, row.tiers) for row in found.methods]
        [('heterofl@0.5', (0.5,)), ('fedavg@0.5', (0.5,))]
    """
    say = notify or (lambda message: None)
    asked = asked_of(methods, config or RunConfig(), seeds, options or {}, settings)
    asked = replace(asked, budget=budget or RunBudget(), target_accuracy=target_accuracy, rank_by=rank_by)
    begun = begin(asked, Path(out), resume)
    for part in begun.failed:
        say(f"{part.name}: cannot start: {part.failure}")
    return begun.finish(
        [
            run.part
            if run.part.failure
            else play(run, resume, say, partial(on_round, run.part) if on_round is not None else None)
            for run in begun.runs
        ]
    )


@dataclass(frozen=True)
class Begun:
    """A comparison that is checked and stored, and whose runs are to be made."""

    folder: Path
    asked: ComparisonRequest
    runs: tuple[PlannedRun, ...]

    @property
    def failed(self) -> list[ComparedRun]:
        """The parts that cannot start."""
        return [run.part for run in self.runs if run.part.failure]

    def finish(self, done: Sequence[ComparedRun]) -> Comparison:
        """Write the report of the comparison, whose runs are ``done``.

        Raises:
            BudgetError: no run finished, or no evaluated round of any run is within the budget.
        """
        asked = self.asked
        _check_any(done, "finished")
        contenders = _contenders(self.folder, done, asked)
        limits = asked.budget, asked.target_accuracy, asked.rank_by
        summary = comparison_of(contenders, asked.seeds, asked.config.tiers or (), *limits)
        config, defence = asked.config, asked.config.defence
        common = {key: getattr(config, key) for key in compared_keys()}
        summary = replace(summary, defence=None if defence == "none" else defence, **common)
        _check_fits(summary, self.folder)
        comparison = Comparison(self.folder, summary)
        comparison.write()
        return comparison


def begin(asked: ComparisonRequest, folder: Path, resume: bool = False) -> Begun:
    """Check a comparison, and write what was asked into its folder; see :func:`compare`."""
    _check_energy(asked)
    with one_thread():
        parts, asked = parts_of(asked)
        _check_folder(folder, parts, resume)
    _check_any(parts, "can start")
    write_bytes(folder / _ASKED, asked.to_toml().encode())
    return Begun(folder, asked, tuple(PlannedRun(part, _home(folder, part)) for part in parts))


def _check_energy(asked: ComparisonRequest) -> None:
    """Raise :class:`ConfigError` if there is a budget of energy and the energy of a device is unknown."""
    for c in load_fleet(asked.config.profile).classes if asked.budget.j is not None else ():
        if c.device.without_energy:
            raise ConfigError(f"budget j: {asked.config.profile}: {unknown_energy(c.device)}")


def _check_folder(folder: Path, parts: Sequence[ComparedRun], resume: bool) -> None:
    """Raise if the folder holds something else, or runs that differ from those asked for."""
    begun = (folder / _ASKED).exists()
    if not (resume and begun) and not RunFolder(folder).is_new():
        remedy = "give another --out, or --resume to continue a comparison" if begun else "give another --out"
        raise CheckpointError(f"{folder}: exists and is not an empty folder; {remedy}")
    for part in parts:
        if not part.failure:
            RunFolder(_home(folder, part)).check(part.config, resume)


def _home(folder: Path, part: ComparedRun) -> Path:
    return folder / part.entry.label / f"seed-{part.seed}"


def _contenders(folder: Path, parts: Sequence[ComparedRun], asked: ComparisonRequest) -> list[tuple[MethodResult, list[Played]]]:
    found = []
    for label in asked.methods:
        own = [part for part in parts if part.entry.label == label]
        homes = {part.seed: _home(folder, part) for part in own if not part.failure}
        runs = [Played(n, read_trained(at / "summary.json"), read_rounds(at / "rounds.jsonl")) for n, at in homes.items()]
        method = own[0].entry.method
        contender = MethodResult(
            label=label,
            method=method,
            title=known_methods.load(method).title,
            options=from_json(to_json(asked.options.get(method, {}), inf_nan_mode="strings")),  # JSON has no infinity
            settings=from_json(to_json(own_settings(own[0].entry, asked), inf_nan_mode="strings")),
            tiers_why=own[0].tiers_why,
            failures=tuple(Failure(part.seed, part.failure) for part in own if part.failure),
        )
        found.append((contender, runs))
    return found


def _check_fits(summary: ComparisonSummary, folder: Path) -> None:
    """Raise :class:`BudgetError` if no evaluated round of any run is within the budget that was asked for."""
    found = summary.verdict
    if not any(round_ for row in found.methods for round_ in row.rounds):
        needs = "\n".join(f"{row.label}: {nothing_fits(row)}" for row in found.methods if row.first)
        remedy = f"all runs are complete: give a larger budget with --resume --out {folder}"
        raise BudgetError(f"no method has an evaluated round within {budget_text(found.budget)}:\n{needs}\n{remedy}")


def _check_any(parts: Sequence[ComparedRun], what: str) -> None:
    """Raise :class:`BudgetError` with every reason if all runs failed."""
    if all(part.failure for part in parts):
        reasons = (f"{part.name}: {part.failure}" for part in parts)
        raise BudgetError("\n".join([f"no run of the comparison {what}:", *reasons]))
