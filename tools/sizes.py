"""The sizes of the package's rooms against their budgets, and what a change adds to them.

Usage:
    python tools/sizes.py                   a room with more lines or files than tools/sizes.toml allows ends with status 1
    python tools/sizes.py --since main      also print how many lines and files each room has more than at this commit or branch
    python tools/sizes.py --write           set the budgets to the present sizes, rounded up; only a person decides this

A room is a folder of edgefl/, or of edgefl/contrib/, which is counted apart; the modules beside the folders are the room ``edgefl``.
Lines and files are those of Python.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tools/sizes.toml"
APART = ("contrib", "onnxgrad")
"""Rooms that are no part of the core."""
STEP_LINES = 50
HEAD = """\
# The most lines and files of Python in each room of edgefl/. tools/check fails when a room has more.
# Make the room smaller, or raise its budget in the commit that needs it, and say why there.
"""


class Size(NamedTuple):
    """Lines and files."""

    lines: int
    files: int


def room_of(path: str) -> str:
    """Return the room of a file of the package.

    >>> [room_of(f"edgefl/{path}") for path in ("rng.py", "client/fast/layout.py", "contrib/ray/nodes.py", "contrib/__init__.py")]
    ['edgefl', 'client', 'contrib/ray', 'contrib']
    """
    folders = path.split("/")[1:-1]
    return "/".join(folders[: 2 if folders[:1] == ["contrib"] else 1]) or "edgefl"


def sizes_of(files: Iterable[tuple[str, bytes]]) -> dict[str, Size]:
    r"""Return the size of each room, from paths with contents.

    >>> sizes_of([("edgefl/rng.py", b"a\nb\n"), ("edgefl/registry.py", b"c\n"), ("edgefl/run/run.py", b"")])
    {'edgefl': Size(lines=3, files=2), 'run': Size(lines=0, files=1)}
    """
    lines, files_of = Counter[str](), Counter[str]()
    for path, content in files:
        lines[room_of(path)] += len(content.splitlines())
        files_of[room_of(path)] += 1
    return {room: Size(lines[room], files_of[room]) for room in sorted(files_of)}


def present(root: Path) -> dict[str, Size]:
    """Return the sizes of the rooms as they are in the folder ``root``."""
    return sizes_of((str(path.relative_to(root)), path.read_bytes()) for path in root.glob("edgefl/**/*.py"))


def at(commit: str, root: Path) -> dict[str, Size]:
    """Return the sizes of the rooms at a commit; an unknown commit ends this program."""
    command = ["git", "-C", str(root), "archive", commit, "edgefl"]
    archived = subprocess.run(command, capture_output=True, check=False)
    if archived.returncode:
        sys.exit(f"--since: git has no commit or branch {commit!r} with a folder edgefl")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as tree:
        sources = {member.name: tree.extractfile(member) for member in tree if member.name.endswith(".py")}
        return sizes_of((name, source.read()) for name, source in sources.items() if source is not None)


def budgets_in(text: str) -> dict[str, Size]:
    """Return the budgets of a file such as tools/sizes.toml."""
    return {room: Size(**budget) for room, budget in tomllib.loads(text).items()}


def as_toml(sizes: Mapping[str, Size]) -> str:
    """Return the file with budgets that these rooms just keep."""
    rows = (f'"{room}" = {{ lines = {-(-s.lines // STEP_LINES) * STEP_LINES}, files = {s.files} }}' for room, s in sizes.items())
    return "\n".join((HEAD, *rows, ""))


def problems(sizes: Mapping[str, Size], budgets: Mapping[str, Size]) -> list[str]:
    """Return a message for each room that passes its budget, or has none, and for each budget without a room."""
    found = [f"{room}: no such room; take its budget out of tools/sizes.toml" for room in budgets if room not in sizes]
    for room, size in sizes.items():
        if room not in budgets:
            found.append(f"{room}: a new room; give it a budget in tools/sizes.toml")
            continue
        over = [
            f"{have:,} {name}, at most {most:,}"
            for name, have, most in zip(size._fields, size, budgets[room], strict=True)
            if have > most
        ]
        if over:
            found.append(f"{room}: {' and '.join(over)}; make it smaller, or raise its budget on purpose")
    return found


def totals(sizes: Mapping[str, Size]) -> dict[str, Size]:
    """Return the sizes of the core, of contrib and of the package.

    >>> totals({"run": Size(20, 2), "cli": Size(10, 1), "contrib/ray": Size(5, 1), "onnxgrad": Size(7, 1)})
    {'the core': Size(lines=30, files=3), 'all of contrib': Size(lines=5, files=1), 'the package': Size(lines=42, files=5)}
    """
    apart = {room: size for room, size in sizes.items() if room.split("/")[0] in APART}
    contrib = [size for room, size in apart.items() if room != "onnxgrad"]
    core = [size for room, size in sizes.items() if room not in apart]
    groups = {"the core": core, "all of contrib": contrib, "the package": [*sizes.values()]}
    return {name: Size(sum(s.lines for s in group), sum(s.files for s in group)) for name, group in groups.items()}


def table(sizes: Mapping[str, Size], budgets: Mapping[str, Size], before: Mapping[str, Size] | None = None) -> str:
    """Return a row for each room with its size, its budget, and what it has more than ``before``."""
    rooms = {**dict.fromkeys([*sizes, *(before or {})], Size(0, 0)), **sizes}
    rows = [["room", "lines", "budget", "files", "budget", *([] if before is None else ["+lines", "+files"])]]
    for name, size in [*sorted(rooms.items()), *totals(sizes).items()]:
        budget = budgets.get(name)
        most = ("", "") if budget is None else (f"{budget.lines:,}", f"{budget.files:,}")
        row = [name, f"{size.lines:,}", most[0], f"{size.files:,}", most[1]]
        if before is not None:
            old = {**totals(before), **before}.get(name, Size(0, 0))
            row += [f"{size.lines - old.lines:+,}", f"{size.files - old.files:+,}"]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )


def main() -> None:
    """Print the table; end with status 1 if a room passes its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="also print what the rooms have more than at this commit or branch")
    parser.add_argument("--write", action="store_true", help="set the budgets to the present sizes")
    given = parser.parse_args()
    sizes = present(ROOT)
    if given.write:
        BUDGETS.write_text(as_toml(sizes), encoding="utf-8")
    budgets = budgets_in(BUDGETS.read_text(encoding="utf-8"))
    print(table(sizes, budgets, at(given.since, ROOT) if given.since else None))
    if found := problems(sizes, budgets):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
