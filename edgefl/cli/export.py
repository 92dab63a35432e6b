"""The command ``export``: write the bundle of a finished run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Folder to write; must not exist.")
def command(run: Path, out: Path) -> None:
    """Write the bundle of the finished run in the folder RUN: an ONNX file per tier, references, costs and hashes."""
    from edgefl.run import export

    export(run, out, notify=lambda message: click.echo(message, err=True))
    click.echo(f"{out}: written; check it with: edgefl verify {out}")
