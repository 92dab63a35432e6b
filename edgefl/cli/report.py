"""The command ``report``: Write the page of a finished run or comparison again."""

from pathlib import Path

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option
from edgefl.cli.param_types import PATH
from edgefl.cli.values import runs


@click.command(cls=Command)
@click.argument("run", type=PATH, shell_complete=runs)
@json_option
def command(run: Path, as_json: bool) -> None:
    """Write the page of the finished run in the folder RUN, or of a comparison, again: one file that needs no network connection.

    \b
    edgefl report runs/0001-fedhm-digits
    """
    from edgefl.run.comparison_result import is_comparison, load_comparison

    if is_comparison(run):
        page = load_comparison(run).write()
    else:
        from edgefl.report import html

        page = html.write(run)
    if as_json:
        print_json({"report": str(page)})
    else:
        echo(f"{page}: written")
