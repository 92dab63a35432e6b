"""What clients of stored runs need, counted again: sizes, bytes, MACs and peak memory come from graphs, and no training decides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from papers.lines import Line, amend_lines, cell_of, is_current, key_of, lines_of
from papers.runs import kind_of
from papers.training import costs_of, prepared

MEMORY = "peak_activation_bytes_training"
"""The one cost of a client that no total of a run adds up."""


def recount(path: Path, say: Callable[[str], None]) -> bool:
    """Replace the costs of the current runs of ``path`` by those that today's code counts; return whether they all could be.

    A run whose bytes or MACs are others now stays as it is, because its totals are sums over its rounds: ``say`` is told to train it again.
    """
    found, good = {}, True
    for scale, line in lines_of(path):
        if kind_of(line) != "run" or not is_current(line) or _planned(line):
            continue
        now, stored = costs_of(prepared(line["settings"], line["local"])), line["figures"]["tiers"]
        if _added_up(now) != _added_up(stored):
            say(f"{path.stem}/{cell_of(line)} ({scale}): its clients need other bytes or MACs now; train it again")
            good = False
        elif now != stored:
            found[key_of(scale, line)] = now
    if found:
        amend_lines(path, found, lambda line, tiers: {**line, "figures": {**line["figures"], "tiers": tiers}})
        say(f"{path.stem}: {len(found)} runs need other memory than stored; their lines have it now")
    return good


def _planned(line: Line) -> bool:
    """Whether ranks are chosen from trained weights, so that only training tells the costs of a run's last plan."""
    return bool(line["settings"].get("method_options", {}).get("allocate") == "spectral")


def _added_up(tiers: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {label: {name: cost for name, cost in costs.items() if name != MEMORY} for label, costs in tiers.items()}
