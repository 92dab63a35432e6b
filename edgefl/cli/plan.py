"""The command ``plan``: Find the largest sub-model that fits a budget, with a rank for each layer."""

import json
from dataclasses import fields
from typing import Any

import click

from edgefl.cli.console import busy, echo, loading, show
from edgefl.cli.flags import data_options, network_and_options, network_options, run_flags, training_options
from edgefl.cli.options import Command, json_option, method_option, options_of
from edgefl.cli.param_types import PATH, Amount, Within

_BUDGETS = "Budgets (at least one)"
_budget = options_of(_BUDGETS)
_bytes, _macs = options_of(_BUDGETS, type=Amount("B"), metavar="SIZE"), options_of(_BUDGETS, type=Amount("MAC"), metavar="MACS")
_RANKS = "Method and ranks"
_ranked = options_of(_RANKS)


@click.command(cls=Command)
@network_options
@data_options
@_budget("--device", metavar="NAME|FILE", help="Device: its memory is a budget; its speed gives seconds and joules.")
@_budget("--profile", metavar="NAME|FILE", help="Fleet: plans the largest tier of each of its classes, within its budgets.")
@_bytes("--memory", "memory_bytes", help="Peak memory of a training step, such as 64MB.")
@_macs("--macs", "macs_forward", help="MACs of a forward pass of one sample, such as 100M.")
@_macs("--step-macs", "macs_train_step", help="MACs of a training step.")
@_bytes("--upload", "upload_bytes", help="Bytes sent each round, such as 1MB.")
@_bytes("--download", "download_bytes", help="Bytes received each round.")
@_budget(
    "--seconds",
    "deadline_s",
    type=Amount("s"),
    metavar="TIME",
    help="Seconds, or such as 2min, of a round on the device: download, training and upload.",
)
@_budget("--joules", "energy_j", type=Amount("J"), metavar="ENERGY", help="Joules, or such as 2kJ, of a round on the device.")
@_budget(
    "--clock-margin",
    type=Within(float, 1, 100),
    default=1.0,
    metavar="X",
    help="Plan for training that takes X times the predicted seconds.",
)
@_ranked(
    "--method",
    metavar="NAME",
    help="Method that makes the sub-models; see 'edgefl methods'. [every method with several sizes; fedhm for a fleet, for ranks by "
    "layer, and with --weights]",
)
@method_option(section=_RANKS)
@_ranked(
    "--allocate",
    type=click.Choice(("uniform", "spectral")),
    default="uniform",
    help="uniform: one ratio for all layers; spectral: the rank of each layer that loses least of the weights.",
)
@_ranked("--weights", type=PATH, metavar="FILE", help="Trained weights, a safetensors file. [initial weights]")
@_ranked(
    "--error",
    type=click.Choice(("absolute", "relative")),
    default="absolute",
    help="Truncation error to minimise: absolute, or relative to the weights of each layer.",
)
@_ranked("--seed", type=Within(int, 0), default=0, metavar="N", help="Seed of initial weights.")
@training_options
@run_flags("runtime", section="Training on a client")
@json_option
def command(as_json: bool, **flags: Any) -> None:
    """Find the largest sub-model that fits the budgets: one ratio for all layers, or a rank for each layer.

    Without --method, every method that makes sub-models of several sizes is tried.

    \b
    edgefl plan cnn-digits --memory 4MB
    edgefl plan resnet18 --method fedhm --device raspberry-pi-4 --seconds 120
    edgefl plan resnet18 --macs 100M --upload 8MB --allocate spectral
    edgefl plan cnn-digits --profile mixed --seconds 10min

    NETWORK is what 'edgefl profile' accepts. If nothing fits, the exit status is 3 and the error shows the smallest need of each budget.
    """
    network, options = network_and_options(flags)
    _check_fleet(options)
    with loading():
        from edgefl.fleet.budget import Budget
        from edgefl.planning.every_method import plan_every_method
        from edgefl.planning.fleet_plan import plan_fleet
        from edgefl.planning.plan import plan
        from edgefl.planning.plan_table import fleet_tables, method_tables, plan_tables

    budget = Budget(**{field.name: options.pop(field.name, None) for field in fields(Budget)})
    planner: Any = plan_fleet if "profile" in options else plan
    tables: Any = fleet_tables if "profile" in options else plan_tables
    if _tries_every_method(options):
        planner, tables = plan_every_method, method_tables
    with busy("counting the costs of sub-models"):
        result: Any = planner(*network, budget=budget, **options)
    if as_json:
        echo(json.dumps(result.to_dict(), indent=2))
        return
    for table in tables(result):
        show(table)


def _tries_every_method(options: dict[str, Any]) -> bool:
    """Whether no method is named, and none is meant."""
    if "method" in options:
        return False
    if options.get("method_options"):
        raise click.UsageError("--method-option is about one method: name it, such as --method fedhm")
    return not ("profile" in options or "weights" in options or options["allocate"] == "spectral")


def _check_fleet(options: dict[str, Any]) -> None:
    """Refuse what is about one device beside a fleet, whose classes are planned by one ratio each."""
    if options.get("profile") is None:
        options.pop("profile", None)
        return
    one = {
        "device": "--device",
        "weights": "--weights",
        "allocate": "--allocate spectral",
        "error": "--error relative",
        "seed": "--seed",
    }
    usual = {"allocate": "uniform", "error": "absolute", "seed": 0}
    for key, flag in one.items():
        if options.pop(key, None) not in (None, usual.get(key)):
            raise click.UsageError(f"{flag} plans for one device; leave it out, or give --device in place of --profile")
