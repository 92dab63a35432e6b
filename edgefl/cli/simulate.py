"""The command ``simulate``: train a fleet under its devices' budgets and write model, bundle and report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.options import Tiers
from edgefl.registry import datasets, methods, models

if TYPE_CHECKING:
    from edgefl.run import RunResult


def _names(kind: list[str]) -> str:
    return ", ".join(kind)


@click.command()
@click.option("--profile", metavar="NAME|FILE", help="Fleet or device, by name or TOML file; see 'edgefl devices'. [phone]")
@click.option("--method", metavar="NAME", help=f"{_names(methods.names())}. [fedhm]")
@click.option("--model", metavar="NAME", help=f"{_names(models.names())}. [the data set's own]")
@click.option("--dataset", metavar="NAME", help=f"{_names(datasets.names())}. [digits]")
@click.option("--data-dir", metavar="DIR", help="Folder with the data set's files.")
@click.option("--partition", metavar="SPEC", help="iid, dirichlet:A or classes:K. [dirichlet:0.5]")
@click.option("--clients", type=int, metavar="N", help="Clients in the population. [20]")
@click.option("--per-round", type=int, metavar="N", help="Clients drawn each round. [half of them]")
@click.option("--rounds", type=int, metavar="N", help="Rounds to play. [30]")
@click.option(
    "--local-epochs", type=int, metavar="N", help="Passes over its data that a client makes a round. [digits: 5, else 1]"
)
@click.option("--batch-size", type=int, metavar="N", help="Samples of a training step. [32]")
@click.option("--micro-batch", type=int, metavar="N", help="Samples at once; gradients are accumulated over a batch. [the batch]")
@click.option("--optimizer", metavar="NAME", help="momentum, sgd or adam, on the clients. [momentum]")
@click.option("--lr", type=float, metavar="X", help="Learning rate of the clients. [0.05]")
@click.option("--codec", metavar="NAME", help="How updates travel up: fp32, fp16, int8 or sparse. [fp32]")
@click.option(
    "--tiers",
    type=Tiers(auto=True),
    help="Sizes of sub-models, largest first; auto: the largest that fits each class. [the method's: 1,0.5,0.25]",
)
@click.option(
    "--tier-assignment",
    metavar="HOW",
    help="auto: each class of devices takes the largest tier that fits its budgets; uniform: each client keeps one drawn "
    "from those that fit; dynamic: drawn anew every round. [auto]",
)
@click.option("--engine", metavar="HOW", help="inline (this process) or pool (--workers processes): the same bits. [inline]")
@click.option("--workers", type=int, metavar="N", help="Processes that play clients. [1]")
@click.option("--seed", type=int, metavar="N", help="Decides every draw. [0]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with these keys; flags win.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run folder. [runs/NNNN-method-dataset]")
@click.option("--resume", is_flag=True, help="Continue the run in --out where it stopped, to the same bits.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, alone on standard output.")
def command(config_file: Path | None, out: Path | None, resume: bool, as_json: bool, **flags: Any) -> None:
    """Train a fleet under the budgets of its devices, and write model, bundle and report.

    \b
    edgefl simulate --profile phone
    edgefl simulate --profile phone --dataset fashion-mnist --rounds 3 --workers 2
    edgefl simulate --config run.toml --seed 1 --out runs/second
    edgefl simulate --out runs/second --resume
    """
    from edgefl.config import RunConfig

    given = {key: value for key, value in flags.items() if value is not None}
    if resume and out is None:
        raise click.UsageError("--resume needs --out: the folder of the run to continue")
    started = resume and out is not None and (out / "config.toml").exists()
    if not started:
        config = RunConfig.load(config_file, given)
    # Torch takes seconds to import: what can be refused without it has been by now.
    from edgefl.run import resumed_config, simulate

    if started and out is not None:
        from edgefl.errors import ConfigError
        from edgefl.files import read_toml

        config = resumed_config(out, {**(read_toml(config_file, ConfigError) if config_file else {}), **given})
    from edgefl.cli.progress import Progress

    with Progress(config.rounds, quiet=as_json) as progress:
        result = simulate(config, out, resume=resume, on_round=progress.show, notify=progress.say)
    if as_json:
        click.echo(json.dumps(result.summary, indent=2))
    else:
        _print_result(result)


def _print_result(result: RunResult) -> None:
    from rich.console import Console

    from edgefl.report.tables import to_plain, to_rich
    from edgefl.units import human_percent, human_seconds

    summary = dict(result.summary)
    if sys.stdout.isatty():
        console = Console()
        console.print(to_rich(summary, width=console.width))
    else:
        click.echo(to_plain(summary))
    accuracy, simulated_s = human_percent(summary["global_accuracy"]), human_seconds(summary["simulated_s"])
    host_s = human_seconds(summary["host_s"])
    click.echo(f"global model: {accuracy} after {summary['rounds']} rounds; {simulated_s} simulated, {host_s} on this computer")
    click.echo(f"run folder: {result.folder}  (report.html, bundle/, summary.json)")
