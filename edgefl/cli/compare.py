"""The command ``compare``: Run several methods on the same clients, data and devices; write one report."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.console import echo, loading, note_new, show_result
from edgefl.cli.flags import given, run_flags
from edgefl.cli.names import check_names, check_run
from edgefl.cli.options import Command, config_option, json_option, method_option, option, options_of, plugin_option, trust_option
from edgefl.cli.param_types import PATH, Amount, Listed, MethodOption, Share
from edgefl.config import TASK, RunConfig, keys_of
from edgefl.errors import Interrupted
from edgefl.registry import Options, views
from edgefl.registry import methods as known_methods
from edgefl.util.spec import at_ratio

if TYPE_CHECKING:
    from edgefl.report.evaluated import RankBy
    from edgefl.run.comparison_result import Comparison

_FILE = "comparison.toml"
_budget = options_of("Budget of a run: which method is the most accurate within it")


@click.command(cls=Command)
@click.argument("runs", nargs=-1, type=PATH, metavar="[RUN …]")
@option(
    "--methods",
    metavar="NAME[@R],…",
    section=TASK,
    names=known_methods,
    help="Methods to compare; NAME@R trains one at the single tier R. {known}",
)
@run_flags(leave_out=("method", "seed"))
@plugin_option(TASK, expose=True)
@method_option(
    section=TASK, metavar="NAME.KEY=VALUE", help="Option of one method, may be repeated; 'edgefl methods NAME' lists them."
)
@option(
    "--set",
    "settings",
    multiple=True,
    type=MethodOption(),
    section=TASK,
    metavar="NAME.KEY=VALUE",
    help="Key of one method's runs, such as heterofl.lr=0.01, of training or of the server; may be repeated.",
)
@option("--seeds", type=Listed(int, "0,1,2"), help="Seeds; each is a run of every method. [0]")
@_budget("--budget-s", type=Amount("s"), metavar="TIME", help="Simulated time, such as 600, 10min or 2h. [no limit]")
@_budget("--budget-bytes", type=Amount("B"), metavar="SIZE", help="Bytes of each client, down and up, such as 100MB. [no limit]")
@_budget("--budget-j", type=Amount("J"), metavar="ENERGY", help="Energy of each client, such as 500 (joules) or 1kJ. [no limit]")
@_budget("--target-accuracy", type=Share(), metavar="X", help="Show the cost until this accuracy, such as 0.85 or 85%. [none]")
@_budget(
    "--rank-by",
    type=click.Choice(("clients", "worst", "global")),
    help="Rank by the mean over clients of the model that each gets, by the worst device class, or by the global model. [clients]",
)
@config_option
@option("--out", type=PATH, metavar="DIR", help="Folder for the report and all runs.")
@option(
    "--resume",
    is_flag=True,
    help="Continue the comparison in --out, with the same or more --rounds; complete runs are not repeated.",
)
@option(
    "--format",
    "format_",
    type=click.Choice(("table", "latex", "csv", "json", "paragraph")),
    default="table",
    help="Format of the ranking on standard output; latex: for a paper's column, by booktabs; paragraph: every setting, and the command.",
)
@trust_option
@json_option
def command(
    runs: tuple[Path, ...],
    methods: str | None,
    settings: tuple[tuple[str, Any], ...],
    seeds: tuple[int, ...],
    budget_s: float | None,
    budget_bytes: float | None,
    budget_j: float | None,
    target_accuracy: float | None,
    rank_by: "RankBy | None",
    config_file: Path | None,
    out: Path | None,
    resume: bool,
    format_: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run several methods on the same clients, random draws and tiers, and write one report that compares them.

    \b
    edgefl compare --methods fedhm,heterofl,fedavg --out runs/three
    edgefl compare --methods fedhm,fedavg@0.5 --seeds 0,1,2 --out runs/two
    edgefl compare --out runs/two --resume --budget-s 10min --budget-bytes 100MB
    edgefl compare runs/0001-fedhm-digits runs/0002-flanc-digits --out both
    edgefl compare app-run runs/0001-fedhm-digits

    Methods are ranked by what their clients get: at the end, or with a budget by the last evaluated round within it. Ties are what the
    seeds do not decide. --resume with another budget or --rank-by shows a finished comparison again, without training. Flags of the budget
    and the target then replace all earlier ones.

    With RUN, the folders of finished simulations are compared, and nothing trains. Runs that differ in nothing but their seeds are one
    method; settings that differ are shown. The folders of a run with real devices ('edgefl flower') and of its simulation, in this order,
    are compared as twins: real and predicted seconds, bytes and losses. With --out, a page is written too, compare.html.

    A method that has only one size trains the largest tier that fits every device class. If no device fits a run, the report gives the
    reason in its row; if no run is possible, the exit status is 3.
    """
    options, keys = _by_method(flags.pop("method_options"), "--method-option"), given(flags)
    method_keys = _by_method(settings, "--set")
    format_ = "json" if as_json else format_
    if runs:
        if len(runs) < 2 or methods or settings or seeds or options or keys or resume or config_file:
            raise click.UsageError(
                f"give the folders of at least two runs, and only budgets, --rank-by, --format and --out beside them; got {len(runs)}"
            )
        _finished(runs, out, format_, (budget_s, budget_bytes, budget_j), target_accuracy, rank_by or "clients")
        return
    if out is None:
        raise click.UsageError("give --out, the folder for the report and all runs")
    continued = resume and (out / _FILE).exists()
    config = RunConfig.of(keys) if continued else RunConfig.load(config_file, keys)
    if not continued and methods is None:
        raise click.UsageError("give --methods, such as --methods fedhm,heterofl,fedavg")
    names = tuple(methods.split(",")) if methods is not None else ()
    check_names(method=(at_ratio(name)[0] for name in names))
    if not continued:
        check_run(config, method=False)
    if resume and not continued:
        note_new(out, "comparison")
    # Torch takes seconds to import: what can be refused without it has been by now.
    with loading():
        from edgefl.report.run_budget import RunBudget
        from edgefl.run.compare import compare

    budget = RunBudget(budget_s, budget_bytes, budget_j)

    if continued:
        from edgefl.run.compare_entries import ComparisonRequest

        # Methods, seeds and keys that are given replace those of the comparison; there may be more of them than before.
        before = ComparisonRequest.of_file(out / _FILE, keys_of(config_file, keys))
        config, names, seeds = before.config, names or before.methods, seeds or before.seeds
        options, method_keys = _merged(before.options, options), _merged(before.settings, method_keys)
        if not budget.limits and target_accuracy is None:
            budget, target_accuracy = before.budget, before.target_accuracy
        rank_by = rank_by or before.rank_by
    from edgefl.cli.progress import Progress

    with _continued(out), Progress(config.rounds, quiet=format_ != "table", runs=len(names) * len(seeds or (0,))) as progress:
        comparison = compare(
            names,
            config,
            out,
            seeds=seeds,
            options=options,
            settings=method_keys,
            budget=budget,
            target_accuracy=target_accuracy,
            rank_by=rank_by or "clients",
            resume=resume,
            on_round=lambda part, record: progress.show(record, part.name, part.number),
            notify=progress.say,
        )
    _show(comparison, format_)
    if format_ == "table":
        echo(f"comparison: {comparison.folder}  (compare.html, compare.json, a run folder per method and seed)")


