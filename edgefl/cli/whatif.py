"""The command ``whatif``: Compare policies, such as deadlines, tiers and samplers, without training."""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import echo, loading, note, show_result
from edgefl.cli.flags import given, run_flags
from edgefl.cli.keyed_values import values_by_key
from edgefl.cli.names import check_run
from edgefl.cli.options import Command, config_option, json_option, option, options_of, plugin_option, trust_option
from edgefl.cli.param_types import PATH, Listed, Share, Within, seconds
from edgefl.config import TASK, RunConfig
from edgefl.report.required import LEAST, Goal
from edgefl.util.files import write_bytes

_swept = options_of("Policies to compare")
_goal = options_of("What is asked of a policy")
_learned = options_of("Accuracy of the policies, by a real run")


@click.command(cls=Command)
@_swept("--deadlines", type=Listed(seconds, "10,30,2min"), help="Longest sessions, in simulated time. [the fleet's own]")
@_swept(
    "--tiers",
    "tiers",
    type=Listed(float, "1,0.5,0.25"),
    multiple=True,
    help="Sizes of the sub-models, largest first; repeat it for each set of tiers. [the method's own]",
)
@_swept("--over-selections", type=Listed(float, "1,1.3"), help="Clients selected per update wanted. [the profile's own]")
@_swept("--target-epsilons", type=Listed(float, "8,2"), help="Largest ε of the run, with --privacy. [the run's own]")
@_swept(
    "--vary",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Values of any other key, such as per_round=50,100 or sampler=uniform,oort; repeat it for each key.",
)
@_goal(
    "--require",
    "requirements",
    multiple=True,
    metavar="BOUND",
    help="Bound that a policy keeps, such as 'gateway >= 20 %' or 'bytes <= 50MB/month'; repeat it for each. [none]",
)
@_goal("--minimize", metavar="|".join(LEAST), help="Figure that is the least of those that keep all bounds. [none]")
@_goal(
    "--target-updates",
    type=Within(int, 1),
    default=1000,
    help="Under a calendar, show the days until each class has given so many useful updates. [1000]",
)
@_learned(
    "--run", "run_folder", type=PATH, metavar="RUN", help="Finished run of the same setting, which predicts accuracies. [none]"
)
@_learned(
    "--target-accuracy",
    type=Share(),
    metavar="X",
    help="Show time and energy until this accuracy. [1 point below the run's best]",
)
@run_flags(
    leave_out=(
        *("deadline_s", "tiers", "over_selection", "target_epsilon", "engine", "workers", "bundle"),
        *("eval_every", "eval_samples", "eval_after_training", "cpu_limit_s"),
    )
)
@plugin_option(TASK, expose=True)
@config_option
@option("--out", type=PATH, metavar="FILE|FOLDER", help="Page to write, or the folder of a whatif.html. [whatif.html]")
@trust_option
@json_option
def command(
    deadlines: tuple[float, ...] | None,
    tiers: tuple[tuple[float, ...], ...],
    over_selections: tuple[float, ...] | None,
    target_epsilons: tuple[float, ...] | None,
    vary: tuple[str, ...],
    requirements: tuple[str, ...],
    minimize: str | None,
    target_updates: int,
    config_file: Path | None,
    run_folder: Path | None,
    target_accuracy: float | None,
    out: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare policies, such as deadlines, tiers and samplers, over simulated rounds, without training.

    Every combination is a policy, simulated for --rounds rounds. The result shows how long rounds last, which device classes take part,
    and how much of the devices' time is wasted.

    \b
    edgefl whatif --deadlines 0.3,0.5,1 --tiers 1 --tiers 1,0.5,0.25
    edgefl whatif --profile mixed --model resnet9 --over-selections 1,1.3,1.5
    edgefl whatif --config runs/one/config.toml --run runs/one --deadlines 0.6,1,2
    edgefl whatif --deadlines 1,5 --require "low-end-phone >= 20 %"
    edgefl whatif --vary codec=fp32,int8 --vary per_round=5,10

    --vary is for every other key, also such as "sampler=uniform,reserved(slots='gateway:5')", and for limits of one class, such as
    low-end-phone.largest_tier=0,0.5 (0 leaves the class out) or low-end-phone.round_deadline_s=1,5.

    With --require and --minimize, it names the policy to take, or what no policy meets and by how much. Figures are inclusion, weakest,
    waste, round, updates (an hour), joules and bytes (per useful update), epsilon, and, under a calendar, sessions, updates, bytes
    and joules of a device per month, and money of the fleet per month. A class alone stands for the share of its sessions that train.

    With --run, the curve of a finished run predicts the accuracy of each policy, with a range: that of the run after as many useful
    updates. It also predicts time and energy until --target-accuracy.
    """
    if target_accuracy is not None and run_folder is None:
        raise click.UsageError("--target-accuracy needs --run, the folder of a finished run that predicts accuracies")
    goal = Goal(requirements, minimize or "")
    asked = given(flags) | ({"target_epsilon": target_epsilons[0]} if target_epsilons else {})
    config = RunConfig.load(config_file, asked)
    varied = values_by_key(vary, "--vary", "per_round=50,100")
    check_run(config)
    swept = {"deadline_s": deadlines, "over_selection": over_selections, "tiers": tiers}
    for (key, values), flag in zip(swept.items(), ("--deadlines", "--over-selections", "--tiers"), strict=True):
        for value in values or ():
            RunConfig.of({key: value}, flag)
    # Torch takes seconds to import: what can be refused without it has been by now.
    with loading():
        from edgefl.report import whatif_page
        from edgefl.run.whatif import whatif

    def say(label: str) -> None:
        if not as_json:
            note(f"{label} …")

    asked_of: dict[str, Any] = {"run_folder": run_folder, "target_accuracy": target_accuracy, "target_updates": target_updates}
    policies = deadlines or (), tiers, over_selections or (), target_epsilons or ()
    result = whatif(config, *policies, **asked_of, vary=varied, goal=goal, on_policy=say)
    page = out if out is not None and out.suffix == ".html" else (out or Path()) / "whatif.html"
    if out is not None or not as_json:
        write_bytes(page, whatif_page.render(result).encode())
    if as_json:
        echo(json.dumps(result.to_dict(), indent=2))
        return
    show_result(whatif_page.compact_whatif(result), piped=whatif_page.whatif_table(result))
    echo(f"written: {page}")
