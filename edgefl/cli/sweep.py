"""The command ``sweep``: Choose settings for each method on validation samples, and compare the methods at them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.console import echo, loading, note, show
from edgefl.cli.flags import given, run_flags
from edgefl.cli.keyed_values import values_by_key
from edgefl.cli.names import check_names, check_run
from edgefl.cli.options import Command, config_option, json_option, option, options_of, plugin_option, trust_option
from edgefl.cli.param_types import PATH, Amount, Listed, Within
from edgefl.config import TASK, RunConfig
from edgefl.registry import methods as known_methods
from edgefl.util.spec import at_ratio

if TYPE_CHECKING:
    from edgefl.report.evaluated import RankBy

_SWEPT = "Settings to try"
_swept = options_of(_SWEPT)


@click.command(cls=Command)
@option(
    "--methods",
    required=True,
    metavar="NAME[@R],…",
    section=TASK,
    names=known_methods,
    help="Methods to compare; NAME@R trains one at the single tier R. {known}",
)
@_swept(
    "--grid",
    "grid",
    multiple=True,
    required=True,
    metavar="KEY=V1,V2,…",
    help="Values of a key of training or of the server, such as lr=0.01,0.03,0.1; log:0.001:0.1:5 are five values at equal ratios. "
    "Repeat it for other keys: every combination is tried.",
)
@_swept("--trial-rounds", type=Within(int, 1), metavar="N", help="Rounds of a trial. [those of the run]")
@_swept("--trial-seeds", type=Listed(int, "0,1"), default="0", metavar="N,…", help="Seeds of the trials.")
@_swept("--jobs", type=Within(int, 1), default=1, metavar="N", help="Runs at a time, each in a process of its own.")
@_swept(
    "--max-hours",
    type=Within(float, 0),
    metavar="H",
    help="Hours after which no more rounds are trained; --resume continues. [no limit]",
)
@run_flags(leave_out=("method", "seed"))
@plugin_option(TASK, expose=True)
@option("--seeds", type=Listed(int, "0,1,2"), default="0", help="Seeds of the comparison.")
@option("--budget-s", type=Amount("s"), metavar="TIME", help="Simulated time of a run, such as 10min. [no limit]")
@option("--budget-bytes", type=Amount("B"), metavar="SIZE", help="Bytes of each client, such as 100MB. [no limit]")
@option("--budget-j", type=Amount("J"), metavar="ENERGY", help="Energy of each client, such as 1kJ. [no limit]")
@option(
    "--rank-by",
    type=click.Choice(("clients", "worst", "global")),
    default="clients",
    help="What is compared; see 'edgefl compare'.",
)
@config_option
@option("--out", required=True, type=PATH, metavar="DIR", help="Folder for trials and comparison.")
@option("--resume", is_flag=True, help="Continue the sweep in --out; complete runs are not repeated.")
@trust_option
@json_option
def command(
    methods: str,
    grid: tuple[str, ...],
    trial_rounds: int | None,
    trial_seeds: tuple[int, ...],
    jobs: int,
    max_hours: float | None,
    seeds: tuple[int, ...],
    budget_s: float | None,
    budget_bytes: float | None,
    budget_j: float | None,
    rank_by: "RankBy",
    config_file: Path | None,
    out: Path,
    resume: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Choose settings for each method on validation samples, and compare the methods at their chosen settings.

    \b
    edgefl sweep --methods fedhm,heterofl --grid lr=0.01,0.1 --out tuned
    edgefl sweep --methods fedhm,flanc --grid lr=log:0.003:0.3:5 --jobs 4 --out t

    Every combination of the grid trains every method. Trials are judged on samples of the training set that no client has: a tenth, or
    --validation-share. The comparison is then made on the test samples. A choice at the edge of the grid is marked.
    """
    values = values_by_key(grid, "--grid", "lr=0.01,0.03,0.1")
    config = RunConfig.load(config_file, given(flags))
    names = methods.split(",")
    check_names(method=(at_ratio(name)[0] for name in names))
    check_run(config, method=False)
    # Torch takes seconds to import: what can be refused without it has been by now.
    with loading():
        from edgefl.report.compare_tables import choice_table, compact_comparison
        from edgefl.report.run_budget import RunBudget
        from edgefl.run.sweep import sweep

    def say(text: str) -> None:
        if not as_json:
            note(text)

    result = sweep(
        *(names, values, config, out),
        seeds=seeds,
        trial_seeds=trial_seeds,
        trial_rounds=trial_rounds,
        budget=RunBudget(budget_s, budget_bytes, budget_j),
        rank_by=rank_by,
        resume=resume,
        jobs=jobs,
        max_hours=max_hours,
        notify=say,
    )
    if as_json:
        rows = {"trials": result.trials.to_dict(), "choices": result.choices.to_dict()}
        echo(json.dumps({**rows, "comparison": result.comparison.to_dict()}, indent=2))
        return
    show(choice_table(result.choices.to_dict()))
    show(compact_comparison(result.comparison.summary))
    echo(f"sweep: {out}  (sweep.json, trials/, comparison/compare.html)")
