"""Printing through rich, which commands import only when they have something to show."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from edgefl.report.tables import PlainTable


def note(message: str) -> None:
    """Print a message on standard error, which leaves standard output to results."""
    click.echo(message, err=True)


def show(what: Any) -> None:
    """Print text or a rich table; 200 columns wide if standard output is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(width=200, highlight=False, markup=False)
    try:
        console.print(what)
    except SystemExit:
        # Rich exits when the reader of a pipe has gone. The command line treats that as success.
        raise BrokenPipeError from None


def show_result(table: PlainTable, piped: PlainTable | None = None) -> None:
    """Print a table on a terminal; elsewhere print a line of text for each row of ``piped`` (None: of the table itself)."""
    if sys.stdout.isatty():
        show(table)
    else:
        click.echo((piped or table).to_plain())


def as_text(what: Any) -> str:
    """Return the text that :func:`show` prints if standard output is not a terminal."""
    from rich.console import Console

    console = Console(width=200, highlight=False, markup=False, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()
