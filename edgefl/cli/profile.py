"""The command ``profile``: what each tier of a network costs, without training it."""

from __future__ import annotations

import click

from edgefl.cli.console import show
from edgefl.cli.options import Shape, Tiers
from edgefl.registry import methods, models

FORMATS = ("table", "json", "csv", "markdown")


@click.command()
@click.option("--model", required=True, metavar="NAME", help=f"{', '.join(models.names())}.")
@click.option("--method", default="fedavg", metavar="NAME", help=f"{', '.join(methods.names())}. [fedavg: the network as it is]")
@click.option("--input", "input_shape", required=True, type=Shape(), help="One sample's shape, such as 3x32x32.")
@click.option("--classes", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Number of labels.")
@click.option("--tiers", type=Tiers(), help="Sizes of sub-models, largest first. [the method's own]")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, metavar="N", help="Samples of a step.")
@click.option("--norm", metavar="POLICY", help="group, static, batch or none. [the model's own]")
@click.option("--device", metavar="NAME|FILE", help="Adds seconds, joules and fit on this device.")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="table", show_default=True)
def command(
    model: str,
    method: str,
    input_shape: tuple[int, ...],
    classes: int,
    tiers: tuple[float, ...] | None,
    batch_size: int,
    norm: str | None,
    device: str | None,
    format_: str,
) -> None:
    r"""Show what each tier costs: parameters, MACs, peak memory and bytes, counted on its graph.

    \b
    edgefl profile --model resnet18 --method fedhm --input 3x32x32 --tiers 1,0.5,0.25
    edgefl profile --model cnn-fashion --method heterofl --input 1x28x28 --device raspberry-pi-4 --format markdown

    MACs forward and backward are per sample, composition per step, a training step at the batch size.
    """
    from edgefl.report.tables import cost_table
    from edgefl.run import profile

    rows = profile(
        model,
        input_shape,
        classes,
        method=method,
        tiers=tiers,
        batch_size=batch_size,
        device=device,
        norm=norm,
    )
    table = cost_table(rows, format_)
    if isinstance(table, str):
        click.echo(table)
    else:
        show(table)
