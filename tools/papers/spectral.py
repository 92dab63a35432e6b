"""FedHM with a rank per layer, planned from the spectra while it trains, against its uniform ratio at equal MACs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.fedhm import PAPER_WORK
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, Entry, Run, Scale, seeded
from papers.show import Figures, mean_of_tiers, orderings, size
from papers.tuning import Tuning

TITLE = "A rank for every layer (FedHM, beyond the paper)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
RATIOS = (0.5, 0.25, 0.125)
ROWS: dict[str, dict[str, Any]] = {"uniform": {}, "spectral": {"allocate": "spectral"}}
ALONE = {FULL: {"method": "fedavg", "tiers": (1.0,)}, SMALLEST: {"method": "fedhm", "tiers": (RATIOS[-1],)}}
TUNING: dict[Scale, Tuning | None] = dict.fromkeys(SEEDS)
"""Both rows are one method, with the rate of FedHM's own job."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"model": "resnet18", "dataset": "fashion-mnist", "clients": 100, "data_share": 0.2, "rounds": 100, "batch_size": 32},
    "quick": {"model": "resnet9", "dataset": "digits", "clients": 20, "rounds": 10, "batch_size": 20},
    "smoke": {
        "model": "resnet9",
        "dataset": "digits",
        "clients": 20,
        "rounds": 2,
        "batch_size": 20,
        "data_share": 0.1,
    },
}
"""A network of many layers: with two to share the budget among, as in the other tables' CNN, both plans are the same."""


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed: one has clients of all three ratios."""
    common = {
        **SCALE[scale],
        "profile": PROFILE,
        "method": "fedhm",
        "per_round": 10,
        "local_epochs": 1,
        "partition": "iid",
        "tiers": RATIOS,
        "tier_assignment": "uniform",
        "optimizer": "momentum",
        "lr": 0.05,
        "lr_schedule": "cosine",
        "eval_every": SCALE[scale]["rounds"],
    }
    found = [Run(row, "IID", {**common, "method_options": own}) for row, own in ROWS.items()]
    return seeded([*found, *(Run(row, "IID", {**common, **own}) for row, own in ALONE.items())], SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return per ratio what both plans cost and how good their tiers are."""
    found = Figures(entries)
    lines = []
    for tier in (f"{ratio:g}" for ratio in RATIOS):
        cells = [size(found.cost(row, "IID", tier, key)) for key in ("macs_forward", "params") for row in ROWS]
        cells += [size(found.bytes_of_round(row, "IID", tier), "B") for row in ROWS]
        lines.append([tier, *cells, *(found.accuracy(row, "IID", tier) for row in ROWS)])
    kinds = ("forward MACs", "parameters", "bytes of a client's round", "accuracy")
    titles = [f"γ ({work(entries, PAPER_WORK)})", *(f"{kind}, {row}" for kind in kinds for row in ROWS)]
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                "*Tiers*: each client keeps its tier, and all three tiers train one model.",
                "*Spectral*: from the second round on, the plan is made anew every five rounds. It has at most the MACs, parameters and "
                "activations of the uniform ratio. The table shows the costs of the last plan.",
            ),
            table(titles, lines),
            capacity(*found.alone("IID")),
            orderings(
                found, (("spectral", "uniform"),), {"IID: mean of tiers": ("IID", mean_of_tiers)}, {"IID": found.alone("IID")}
            ),
        ]
    )
