"""The files of tools/results/: one JSON line per finished run. They are replaced as a whole, under a lock, so none is ever half written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgefl.util.files import storage_errors, write_bytes
from papers.runs import SCALES, kind_of, same_place

Entries = dict[str, list[dict[str, Any]]]
"""Scale → stored runs and trials."""
_KEYS = {"scale": str, "row": str, "column": str, "seed": int, "local": bool, "settings": dict, "figures": dict}


PROBED = ("train_loss", "held_out_loss", "accuracy")
"""Lists of figures of a probe."""


class ResultsError(ValueError):
    """A file of results holds something else."""


def load(path: Path) -> Entries:
    """Return the stored runs by scale; none where there is no file.

    Raises:
        ResultsError: a line is cut or is no run; the message names file, line, key and expectation.
    """
    if not path.exists():
        return {}
    stored: Entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry = _checked(line, f"{path}, line {number}")
        stored.setdefault(entry.pop("scale"), []).append(entry)
    return stored


def _checked(line: str, where: str) -> dict[str, Any]:
    repeat = "delete the line, and the queue repeats its run"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ResultsError(f"{where}: not a whole line of JSON ({error}); {repeat}") from None
    if not isinstance(entry, dict):
        raise ResultsError(f"{where}: got {line[:40]!r}, expected a JSON object; {repeat}")
    for key, kind in _KEYS.items():
        if not isinstance(value := entry.get(key), kind):
            raise ResultsError(f"{where}: {key}: got {value!r}, expected a {kind.__name__}; {repeat}")
    if entry["scale"] not in SCALES:
        raise ResultsError(f"{where}: scale: got {entry['scale']!r}, expected one of {', '.join(SCALES)}; {repeat}")
    _check_probe(entry, where, repeat)
    return entry


def _check_probe(entry: Mapping[str, Any], where: str, repeat: str) -> None:
    """Refuse a probe that is not whole: it would confirm what it does not show."""
    hashes = entry.get("confirmed", [])
    if not isinstance(hashes, list) or not all(isinstance(one, str) for one in hashes):
        raise ResultsError(f"{where}: confirmed: got {hashes!r}, expected a list of hashes; {repeat}")
    if "probe" not in entry:
        return
    probe = entry["probe"]
    for key in PROBED:
        figures = probe.get(key) if isinstance(probe, dict) else None
        if not isinstance(figures, list) or not figures or not all(type(one) in (int, float) for one in figures):
            raise ResultsError(f"{where}: probe: {key}: got {figures!r}, expected a list of numbers; {repeat}")


def save(path: Path, stored: Entries) -> None:
    """Write the file whole or not at all; the order of its lines does not depend on which run finished first.

    Raises:
        StorageError: the disk is full; the file is unchanged.
    """
    lines = [{"scale": scale, **entry} for scale, entries in stored.items() for entry in entries]
    texts = [f"{json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False)}\n" for line in sorted(lines, key=_order)]
    write_bytes(path, "".join(texts).encode())


def _order(line: dict[str, Any]) -> tuple[Any, ...]:
    settings = line["settings"]
    return (
        line["scale"],
        line["column"],
        line["row"],
        kind_of(line),
        line["seed"],
        settings.get("lr", 0.0),
        settings.get("norm", ""),
    )


def add(path: Path, scale: str, entry: dict[str, Any]) -> None:
    """Store one run in the place of an older one of the same cell and seed; processes that add at the same time wait for each other."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        stored = load(path)
        others = [other for other in stored.get(scale, []) if not same_place(other, entry)]
        save(path, {**stored, scale: [*others, entry]})


def amend(path: Path, change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
    """Replace every line of a file by what ``change`` makes of its scale and its entry."""
    with locked(path.parent):
        save(path, {scale: [change(scale, entry) for entry in entries] for scale, entries in load(path).items()})


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process at the latest; wait for it as long as another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Make a folder and hold its lock; yields False at once if another process has it."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
