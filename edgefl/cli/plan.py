"""The command ``plan``: the largest sub-model that fits a budget, and a rank for every layer of it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgefl.cli.console import show
from edgefl.cli.options import Amount, network_options, one_network, training_options
from edgefl.registry import methods


@click.command()
@network_options
@click.option("--method", default="fedhm", show_default=True, metavar="NAME", help=f"{', '.join(methods.names())}.")
@click.option("--device", metavar="NAME|FILE", help="Its memory is a budget; seconds and joules are counted on it.")
@click.option("--memory", type=Amount(), help="Of a training step, such as 64MB.")
@click.option("--macs", type=Amount(), help="Of one sample's forward pass, such as 100M.")
@click.option("--step-macs", type=Amount(), help="Of a training step.")
@click.option("--upload", type=Amount(), help="Bytes up in a round, such as 1MB.")
@click.option("--download", type=Amount(), help="Bytes down in a round.")
@click.option("--seconds", type=Amount(), help="Of a round on the device: download, training, upload.")
@click.option("--joules", type=Amount(), help="Of a round on the device.")
@click.option(
    "--allocate",
    type=click.Choice(("uniform", "spectral")),
    default="uniform",
    show_default=True,
    help="One ratio for all layers, or a rank for each that loses least of the weights.",
)
@click.option("--weights", type=click.Path(path_type=Path), metavar="FILE", help="Trained weights, safetensors. [initial ones]")
@click.option(
    "--error",
    type=click.Choice(("absolute", "relative")),
    default="absolute",
    show_default=True,
    help="Truncation errors as they are, or each as a share of its layer's weights.",
)
@training_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of initial weights.")
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON, ranks included.")
def command(
    network: str | None,
    model: str | None,
    inputs: tuple[str, ...],
    classes: int | None,
    method: str,
    device: str | None,
    memory: float | None,
    macs: float | None,
    step_macs: float | None,
    upload: float | None,
    download: float | None,
    seconds: float | None,
    joules: float | None,
    allocate: str,
    weights: Path | None,
    error: str,
    batch_size: int,
    micro_batch: int | None,
    optimizer: str,
    codec: str,
    samples: int,
    local_epochs: int,
    norm: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Find the largest sub-model that fits: one ratio for all layers, or with --allocate spectral a rank for each.

    \b
    edgefl plan resnet18 --device raspberry-pi-4 --seconds 120
    edgefl plan resnet18 --macs 100M --upload 8MB --allocate spectral --weights model.safetensors

    Exits with status 3 when nothing fits, with the smallest need of every budget.
    """
    chosen = one_network(network, model)
    from edgefl.fleet.budget import Budget
    from edgefl.planning.plan import plan

    found = plan(
        chosen,
        inputs,
        classes,
        method=method,
        device=device,
        budget=Budget(
            memory_bytes=memory,
            macs_forward=macs,
            macs_train_step=step_macs,
            deadline_s=seconds,
            download_bytes=download,
            upload_bytes=upload,
            energy_j=joules,
        ),
        allocate=allocate,  # type: ignore[arg-type]  # click checked both
        weights=weights,
        error=error,  # type: ignore[arg-type]
        batch_size=batch_size,
        micro_batch=micro_batch,
        optimizer=optimizer,  # type: ignore[arg-type]
        codec=codec,
        samples=samples,
        local_epochs=local_epochs,
        norm=norm,
        seed=seed,
    )
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    from edgefl.report.plan_table import plan_tables

    for table in plan_tables(found):
        show(table)
