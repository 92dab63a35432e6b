"""The command ``trust``: Show and change your list of code that configurations and runs may name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgefl.cli.console import echo, note, print_json
from edgefl.cli.options import Command, json_option
from edgefl.cli.param_types import PATH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgefl.consent import Trusted


@click.group("trust", no_args_is_help=True)
def command() -> None:
    """Show and change your list of trusted code.

    A Python file that a configuration or the folder of a run names runs only if its content is on the list, or with --trust-code.
    What you name on the command line or in Python runs without; a run that you start so puts it on the list, for --resume.

    \b
    edgefl trust add net.py
    edgefl trust list
    edgefl trust remove net.py
    """


@command.command("add", cls=Command)
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE...")
@json_option
def add(files: tuple[Path, ...], as_json: bool) -> None:
    """Trust the present content of each Python FILE. Files that it imports from its own folder are added by name, too.

    \b
    edgefl trust add net.py blocks.py
    """
    from edgefl.consent import trust
    from edgefl.util.code_files import read_code

    read = [read_code(path) for path in files]
    _show([trust(file) for file in read], as_json, "added: ")


@command.command("list", cls=Command)
@json_option
def list_(as_json: bool) -> None:
    """List what you trust: hashes, and the files that had the content.

    \b
    edgefl trust list
    """
    from edgefl.consent import trusted

    entries = list(trusted().values())
    _show(entries, as_json)
    if not entries and not as_json:
        note("your list is empty")


@command.command("remove", cls=Command)
@click.argument("what", nargs=-1, required=True, metavar="FILE|HASH...")
@json_option
def remove(what: tuple[str, ...], as_json: bool) -> None:
    """Trust each FILE, or the content with a HASH, no more.

    \b
    edgefl trust remove net.py
    """
    from edgefl.consent import distrust

    _show([entry for one in what for entry in distrust(one)], as_json, "removed: ")


def _show(entries: Iterable[Trusted], as_json: bool, doing: str = "") -> None:
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    for entry in entries:
        echo(f"{doing}{entry.sha256}  {entry.path}")
