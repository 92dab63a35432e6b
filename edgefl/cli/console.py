"""Printing through rich, which commands import only when they have something to show."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgefl.errors import printable
from edgefl.util.files import storage_errors

if TYPE_CHECKING:
    from rich.console import Console

    from edgefl.report.tables import PlainTable


def echo(text: object, err: bool = False) -> None:
    """Print a text, with what would change a terminal escaped: titles, labels and names of files may come from anybody."""
    click.echo(printable(str(text)), err=err)


def note(message: str) -> None:
    """Print a message on standard error, which leaves standard output to results."""
    echo(message, err=True)


def note_new(out: Path, what: str) -> None:
    """Say that ``--resume`` finds no ``what`` to continue; of a path that holds something else, the command says so itself."""
    from edgefl.util.hashes import is_new  # which imports pydantic

    with storage_errors(out):
        new = is_new(out)
    if new:
        note(f"{out}: has no {what} to continue; a new one begins")


@contextmanager
def busy(doing: str, quiet: bool = False) -> Iterator[None]:
    """Say on a terminal what the program does until the block ends. Elsewhere, and if ``quiet``, say nothing."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with console_of(sys.stderr).status(f"{doing} …", spinner="line"):
        yield


@contextmanager
def loading() -> Iterator[None]:
    """Import torch, and what the block imports, and say so on a terminal: it takes seconds."""
    if "torch" in sys.modules:
        yield
        return
    with busy("loading torch"):
        importlib.import_module("torch")
        yield


def console_of(stream: TextIO) -> Console:
    """Return the rich console of a stream, coloured as NO_COLOR, CLICOLOR and CLICOLOR_FORCE say; 200 columns wide if no terminal."""
    from rich.console import Console

    forced = os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0")
    plain = bool(os.environ.get("NO_COLOR")) or (os.environ.get("CLICOLOR") == "0" and not forced)
    width = None if stream.isatty() else 200
    system: Any = "standard" if forced and not stream.isatty() else "auto"
    return Console(file=stream, no_color=plain, color_system=system, width=width, highlight=False, markup=False)


def show(what: Any) -> None:
    """Print text, escaped as by :func:`echo`, or a table; 200 columns wide if standard output is not a terminal."""
    from edgefl.report.terminal import shown

    console = console_of(sys.stdout)
    try:
        console.print(shown(what))
    except SystemExit:
        # Rich exits when the reader of a pipe has gone. The command line treats that as success.
        raise BrokenPipeError from None


def print_json(result: Any) -> None:
    """Print a result as JSON, the only thing on standard output."""
    echo(json.dumps(result, indent=2, default=str))


def columns() -> int:
    """Return the width of standard output in characters."""
    return console_of(sys.stdout).width


def show_indented(first: str, then: str, marked: bool = False) -> None:
    """Print a line, ``marked`` in yellow, and below it an indented paragraph."""
    from rich.padding import Padding
    from rich.text import Text

    show(Text(printable(first), style="yellow" if marked else "bold"))
    show(Padding(Text(printable(then)), (0, 0, 0, 4)))


def show_text(text: str) -> None:
    """Print a line of text, which a terminal breaks between words."""
    (show if sys.stdout.isatty() else echo)(text)


def show_result(table: PlainTable, piped: PlainTable | None = None) -> None:
    """Print a table on a terminal; elsewhere print a line of text for each row of ``piped`` (None: of the table itself)."""
    if sys.stdout.isatty():
        show(table)
    else:
        echo((piped or table).to_plain())


def as_text(what: Any) -> str:
    """Return the text that :func:`show` prints if standard output is not a terminal."""
    from rich.console import Console

    from edgefl.report.terminal import shown

    console = Console(width=200, highlight=False, markup=False, record=True, file=io.StringIO())
    console.print(shown(what))
    return console.export_text()
