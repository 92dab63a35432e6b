"""The command ``open``: Show the report of a run or a comparison in the browser."""

import os
import sys
import webbrowser
from pathlib import Path

import click

from edgefl.cli.console import echo, note, print_json
from edgefl.cli.options import Command, json_option
from edgefl.cli.param_types import PATH
from edgefl.cli.values import runs
from edgefl.errors import InputError


@click.command(cls=Command)
@click.argument("run", type=PATH, shell_complete=runs)
@json_option
def command(run: Path, as_json: bool) -> None:
    """Open the report of the finished run or comparison in the folder RUN. A report that is missing is written first.

    Without a browser, such as over ssh, the path of the report is printed.

    \b
    edgefl open runs/0001-fedhm-digits
    """
    page = run / "compare.html" if (run / "compare.html").is_file() else run / "report.html"
    if not page.is_file():
        from edgefl.report import html

        if not (run / "summary.json").is_file():
            raise InputError(
                f"{run}: has no report.html, and no summary.json to write it from; give the folder of a finished run"
            )
        html.write(run)
    opened = _has_browser() and webbrowser.open(page.resolve().as_uri())
    if as_json:
        print_json({"report": str(page), "opened": opened})
        return
    echo(page)
    if not opened:
        note("no browser was found: open this file in one")


def _has_browser() -> bool:
    """Return whether there is a browser with windows: one of a terminal would take it over."""
    shown = sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    try:
        return bool(shown or os.environ.get("BROWSER")) and webbrowser.get() is not None
    except webbrowser.Error:
        return False
