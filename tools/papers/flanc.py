"""FLANC, Table 1: Fashion-MNIST, four widths that are drawn anew every round, on IID clients and on clients of three classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, UNCLIPPED, Entry, Run, Scale, seeded
from papers.show import Figures, Measure, at_tier, mean_of_tiers, orderings, size
from papers.tuning import Tuning

TITLE = "Widths that share a basis (FLANC, Table 1)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
WIDTHS = (1.0, 0.75, 0.5, 0.25)
RATIOS = (1.0, 0.42, 0.28, 0.03)
"""FedHM's rank ratios in the place of the widths at reduced scale: .42 has the parameters of width .75 (186 K each). Its stem and
classifier are dense, 138 K of them, so that no ratio comes near the 106 and 44 K of the two narrow ones; .28 and .03 have their forward
MACs. At full scale they are the ratios of its own paper, and 1."""
PAPER_RATIOS = (1.0, 0.5, 0.25, 0.125)
METHODS: dict[str, dict[str, Any]] = {
    "HeteroFL": {"method": "heterofl", **UNCLIPPED},
    "HeteroFL, unmasked loss": {"method": "heterofl", **UNCLIPPED, "method_options": {"mask_labels": False}},
    "FjORD": {"method": "fjord"},
    "FLANC": {"method": "flanc"},
    "PriSM": {"method": "prism"},
    "FedHM": {"method": "fedhm"},
    "FedHM, unmasked loss": {"method": "fedhm", "method_options": {"mask_labels": False}},
}
"""A masked loss omits the labels that a client lacks. In both forms the server averages a row of the classifier over the clients that have
its label."""
CLIPPED = "HeteroFL, clipped"
AT_RATES = {f"{CLIPPED}, rate {rate:g}": {"method": "heterofl", "lr": rate} for rate in (0.01, 0.03)}
CLIPPING: dict[str, dict[str, Any]] = {
    CLIPPED: {"method": "heterofl"},
    **AT_RATES,
    **{f"{row}, unmasked loss": {**own, "method_options": {"mask_labels": False}} for row, own in AT_RATES.items()},
}
"""With gradients of a norm of at most 1, as in the authors' code and by default. The other rows of HeteroFL do not clip."""
UNMASKED = {
    "HeteroFL, unmasked loss": "HeteroFL",
    "FedHM, unmasked loss": "FedHM",
    **{f"{row}, unmasked loss": row for row in AT_RATES},
}
"""Rows that are others on IID clients at full scale: each of those has all labels among its 600 samples, and a masked loss omits none."""
MADE = {**METHODS, **CLIPPING}
NOTES = (
    "*Paper*: Table 1 of FLANC, on its own network.",
    "*HeteroFL* does not clip gradients (`--clip-gradient none`), as the other methods.",
)
SHARED = "*Unmasked loss*: on IID clients, which all have every label, the runs of both losses are the same and were made once."
ALONE = {FULL: {"method": "fedavg", "tiers": (1.0,)}, SMALLEST: {"method": "origdrop", "tiers": (0.25,)}}
ORDERINGS = (
    ("FLANC", "HeteroFL"),
    ("FLANC", "HeteroFL, unmasked loss"),
    ("FLANC", "FjORD"),
    ("FLANC", "FedHM"),
    ("FedHM", "HeteroFL"),
    ("FLANC", "PriSM"),
    ("HeteroFL, unmasked loss", "HeteroFL"),
    ("FedHM, unmasked loss", "FedHM"),
)
PARTITIONS = {"IID": "iid", "3 classes a client": "classes:3"}
PAPER = {
    ("HeteroFL", "IID"): (91.1, 90.5, 90.5, 89.4),
    ("FjORD", "IID"): (89.1, 89.1, 88.6, 88.3),
    ("FLANC", "IID"): (91.4, 91.2, 91.1, 90.5),
    ("HeteroFL", "3 classes a client"): (84.6, 83.1, 83.7, 81.3),
    ("FjORD", "3 classes a client"): (83.7, 85.5, 83.1, 81.6),
    ("FLANC", "3 classes a client"): (86.8, 86.0, 85.7, 82.0),
}
PAPER_WORK = 200
"""Rounds of one local epoch each, in the authors' script."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 200, "local_epochs": 1, "batch_size": 32, "lr_schedule": "step", "weight_decay": 1e-4, "augment": "flip"},
    "quick": {
        **{"rounds": 20, "local_epochs": 1, "batch_size": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"norm": "static", "lr": 0.02, "lr_schedule": "cosine"},
    },
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "data_share": 0.005, "eval_samples": 50, "lr_schedule": "step"},
}
"""Full scale is the authors' published ``demo.sh``: 600 samples a client, and a tenth of the rate in the second half."""
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03), ("static",), length=0.1, column="IID", same=UNMASKED),
    "quick": None,
    "smoke": Tuning((0.01,), ("static",), column="IID"),
}


