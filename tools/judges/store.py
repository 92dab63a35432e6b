"""The stored verdicts of a judge: a first line about the run, then one JSON line for each case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from counters.markdown import ROOT

from judges.verdict import Judge

RESULTS = ROOT / "tools" / "results" / "conformance"
WORK = ROOT / "runs" / "conformance"
"""Unfinished runs."""


@dataclass(frozen=True)
class Line:
    """The verdict of a case; ``commit`` is that of a case which was judged again after its run."""

    subject: str
    case: str
    verdict: str
    reason: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Stored:
    """What a judge has said: of which code, with which versions of packages."""

    about: dict[str, Any]
    lines: tuple[Line, ...]


def about(judge: Judge, commit: str) -> dict[str, Any]:
    """Return the first line of a run that begins now."""
    versions = {name: version(name).partition("+")[0] for name in judge.packages}
    return {"title": judge.title, "about": judge.about, "code": code(), "commit": commit, "versions": versions}


def tested() -> dict[str, str]:
    """Return package → the version that edgefl is tested with."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


@cache
def code() -> str:
    """Return a hash of edgefl's code and of the judges'."""
    files = sorted([*(ROOT / "edgefl").rglob("*.py"), *Path(__file__).parent.glob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def read(path: Path) -> Stored | None:
    """Return the verdicts of a file; None if there is none. A last line that was cut is left out.

    Raises:
        ValueError: a line is no verdict; the message names file and line.
    """
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    first, *rest = text[: text.rfind("\n") + 1].splitlines() or [""]
    try:
        return Stored(json.loads(first), tuple(Line(**json.loads(line)) for line in rest))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: a line is no verdict ({error}); delete the file, and the judge runs again") from None


def faults(lines: Iterable[Line]) -> list[Line]:
    """Return the cases in which edgefl is wrong or crashes."""
    return [line for line in lines if line.verdict in ("wrong", "crashed")]


def begun(path: Path, first: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the (subject, case) that an unfinished run of this code has judged; begin a file if there is none."""
    found = read(path) if path.exists() else None
    if found is None or any(found.about.get(key) != first[key] for key in ("code", "versions")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(first) + "\n", encoding="utf-8")
        return set()
    path.write_text(text_of(found.about, found.lines), encoding="utf-8")  # without a line that was cut
    return {(line.subject, line.case) for line in found.lines}


def text_of(first: dict[str, Any], lines: Iterable[Line]) -> str:
    """Return the text of a file."""
    entries = [first, *({key: value for key, value in vars(line).items() if value} for line in lines)]
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def amend(path: Path, lines: Sequence[Line]) -> None:
    """Put ``lines`` in the place of what a stored run says of their subjects.

    Raises:
        FileNotFoundError: there is no stored run.
    """
    found = read(path)
    if found is None:
        raise FileNotFoundError(f"{path}: no run is stored; judge everything first")
    merged = list[Line]()
    for line in found.lines:
        again = [other for other in lines if other.subject == line.subject]
        merged += [line] if not again else again if line.subject not in {other.subject for other in merged} else []
    path.write_text(text_of(found.about, merged), encoding="utf-8")


def finish(unfinished: Path, path: Path, order: Sequence[str]) -> None:
    """Store a finished run, its subjects in this ``order``, whoever was done first."""
    found = read(unfinished)
    assert found is not None
    place = {subject: number for number, subject in enumerate(order)}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = sorted(found.lines, key=lambda line: place.get(line.subject, len(place)))
    path.write_text(text_of(found.about, lines), encoding="utf-8")
    unfinished.unlink()
