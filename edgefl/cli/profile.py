"""The command ``profile``: Show what a network costs: compute, memory and bytes per tier, layer and device."""

from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import as_text, busy, echo, loading, note, show
from edgefl.cli.flags import data_options, network_and_options, network_options, run_flags, training_options
from edgefl.cli.options import Command, json_option, option, options_of, sub_model_options
from edgefl.cli.param_types import OUT_FILE
from edgefl.util.files import write_bytes

FORMATS = ("table", "json", "csv", "markdown", "html")
_SIZES = "Method and devices"
_sized = options_of(_SIZES)


@click.command(cls=Command)
@network_options
@data_options
@sub_model_options(_SIZES)
@_sized("--device", multiple=True, metavar="NAME|FILE", help="Add seconds, joules and fit on a device; may be repeated.")
@_sized("--profile", "fleet", metavar="NAME|FILE", help="Add every device class of a fleet, with its budgets.")
@training_options
@run_flags("runtime", section="Training on a client")
@option("--check-macs", is_flag=True, help="Count forward MACs a second time, over the ONNX graph; takes seconds to export.")
@option("--layers", is_flag=True, help="Show a row per layer of the largest tier.")
@option("--format", "format_", type=click.Choice(FORMATS), default="table", help="Format of the output.")
@json_option
@option("--out", type=OUT_FILE, metavar="FILE", help="File to write. [standard output]")
def command(layers: bool, format_: str, as_json: bool, out: Path | None, **flags: Any) -> None:
    """Show what a network costs: MACs, peak memory and bytes, counted on its graph without training it.

    NETWORK is the name of a reference network, your own package.module:factory or file.py:factory, timm:NAME, torchvision:NAME, or an
    .onnx file.

    \b
    edgefl profile resnet18 --input 3x32x32 --method fedhm --tiers 1,0.5,0.25
    edgefl profile my_package.my_module:factory --input 3x224x224
    edgefl profile model.onnx --profile phone --format html --out costs.html
    edgefl profile lab.py:net --data own.npz

    Forward and backward MACs are per sample. Composition is per pass, and a training step is one batch.
    """
    if as_json and format_ not in ("table", "json"):
        raise click.UsageError(f"--json does not combine with --format {format_}; leave one of them out")
    format_ = "json" if as_json else format_
    network, options = network_and_options(flags)
    with loading():
        from edgefl.planning.profile import profile

    with busy("counting the costs of every tier"):
        rows = profile(*network, **options)
    if format_ == "html":
        from edgefl.report.cost_page import cost_page

        text = cost_page(rows)
    else:
        from edgefl.report.cost_tables import cost_table, layer_table

        table = layer_table(rows[0], format_) if layers else cost_table(rows, format_)
        if not isinstance(table, str) and out is None:
            show(table)
            return
        text = table if isinstance(table, str) else as_text(table)
    if out is None:
        echo(text)
        return
    write_bytes(out, (text.rstrip("\n") + "\n").encode())
    note(f"written: {out}")