def ratios(row: str, scale: Scale) -> tuple[float, ...]:
    """Return the tiers of a method, largest first."""
    return WIDTHS if not row.startswith("FedHM") else RATIOS if scale == "quick" else PAPER_RATIOS


def common(scale: Scale, **network: Any) -> dict[str, Any]:
    """Return what all runs have in common; ``network`` are settings of another network."""
    found = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-fashion",
        "clients": 100,
        "per_round": 10,
        "tier_assignment": "dynamic",
        "optimizer": "momentum",
        **network,
    }
    return {**found, "eval_every": found["rounds"]}


def runs(scale: Scale, rows: Sequence[str] = tuple(METHODS), **network: Any) -> list[Run]:
    """Return every run, each once per seed; ``network`` are settings of another network, on which only ``rows`` are run."""
    shared = common(scale, **network)
    once, same = [], _same(scale, rows)
    for column, partition in PARTITIONS.items():
        own = {**shared, "partition": partition}
        made = [row for row in rows if column != "IID" or row not in same]
        once += [Run(row, column, {**own, **MADE[row], "tiers": ratios(row, scale)}) for row in made]
        once += [Run(row, column, {**own, **method}) for row, method in ALONE.items()]
    return seeded(once, SEEDS[scale])


def _same(scale: Scale, rows: Sequence[str]) -> dict[str, str]:
    """Return row → the other row that it is on IID clients."""
    return {row: UNMASKED[row] for row in rows if scale == "full" and row in UNMASKED}


def render(
    entries: Sequence[Entry],
    scale: Scale,
    rows: Sequence[str] = tuple(METHODS),
    notes: Sequence[str] = NOTES,
    pairs: Sequence[tuple[str, str]] = ORDERINGS,
) -> str:
    """Return the accuracies per partition beside the paper's, the orderings, and the costs of one client's round."""
    same = _same(scale, rows)
    shared = [{**e, "row": row} for row, of in same.items() for e in entries if (e["row"], e["column"]) == (of, "IID")]
    found = Figures([*entries, *shared])
    drawn = "*Tiers* are drawn anew every round, with equal chances."
    of_ranks = [row for row in rows if row.startswith("FedHM")]
    parts = [protocol(entries, scale, drawn, *notes, *_tiers(scale), *([SHARED] if same else []))]
    for column in PARTITIONS:
        for label, shown in (("width", [row for row in rows if row not in of_ranks]), ("FedHM's γ", of_ranks)):
            titles = [f"{column}: {label} ({work(entries, PAPER_WORK)})"]
            for row in shown:
                titles += [row, "paper"] if (row, column) in PAPER else [row]
            tiers = ratios(shown[0], scale)
            parts.append(table(titles, [[f"{tier:g}", *_cells(found, column, i, scale, shown)] for i, tier in enumerate(tiers)]))
        parts.append(f"{column}. {capacity(*found.alone(column))}")
    measures: dict[str, tuple[str, Measure]] = {}
    for column in PARTITIONS:
        measures[f"{column}: mean of widths"] = (column, mean_of_tiers)
        measures[f"{column}: global model"] = (column, at_tier())
    parts += [orderings(found, pairs, measures, {column: found.alone(column) for column in PARTITIONS})]
    parts += ["One client's round at each tier, with the mean number of samples:", _costs(found, scale, rows)]
    return "\n\n".join(parts)


def _tiers(scale: Scale) -> list[str]:
    shown = ", ".join(f"{ratio:g}" for ratio in ratios("FedHM", scale))
    fedhm = f"*FedHM*: the tiers are the rank ratios {shown}. They are no widths: a small one has more bytes and activations."
    if scale == "quick":
        fedhm += (
            " Ratio 0.42 has as many parameters as width 0.75. Ratios 0.28 and 0.03 have the forward MACs of widths 0.5 and 0.25. Equal "
            "parameters are impossible there: the dense stem and classifier alone have 138 K."
        )
    return [fedhm, "*PriSM*: the keep ratio is the width."]


def _cells(found: Figures, column: str, number: int, scale: Scale, rows: Sequence[str]) -> list[str]:
    cells = []
    for row in rows:
        cells.append(found.accuracy(row, column, f"{ratios(row, scale)[number]:g}"))
        if paper := PAPER.get((row, column)):
            cells.append(f"{paper[number]:.1f}")
    return cells


def _costs(found: Figures, scale: Scale, rows: Sequence[str]) -> str:
    lines = []
    for row in (row for row in rows if row not in CLIPPING):  # clipping costs none of these
        for ratio in ratios(row, scale):
            tier = f"{ratio:g}"
            keys = ("params", "macs_round", "peak_activation_bytes_training")
            params, macs, activations = (found.cost(row, "IID", tier, key) for key in keys)
            both = found.bytes_of_round(row, "IID", tier)
            label = f"γ = {tier}" if row.startswith("FedHM") else tier
            lines.append([f"{row} {label}", size(params), size(both, "B"), size(macs), size(activations, "B")])
    return table(["", "parameters trained", "bytes down + up", "MACs", "peak activations"], lines)
