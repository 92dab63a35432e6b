"""The command ``fed-round``: aggregate the updates of real devices into the next model and bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edgefl.run.device_round import FedRound


@click.command("fed-round")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--updates", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder of update files.")
@click.option(
    "--run", type=click.Path(path_type=Path), metavar="RUN", help="The run that BUNDLE was exported from. [the folder it lies in]"
)
@click.option("--out", type=click.Path(path_type=Path), metavar="NEXT", help="Folder to write. [runs/NNNN-method-round-R]")
@click.option("--skip-bad", is_flag=True, help="Leave out updates that are wrong, with a line each, instead of refusing all.")
def command(bundle: Path, updates: Path, run: Path | None, out: Path | None, skip_bad: bool) -> None:
    """Aggregate what devices trained from BUNDLE into the next global model, and write it with its bundle.

    \b
    edgefl fed-round run/bundle --updates inbox --out round-4
    edgefl fed-round round-4/bundle --updates inbox-4 --out round-5

    Every update is checked first: names, shapes, finite values, bundle, round. NEXT is a folder like RUN, so that it can go on from there.
    """
    from edgefl.run.device_round import fed_round

    result = fed_round(bundle, updates, out, run=run, skip_bad=skip_bad, notify=lambda message: click.echo(message, err=True))
    _print(result)


def _print(result: FedRound) -> None:
    from edgefl.cli.console import show
    from edgefl.report.tables import Column, PlainTable
    from edgefl.report.words import tier_label
    from edgefl.util.units import human_percent

    columns = (
        Column("tier", "", lambda row: tier_label(row["tier"])),
        Column("updates", "", lambda row: f"{row['updates']:,}"),
        Column("samples", "", lambda row: f"{row['samples']:,}"),
        Column("accuracy", "before", lambda row: human_percent(row["before"])),
        Column("accuracy", "after", lambda row: human_percent(row["after"])),
    )
    show(PlainTable.of(columns, result.tiers))
    before, after = map(human_percent, result.accuracy)
    count = sum(row["updates"] for row in result.tiers)
    left_out = f", {len(result.refused)} left out" if result.refused else ""
    click.echo(
        f"global model: {before} before, {after} after round {result.round}, of {count} {'update' if count == 1 else 'updates'}{left_out}"
    )
    click.echo(f"folder: {result.folder}  (model.safetensors, bundle/)")
