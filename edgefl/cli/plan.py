"""The command ``plan``: Find the largest sub-model that fits a budget, with a rank for each layer."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import click

from edgefl.cli.console import show
from edgefl.cli.flags import network_and_options, network_options, training_options
from edgefl.cli.options import PATH, Amount, Command, json_option, option

_BUDGET = "Budgets (at least one)"
_RANKS = "Method and ranks"
_SETTINGS: dict[str, Any] = {"section": _BUDGET, "type": Amount()}


@click.command(cls=Command)
@network_options
@option(
    "--device", section=_BUDGET, metavar="NAME|FILE", help="Device: its memory is a budget; its speed gives seconds and joules."
)
@option("--memory", "memory_bytes", help="Peak memory of a training step, such as 64MB.", **_SETTINGS)
@option("--macs", "macs_forward", help="MACs of a forward pass of one sample, such as 100M.", **_SETTINGS)
@option("--step-macs", "macs_train_step", help="MACs of a training step.", **_SETTINGS)
@option("--upload", "upload_bytes", help="Bytes sent each round, such as 1MB.", **_SETTINGS)
@option("--download", "download_bytes", help="Bytes received each round.", **_SETTINGS)
@option("--seconds", "deadline_s", help="Seconds of a round on the device: download, training and upload.", **_SETTINGS)
@option("--joules", "energy_j", help="Joules of a round on the device.", **_SETTINGS)
@option(
    "--method", default="fedhm", section=_RANKS, metavar="NAME", help="Method that makes the sub-models; see 'edgefl methods'."
)
@option(
    "--allocate",
    type=click.Choice(("uniform", "spectral")),
    default="uniform",
    section=_RANKS,
    help="uniform: one ratio for all layers; spectral: the rank of each layer that loses least of the weights.",
)
@option("--weights", type=PATH, section=_RANKS, metavar="FILE", help="Trained weights, a safetensors file. [initial weights]")
@option(
    "--error",
    type=click.Choice(("absolute", "relative")),
    default="absolute",
    section=_RANKS,
    help="Truncation error to minimise: absolute, or relative to the weights of each layer.",
)
@option("--seed", type=click.IntRange(0), default=0, section=_RANKS, metavar="N", help="Seed of initial weights.")
@training_options
@json_option
def command(as_json: bool, **flags: Any) -> None:
    """Find the largest sub-model that fits the budgets: one ratio for all layers, or a rank for each layer.

    \b
    edgefl plan resnet18 --device raspberry-pi-4 --seconds 120
    edgefl plan resnet18 --macs 100M --upload 8MB --allocate spectral

    NETWORK is what 'edgefl profile' accepts. If nothing fits, the exit status is 3 and the error shows the smallest need of each budget.
    """
    network, options = network_and_options(flags)
    from edgefl.fleet.budget import Budget
    from edgefl.planning.plan import plan

    budget = Budget(**{field.name: options.pop(field.name, None) for field in fields(Budget)})
    found = plan(*network, budget=budget, **options)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    from edgefl.planning.plan_table import plan_tables

    for table in plan_tables(found):
        show(table)