def _show(comparison: "Comparison", format_: str) -> None:
    """Print a comparison in a format."""
    from edgefl.report.compare_page_budget import budget_table
    from edgefl.report.compare_tables import compact_comparison, paper_text
    from edgefl.report.verdict_words import limited

    summary = comparison.summary
    asked = limited(summary) or summary.verdict.target_accuracy is not None
    if format_ == "paragraph":
        echo(comparison.paragraph())
    elif format_ == "json":
        echo(json.dumps(comparison.to_dict(), indent=2))
    elif format_ == "table":
        show_result(compact_comparison(summary))
        if asked:
            show_result(budget_table(summary))
    else:
        echo(paper_text(summary) if format_ == "latex" else budget_table(summary).to_csv())


@contextmanager
def _continued(folder: Path) -> Iterator[None]:
    """Make an interruption of the block say how the comparison continues."""
    try:
        yield
    except KeyboardInterrupt:
        if not (folder / _FILE).is_file():
            raise
        raise Interrupted(f"edgefl compare --out {shlex.quote(str(folder))} --resume") from None


def _finished(
    runs: tuple[Path, ...],
    out: Path | None,
    format_: str,
    limits: tuple[float | None, float | None, float | None],
    target_accuracy: float | None,
    rank_by: "RankBy",
) -> None:
    """Compare finished runs, or a run of real devices with its simulation."""
    from edgefl.report.run_budget import RunBudget
    from edgefl.report.run_files import read_rounds, read_summary
    from edgefl.report.words import of_devices
    from edgefl.run.compare_finished import compare_runs

    both = [(read_summary(path / "summary.json"), read_rounds(path / "rounds.jsonl")) for path in runs]
    if len(runs) == 2 and of_devices(both[0][1]):
        views.load("twin")(both, out, format_ == "json")
        return
    with TemporaryDirectory() as scratch:
        comparison = compare_runs(
            runs, out or Path(scratch) / "runs", budget=RunBudget(*limits), target_accuracy=target_accuracy, rank_by=rank_by
        )
        _show(comparison, format_)
    if out is not None and format_ == "table":
        echo(f"comparison: {out}  (compare.html, compare.json)")


def _merged(before: Mapping[str, Options], now: Mapping[str, Options]) -> dict[str, Options]:
    return {method: {**before.get(method, {}), **now.get(method, {})} for method in before.keys() | now}


def _by_method(pairs: tuple[tuple[str, Any], ...], flag: str) -> dict[str, Options]:
    """Return method → options, from ``NAME.KEY`` and value."""
    options: dict[str, Options] = {}
    for key, value in pairs:
        method, dot, name = key.rpartition(".")
        if not dot:
            raise click.UsageError(f"{flag}: {key!r} names no method; several are compared: give NAME.{key}=VALUE")
        options[method] = {**options.get(method, {}), name: value}
    return options
