"""The command ``report``: Write report.html of a finished run again."""

from pathlib import Path

import click

from edgefl.cli.console import print_json
from edgefl.cli.options import Command, json_option
from edgefl.cli.param_types import PATH
from edgefl.cli.values import runs


@click.command(cls=Command)
@click.argument("run", type=PATH, shell_complete=runs)
@json_option
def command(run: Path, as_json: bool) -> None:
    """Write report.html of the finished run in the folder RUN again: one file that needs no network connection.

    \b
    edgefl report runs/0001-fedhm-digits
    """
    from edgefl.report import html

    page = html.write(run)
    if as_json:
        print_json({"report": str(page)})
    else:
        click.echo(f"{page}: written")
