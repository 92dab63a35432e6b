"""Which stored lines are still current although definitions have changed: their probes are trained again and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgefl.errors import InputError
from papers.inputs import inputs, of_this_code
from papers.lines import Key, Line, amend_lines, cell_of, is_current, key_of, lines_of
from papers.probe import difference, probe
from papers.training import NotTrainedError

Say = Callable[[str], None]
_BEFORE = """
import json, sys
from papers.inputs import of_this_code
from papers.probe import probe
line = json.load(sys.stdin)
print(json.dumps(probe(line["settings"], line["local"]) if of_this_code(line["settings"], line) else None))
"""
"""What another checkout is asked."""
STORED_AT_ONCE = 20
"""Confirmed lines between two writes: a command that is stopped loses the probes of fewer lines."""


def confirm(path: Path, say: Say, scale: str | None = None, before: Path | None = None) -> None:
    """Train the probe of every line of ``path`` that other code has made; add today's hash to those whose figures are equal.

    ``say`` is told each line whose probe differs, and at the end how many lines are current; nothing if all are. ``scale`` selects lines.
    ``before`` is a checkout of code that a line is current for: if today's figures differ from the stored ones, those of this code on this
    computer decide. Other processors decompose weights into other factors, which amplifies their rounding.
    """
    name, counts, hashes = path.stem, Counter[str](), dict[Key, str]()
    for of_scale, line in lines_of(path):
        if scale not in (None, of_scale):
            continue
        state, why = _state(line, before)
        counts[state] += 1
        if why:
            say(f"{name}/{cell_of(line)} ({of_scale}) is stale: {why}")
        if state == "confirmed":
            hashes[key_of(of_scale, line)] = inputs(line["settings"])
        if len(hashes) == STORED_AT_ONCE:
            _store(path, hashes)
            hashes = {}
    if hashes:
        _store(path, hashes)
    if set(counts) - {"current"}:
        say(f"{name}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))


def _store(path: Path, hashes: Mapping[Key, str]) -> None:
    """Add today's hash to the lines of ``hashes``."""
    amend_lines(path, hashes, lambda line, now: {**line, "confirmed": [*line.get("confirmed", ()), now]})


def probe_stored(path: Path, say: Say) -> None:
    """Add a probe to every line of ``path`` that has none and was made by this code, so that it can be confirmed later."""
    found, others = {}, 0
    for scale, line in lines_of(path):
        if "probe" in line:
            continue
        if not is_current(line):
            others += 1
            continue
        found[key_of(scale, line)] = probe(line["settings"], line["local"])
    if found:
        amend_lines(path, found, lambda line, own: {**line, "probe": own})
    say(f"{path.stem}: {len(found)} lines have a probe now; {others} without one were made by other code")


def _state(line: Line, before: Path | None) -> tuple[str, str]:
    """Return what a line is, and why it is stale if its probe or this version tells."""
    try:
        if of_this_code(line["settings"], line):
            return "current", ""
        if "probe" not in line:
            return "stale without a probe", ""
        found = probe(line["settings"], line["local"])
        why = difference(line["probe"], found)
        if why is not None and before is not None and (earlier := _probe_of(before, line)) is not None:
            why = difference(earlier, found)
    except (InputError, ValueError, NotTrainedError) as error:
        why = f"this version refuses it: {error}"
    return ("stale", why) if why else ("confirmed", "")


def _probe_of(checkout: Path, line: Line) -> Mapping[str, Any] | None:
    """Return the probe of a line by the code of ``checkout`` on this computer; None if the line is not current for that code."""
    paths = os.pathsep.join(str(checkout.resolve() / part) for part in ("", "tools"))
    asked = json.dumps({key: line[key] for key in ("settings", "local", "inputs", "confirmed") if key in line})
    command = [sys.executable, "-c", _BEFORE]
    done = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": paths},
        input=asked,
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"the code of {checkout} has no such run")
    return json.loads(done.stdout.splitlines()[-1])
