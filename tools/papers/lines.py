"""The lines of a file of results, and what they are to the code of this checkout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from edgefl.errors import InputError
from papers import store
from papers.inputs import of_this_code
from papers.runs import kind_of

Line = Mapping[str, Any]
Key = tuple[str, ...]
Found = TypeVar("Found")


def lines_of(path: Path) -> list[tuple[str, Line]]:
    """Return every line of a file with its scale."""
    return [(scale, line) for scale, lines in store.load(path).items() for line in lines]


def cell_of(line: Line) -> str:
    """Return the cell of a line, as messages name it."""
    end = line["seed"] if kind_of(line) == "run" else " ".join(str(line["settings"].get(key, "")) for key in ("lr", "norm"))
    return f"{line['row']}/{line['column']}/{end}".rstrip()


def key_of(scale: str, line: Line) -> Key:
    """Return what tells a line from all others of its file, also from one that replaces it meanwhile."""
    return scale, kind_of(line), line["row"], line["column"], str(line.get("inputs"))


def amend_lines(path: Path, found: Mapping[Key, Found], change: Callable[[Line, Found], dict[str, Any]]) -> None:
    """Replace each line whose key is in ``found`` by what ``change`` makes of it and of what was found."""

    def amended(scale: str, line: dict[str, Any]) -> dict[str, Any]:
        return change(line, found[key]) if (key := key_of(scale, line)) in found else line

    store.amend(path, amended)


def is_current(line: Line) -> bool:
    """Whether the code of this checkout made a line, or a probe has shown that it would make the same."""
    try:
        return of_this_code(line["settings"], line)
    except (InputError, ValueError):
        return False
