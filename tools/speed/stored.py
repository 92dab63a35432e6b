"""Figures as ``tools/results`` stores them: JSON Lines, first what holds for all runs, then one line a run, a point or a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LISTS = ("points", "rows")
Line = dict[str, Any]


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write what a tool measured, its ``works`` as one line a run."""
    path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in _lines(found)), encoding="utf-8")


def _lines(found: Mapping[str, Any]) -> Iterator[Line]:
    yield {"about": {key: value for key, value in found.items() if key not in ("works", *LISTS)}}
    for work in found.get("works", ()):
        for entry in work["contestants"]:
            place = {key: value for key, value in {**work, **entry}.items() if key not in ("contestants", "runs")}
            yield from ({**place, "run": run} for run in entry["runs"])
    for name in LISTS:
        yield from ({name: item} for item in found.get(name, ()))


def read(path: Path) -> dict[str, Any] | None:
    """Return what ``write`` was given, or None if there is no such file."""
    if not path.exists():
        return None
    found: dict[str, Any] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "about" in line:
            found |= line["about"]
        elif "run" in line:
            _add_run(found.setdefault("works", []), line)
        else:
            ((name, item),) = line.items()
            found.setdefault(name, []).append(item)
    return found


def _add_run(works: list[dict[str, Any]], line: Line) -> None:
    """Add a run to its contestant and its work; both come in the order of their first line."""
    run = line.pop("run")
    about_work: dict[str, Any] = {key: line.pop(key) for key in ("work", "batches_a_round") if key in line}
    work = next((work for work in works if work["work"] == about_work["work"]), None)
    if work is None:
        works.append(work := {**about_work, "contestants": []})
    entry = next((entry for entry in work["contestants"] if entry["contestant"] == line["contestant"]), None)
    if entry is None:
        work["contestants"].append(entry := {**line, "runs": []})
    entry["runs"].append(run)
