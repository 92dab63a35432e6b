"""Stored runs of the papers' tables that no run made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tool_modules import tool_of

from edgefl.methods.create import create

TABLES = (
    *(
        "flanc",
        "flanc-late",
        "pfedpara",
        "factorized",
        "fedpara-pooled",
        "fedpara",
        "prism-deep",
        "prism",
        "fedhm-sizes",
        "fedhm",
        "flanc-net",
    ),
    "spectral",
)


def figures_of(run: Any, accuracy: float = 0.5) -> dict[str, Any]:
    """Return figures as a run would: the same costs everywhere, accuracies that tell seeds apart."""
    config = run.config
    tiers = config.tiers or create(config.method).default_tiers
    labels = [f"{ratio:g}" for ratio in tiers]
    costs = {
        "params": 1_500,
        "download_bytes": 2_000,
        "upload_bytes": 3_000,
        "macs_round": 4_000_000,
        "macs_forward": 5_000,
        "macs_inference": 5_000,
        "peak_activation_bytes_training": 6_000,
    }
    value = accuracy + (run.seed / 100 if run.kind == "run" else run.settings["lr"])
    return {
        "accuracy": dict.fromkeys(["global", *labels], value),
        "local_accuracy": value if run.local else None,
        "local_accuracy_after": value if run.local else None,
        "samples": 60,
        "evaluated": 1500,
        "tiers": dict.fromkeys(labels, costs),
        "total": {"download_bytes": 10**6, "upload_bytes": 2 * 10**6, "macs": 10**9},
        **({"tail": {"conv2": value}} if config.method == "fedhm" and len(labels) > 1 else {}),
        **({"score": value} if run.kind == "trial" else {}),
        **({"late": _late(labels, value)} if run.since else {}),
    }


def _late(labels: list[str], value: float) -> dict[str, Any]:
    names = ["global", *labels]
    return {"mean": dict.fromkeys(names, value), "best": dict.fromkeys(names, value + 0.05), "rounds": 25}


def entry_of(run: Any, **about: Any) -> dict[str, Any]:
    """Return the stored line of a run by the code of this checkout."""
    return run.stored(figures_of(run), "9.9.9", inputs=tool_of("papers.inputs").inputs(dict(run.settings)), **about)


def table_at(name: str, scale: str) -> Any:
    """Return a table's runs at a scale."""
    module = tool_of("papers.queue").table_of(name)
    return tool_of("papers.states").Table(module.runs(scale), module.TUNING[scale])


def stored(name: str, scale: str) -> list[dict[str, Any]]:
    """Return the entries of a table of which everything has been run: trials, then runs."""
    table = table_at(name, scale)
    entries: list[dict[str, Any]] = []
    while trials := table.trials(entries):  # grids may grow
        entries += map(entry_of, trials)
    return [*entries, *(entry_of(run) for run in table.left(entries))]


def queue_in(folder: Path, scale: str = "quick", **changes: Any) -> Any:
    """Return a queue whose results and unfinished runs are in ``folder``."""
    host = {"processor": "none"}
    about = {"commit": "0000000", "host": host}
    return tool_of("papers.queue").Queue(scale, folder, folder / "work", {}, about, at_once=1, nice=False, **changes)
