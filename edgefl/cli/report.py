"""The command ``report``: write a finished run's report.html anew."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def command(run: Path) -> None:
    """Write report.html of the finished run in the folder RUN: one file that needs no network."""
    from edgefl.report import html

    click.echo(f"{html.write(run)}: written")
