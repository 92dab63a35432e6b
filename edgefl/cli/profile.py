"""The command ``profile``: what a network costs on a device, tier by tier and layer by layer, without training it."""

from __future__ import annotations

from pathlib import Path

import click

from edgefl.cli.console import as_text, show, write_or_print
from edgefl.cli.options import Tiers, network_options, one_network, training_options
from edgefl.registry import methods

FORMATS = ("table", "json", "csv", "markdown", "html")


@click.command()
@network_options
@click.option("--method", metavar="NAME", help=f"Makes sub-models: {', '.join(methods.names())}. [the network as it is]")
@click.option("--tiers", type=Tiers(), help="Sizes of sub-models, largest first. [the method's own]")
@training_options
@click.option("--device", "devices", multiple=True, metavar="NAME|FILE", help="Adds seconds, joules and fit on it; may repeat.")
@click.option("--profile", "fleet", metavar="NAME|FILE", help="Adds every class of a fleet, with its budgets.")
@click.option("--layers", is_flag=True, help="A row per layer of the largest tier.")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write there instead of the terminal."
)
def command(
    network: str | None,
    model: str | None,
    inputs: tuple[str, ...],
    classes: int | None,
    method: str | None,
    tiers: tuple[float, ...] | None,
    batch_size: int,
    micro_batch: int | None,
    optimizer: str,
    codec: str,
    norm: str | None,
    devices: tuple[str, ...],
    fleet: str | None,
    samples: int,
    local_epochs: int,
    layers: bool,
    format_: str,
    out: Path | None,
) -> None:
    """Show what a network costs: MACs, peak memory and bytes, counted on its graph before anything runs.

    NETWORK is a reference network's name, package.module:factory of your own, or a file that ends in .onnx.

    \b
    edgefl profile resnet18 --input 3x32x32 --method fedhm --tiers 1,0.5,0.25
    edgefl profile my_package.my_module:factory --input 3x224x224 --device raspberry-pi-4
    edgefl profile model.onnx --profile phone --format html --out costs.html

    MACs forward and backward are per sample, composition per pass, a training step at the batch size.
    """
    chosen = one_network(network, model)
    from edgefl.planning.profile import profile

    rows = profile(
        chosen,
        inputs,
        classes,
        method=method,
        tiers=tiers,
        batch_size=batch_size,
        micro_batch=micro_batch,
        optimizer=optimizer,  # type: ignore[arg-type]  # click checked it
        codec=codec,
        device=devices,
        fleet=fleet,
        samples=samples,
        local_epochs=local_epochs,
        norm=norm,
    ).to_dict()
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
    write_or_print(text, out)
