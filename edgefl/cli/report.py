"""The command ``report``: Write report.html of a finished run again."""

from pathlib import Path

import click

from edgefl.cli.options import PATH, Command


@click.command(cls=Command)
@click.argument("run", type=PATH)
def command(run: Path) -> None:
    """Write report.html of the finished run in the folder RUN again: one file that needs no network connection.

    \b
    edgefl report runs/0001-fedhm-digits
    """
    from edgefl.report import html

    click.echo(f"{html.write(run)}: written")
