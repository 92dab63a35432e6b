"""The command ``inspect``: Show what a method does with each layer of a network, and why; or a data set and its clients."""

import json
import shutil
from typing import Any

import click

from edgefl.cli.console import busy, echo, loading
from edgefl.cli.flags import DATA, flag_of, given, network_and_options, network_options, run_flags
from edgefl.cli.names import check_run
from edgefl.cli.options import Command, json_option, sub_model_options
from edgefl.config import RunConfig
from edgefl.onnxgrad.contexts import uncollected

_CLIENTS = ("clients", "partition", "data_share", "validation_share", "seed")


@click.command(cls=Command)
@network_options
@sub_model_options("Method and tiers")
@run_flags("batch_size", "optimizer", section="Training on a client")
@run_flags(
    *DATA, section="Data set, alone or instead of --input and --classes", defaults={"dataset": "none; digits without NETWORK"}
)
@run_flags(*_CLIENTS, section="Clients of a data set that is shown alone")
@json_option
def command(as_json: bool, **flags: Any) -> None:
    """Show what a method does with each layer of a network, and why. Each layer has its kind, shape, MACs and bytes.

    With --data and no NETWORK, show a data set instead: its classes and their sizes, and the samples of each client.

    NETWORK is what 'edgefl profile' accepts. A tier's column shows the rank of a factorized layer, the channels of a cut one, or "dense".

    \b
    edgefl inspect resnet18 --method fedhm
    edgefl inspect net.py:Net --input 3x224x224 --method heterofl --tiers 1,0.5
    edgefl inspect net.py:Net --input 3x224x224 --method fedhm \\
      --method-option factorize=conv,1x1,!head
    edgefl inspect net.py:Net --data own.npz --method fedhm
    edgefl inspect --data own.npz --clients 10 --partition dirichlet:0.1
    """
    clients = given({key: flags.pop(key) for key in _CLIENTS})
    shown = clients | given({key: flags[key] for key in DATA})
    if shown and flags["network"] is flags["model"] is None:
        _show_data(shown, flags, as_json)
        return
    if clients:
        flag = flag_of(next(iter(clients)))
        raise click.UsageError(
            f"{flag}: is about the clients of a data set, which is shown alone; leave {flag} or the network out"
        )
    network, options = network_and_options(flags)
    with uncollected():
        with loading():
            from edgefl.planning.inspect import inspect
        with busy("tracing the network"):
            inspection = inspect(*network, **options)
    if as_json:
        echo(json.dumps(inspection.to_dict(), indent=2))
        return
    from edgefl.report.inspect_table import inspect_text

    echo(inspect_text(inspection, max(80, shutil.get_terminal_size().columns)))


def _show_data(keys: dict[str, Any], others: dict[str, Any], as_json: bool) -> None:
    if odd := [key for key, value in others.items() if value and key not in keys]:
        named = {parameter.name: parameter for parameter in click.get_current_context().command.params}
        flag = named[odd[0]].opts[0]
        raise click.UsageError(f"{flag}: is about a network, and there is none; give NETWORK too, or leave {flag} out")
    config = RunConfig.of(keys)
    check_run(config)
    with loading():
        from edgefl.report.inspected_data import data_text
        from edgefl.run.inspect_data import inspect_data

    with busy("reading the data"):
        data = inspect_data(config)
    echo(json.dumps(data.to_dict(), indent=2) if as_json else data_text(data, max(80, shutil.get_terminal_size().columns)))
