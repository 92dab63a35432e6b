"""What other simulators took for the same works: the lines that peerbench's ``run.py`` appends, one a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from speed.work import DISTURBED

FLOWER, OURS, FLOORS = "flower", "edgefl", "floor"


def load_peers(path: Path) -> list[dict[str, Any]]:
    """Return the runs in the file at ``path`` that came to their end; none where there is no file.

    Raises:
        ValueError: a line is no record of a run.
    """
    if not path.exists():
        return []
    runs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            run = json.loads(line)
            kept = {"contestant": str(run["contestant"]), "scenario": str(run["scenario"]), "failed": bool(run.get("failed"))}
            if not kept["failed"] and not run["mem_run"]:
                others = float(run["foreign_s"]) / float(run["wall_s"])
                runs.append({**kept, "seconds": float(run["round_med"]), "others": others, "startup_s": float(run["startup_s"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a run of peerbench ({error!r})") from None
    return runs


def seconds_of(runs: Sequence[Mapping[str, Any]], scenario: str) -> dict[str, float]:
    """Return contestant → its median round in a scenario, over undisturbed runs, or over all if there is none.

    >>> seconds_of([{"contestant": "pfl", "scenario": "T", "seconds": s, "others": o} for s, o in ((1, 0), (9, 0.5))], "T")
    {'pfl': 1}
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["scenario"] == scenario:
            found.setdefault(run["contestant"], []).append(run)
    quiet = {name: [run for run in of if run["others"] <= DISTURBED] or of for name, of in found.items()}
    return {name: median(run["seconds"] for run in of) for name, of in quiet.items()}


def best_peer(seconds: Mapping[str, float]) -> str | None:
    """Return the quickest contestant that is neither a bare loop nor edgefl itself."""
    others = [name for name in seconds if not name.startswith((FLOORS, OURS))]
    return min(others, key=lambda name: seconds[name], default=None)


def quickest_loop(seconds: Mapping[str, float]) -> str | None:
    """Return the quickest bare loop."""
    return min((name for name in seconds if name.startswith(FLOORS)), key=lambda name: seconds[name], default=None)


def against(runs: Sequence[Mapping[str, Any]], scenario: str, peer: str, contestant: str = OURS) -> float | None:
    """Return a contestant's round over a peer's, the median over the turns in which both ran; None where it did not take part."""
    ours, theirs = (
        [run for run in runs if (run["scenario"], run["contestant"]) == (scenario, name)] for name in (contestant, peer)
    )
    pairs = list(zip(ours, theirs, strict=False))
    quiet = [pair for pair in pairs if max(run["others"] for run in pair) <= DISTURBED]
    return median(one["seconds"] / two["seconds"] for one, two in quiet or pairs) if pairs else None
