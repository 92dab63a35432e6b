"""The command ``fed-round``: Aggregate the updates of real devices into the next model and bundle."""

from __future__ import annotations

from pathlib import Path

import click

from edgefl.cli.console import note, show
from edgefl.cli.options import PATH, Command, option


@click.command("fed-round", cls=Command)
@click.argument("bundle", type=PATH)
@option("--updates", required=True, type=PATH, metavar="DIR", help="Folder of update files.")
@option("--run", type=PATH, metavar="RUN", help="Folder of the run that BUNDLE was exported from. [its parent]")
@option("--out", type=PATH, metavar="NEXT", help="Folder to write. [runs/NNNN-method-round-R]")
@option("--skip-bad", is_flag=True, help="Skip invalid updates, with a line each, instead of refusing all.")
def command(bundle: Path, updates: Path, run: Path | None, out: Path | None, skip_bad: bool) -> None:
    """Aggregate the updates that devices trained from BUNDLE; write the next global model and its bundle.

    \b
    edgefl fed-round run/bundle --updates inbox --out round-4
    edgefl fed-round round-4/bundle --updates inbox-4 --out round-5

    Every update is checked first: names, shapes, finite values, bundle and round. NEXT is a folder like RUN, for the next round.
    """
    from edgefl.report.tables import Column, PlainTable
    from edgefl.report.words import tier_label
    from edgefl.run.device_round import fed_round
    from edgefl.util.units import human_percent

    result = fed_round(bundle, updates, out, run=run, skip_bad=skip_bad, notify=note)
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
