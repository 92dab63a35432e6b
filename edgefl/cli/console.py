"""Printing through rich, which commands import only when they have something to show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from edgefl.report.tables import PlainTable


def note(message: str) -> None:
    """Print a message that is no result, on standard error."""
    click.echo(message, err=True)


def show(what: Any) -> None:
    """Print text or a rich table; where there is no terminal, wide enough that no line is cut."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(width=200, highlight=False, markup=False)
    try:
        console.print(what)
    except SystemExit:
        # Rich's answer to a reader that left; it is no failure, and the command line says so.
        raise BrokenPipeError from None


def as_rich(plain: PlainTable) -> Table:
    """Return a table of texts as rich prints it: headings of a group above those of its columns."""
    from rich.table import Table

    heads = ["\n".join(part for part in (column.group, column.head) if part) for column in plain.columns]
    table = Table(box=None, header_style="bold")
    for head, column in zip(heads, plain.columns, strict=True):
        table.add_column(head, justify="right" if column.numeric else "left", vertical="bottom")
    for row in plain.rows:
        table.add_row(*row)
    return table


def as_text(what: Any) -> str:
    """Return what :func:`show` would print where there is no terminal."""
    from rich.console import Console

    console = Console(width=200, highlight=False, markup=False, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def write_or_print(text: str, out: Path | None) -> None:
    """Write a text to a file, whole or not at all, or to the terminal."""
    if out is None:
        click.echo(text)
        return
    from edgefl.util.files import write_bytes

    write_bytes(out, (text.rstrip("\n") + "\n").encode())
    note(f"written: {out}")
