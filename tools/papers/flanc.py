"""FLANC, Table 1: Fashion-MNIST, four widths that are drawn anew every round, on IID clients and on clients of three classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.runs import PROFILE, Run, Scale, seeded
from papers.show import Entry, Figures, protocol, size

TITLE = "Widths that share a basis (FLANC, Table 1)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
WIDTHS = (1.0, 0.75, 0.5, 0.25)
RATIOS = (1.0, 0.42, 0.28, 0.03)
"""FedHM's rank ratios in the place of the widths: .42 has the parameters of width .75 (186 K each). Its stem and classifier are dense,
138 K of them, so that no ratio comes near the 106 and 44 K of the two narrow ones; .28 and .03 have their forward MACs."""
METHODS = {"HeteroFL": "heterofl", "FjORD": "fjord", "FLANC": "flanc", "PriSM": "prism", "FedHM": "fedhm"}
PARTITIONS = {"IID": "iid", "3 classes a client": "classes:3"}
PAPER = {
    ("HeteroFL", "IID"): (91.1, 90.5, 90.5, 89.4),
    ("FjORD", "IID"): (89.1, 89.1, 88.6, 88.3),
    ("FLANC", "IID"): (91.4, 91.2, 91.1, 90.5),
    ("HeteroFL", "3 classes a client"): (84.6, 83.1, 83.7, 81.3),
    ("FjORD", "3 classes a client"): (83.7, 85.5, 83.1, 81.6),
    ("FLANC", "3 classes a client"): (86.8, 86.0, 85.7, 82.0),
}
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 200, "local_epochs": 5, "batch_size": 10},
    "quick": {"rounds": 20, "local_epochs": 1, "batch_size": 10, "data_share": 0.1, "eval_samples": 1000},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "data_share": 0.005, "eval_samples": 50},
}


def ratios(row: str) -> tuple[float, ...]:
    """Return the tiers of a method, largest first."""
    return RATIOS if row == "FedHM" else WIDTHS


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-fashion",
        "clients": 100,
        "per_round": 10,
        "tier_assignment": "dynamic",
        "optimizer": "momentum",
        "norm": "batch",
        "lr": 0.02,
        "lr_schedule": "cosine",
        "eval_every": SCALE[scale]["rounds"],
    }
    once = [
        Run(row, column, {**common, "method": method, "tiers": ratios(row), "partition": partition})
        for column, partition in PARTITIONS.items()
        for row, method in METHODS.items()
    ]
    return seeded(once, SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the accuracies per partition, beside the paper's, and the costs of one client's round."""
    found = Figures(entries)
    parts = [
        protocol(entries, scale)
        + " Tiers are dealt anew every round, all alike. *Paper*: FLANC's Table 1. FedHM's tiers are the rank ratios "
        + f"{', '.join(f'{ratio:g}' for ratio in RATIOS)}: .42 has as many parameters as width .75, .28 and .03 the forward MACs of "
        + ".5 and .25, because its dense stem and classifier alone have 138 K parameters. PriSM's keep ratio is the width."
    ]
    for column in PARTITIONS:
        titles = [f"{column}: width"]
        for row in METHODS:
            titles += [row, "paper"] if (row, column) in PAPER else [row]
        lines = [[f"{width:g}", *_cells(found, column, i)] for i, width in enumerate(WIDTHS)]
        parts.append(table(titles, lines))
    parts += ["One client's round at each tier, with the mean number of samples:", _costs(found)]
    return "\n\n".join(parts)


def _cells(found: Figures, column: str, number: int) -> list[str]:
    cells = []
    for row in METHODS:
        cells.append(found.accuracy(row, column, f"{ratios(row)[number]:g}"))
        if paper := PAPER.get((row, column)):
            cells.append(f"{paper[number]:.1f}")
    return cells


def _costs(found: Figures) -> str:
    lines = []
    for row in METHODS:
        for ratio in ratios(row):
            tier = f"{ratio:g}"
            keys = ("params", "macs_round", "peak_activation_bytes_training")
            params, macs, activations = (found.cost(row, "IID", tier, key) for key in keys)
            both = found.bytes_of_round(row, "IID", tier)
            lines.append([f"{row} {tier}", size(params), size(both, "B"), size(macs), size(activations, "B")])
    return table(["", "parameters trained", "bytes down + up", "MACs", "peak activations"], lines)
