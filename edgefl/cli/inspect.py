"""The command ``inspect``: Show what a method does with each layer of a network, and why."""

import json
import shutil
from typing import Any

import click

from edgefl.cli.flags import network_and_options, network_options, run_flags
from edgefl.cli.options import Command, json_option, sub_model_options
from edgefl.util.garbage import uncollected


@click.command(cls=Command)
@network_options
@sub_model_options("Method and tiers")
@run_flags("batch_size", "optimizer", section="Training on a client")
@json_option
def command(as_json: bool, **flags: Any) -> None:
    """Show each layer of a network: its kind, shape, MACs and bytes, and what becomes of it in each tier of a method, and why.

    NETWORK is what 'edgefl profile' accepts. A tier's column shows the rank of a factorized layer, the channels of a cut one, or "dense".

    \b
    edgefl inspect resnet18 --method fedhm
    edgefl inspect net.py:Net --input 3x224x224 --method heterofl --tiers 1,0.5
    edgefl inspect net.py:Net --input 3x224x224 --method fedhm \\
      --method-option factorize=conv,1x1,!head
    """
    network, options = network_and_options(flags)
    with uncollected():
        from edgefl.planning.inspect import inspect

        found = inspect(*network, **options)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    from edgefl.report.inspect_table import inspect_text

    click.echo(inspect_text(found, max(80, shutil.get_terminal_size().columns)))
