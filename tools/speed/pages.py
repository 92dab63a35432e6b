"""The pages that hold figures of speed, written from the stored ones: docs/speed.md and the plot of growth."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counters.markdown import replaced

from speed.peers import load_peers
from speed.plot import growth_svg
from speed.stored import read
from speed.tables import bars_markdown, growth_markdown, methods_markdown, rounds_markdown, speed_markdown

PEERS = "peers.jsonl"
AXES = {"clients": "clients a round", "population": "the population", "parameters": "parameters", "tiers": "tiers"}
_NOT_YET = "Not measured yet: `python tools/bench.py --speed --write`."
_DETAILS: Mapping[str, Callable[[Any], str]] = {
    "rounds": rounds_markdown,
    "methods": methods_markdown,
    "growth": growth_markdown,
    "factorization": bars_markdown,
    "server-speed": bars_markdown,
    "whole-job": bars_markdown,
}


def take_peers(given: Path, results: Path) -> None:
    """Store what peerbench measured beside the other figures; stop where it is no such file."""
    try:
        if not load_peers(given):
            raise ValueError(f"{given}: no run that came to its end")
    except (OSError, ValueError) as error:
        sys.exit(f"--peers: {error}")
    if given.resolve() != (results / PEERS).resolve():
        shutil.copyfile(given, results / PEERS)


def rendered(results: Path) -> dict[tuple[str, str], str]:
    """Return (page, marker) → the table for it, from the stored figures; a word where there are none yet."""
    stored = {name: read(results / f"{name}.jsonl") for name in _DETAILS}
    found = {("docs/speed.md", f"speed-{name}"): _NOT_YET if of is None else _DETAILS[name](of) for name, of in stored.items()}
    rounds = stored["rounds"]
    found["docs/speed.md", "speed"] = _NOT_YET if rounds is None else speed_markdown(rounds, load_peers(results / PEERS))
    return found


def _contents(pages: Path, results: Path) -> dict[Path, str]:
    """Return every file as it should be."""
    found: dict[Path, str] = {}
    for (page, marker), body in rendered(results).items():
        path = pages / page
        try:
            found[path] = replaced(found.get(path) or path.read_text(encoding="utf-8"), marker, body)
        except ValueError as error:
            sys.exit(f"{path}: {error}")
    growth = read(results / "growth.jsonl")
    if growth is not None:
        found[pages / "docs" / "growth.svg"] = growth_svg(growth["points"], AXES)
    return found


def write_pages(pages: Path, results: Path) -> None:
    """Put the stored figures between the markers of the pages, and draw the plot."""
    for path, content in _contents(pages, results).items():
        path.write_text(content, encoding="utf-8")


def check_pages(pages: Path, results: Path) -> None:
    """Stop where a page has something else than the stored figures give."""
    for path, content in _contents(pages, results).items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            sys.exit(f"{path}: not what the stored figures give; --write replaces it")
