"""Printing through rich, which commands import only when they have something to show."""

from __future__ import annotations

from typing import Any


def show(what: Any) -> None:
    """Print text or a rich table; where there is no terminal, wide enough that no line is cut."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(width=200, highlight=False, markup=False)
    console.print(what)
