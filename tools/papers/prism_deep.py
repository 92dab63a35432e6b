"""PriSM on a network of four factorized layers: sub-models of the text and of the published code, against fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.paired import capacity
from papers.prism import PAPER_WORK, WIDE
from papers.runs import FULL, PROFILE, Entry, Run, Scale, seeded
from papers.show import Figures, at_tier, mean_of_tiers, orderings, size
from papers.tuning import Tuning

TITLE = "Sampled kernels in four layers (PriSM, Figure 5)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
KEEP = 0.2
TEXT, CODE, SMALL = "PriSM", "PriSM, reference widths", "OrigDrop"
HANDED = {row: f"{row}, momentum handed on" for row in (TEXT, CODE)}
ROWS: dict[str, dict[str, Any]] = {
    FULL: {"method": "fedavg", "tiers": (1.0,)},
    TEXT: {"method": "prism", "tiers": (KEEP,)},
    CODE: {"method": "prism", "tiers": (KEEP,), "method_options": {"outputs": WIDE}},
    HANDED[TEXT]: {"method": "prism", "tiers": (KEEP,), "method_options": {"handed_momentum": True}},
    HANDED[CODE]: {"method": "prism", "tiers": (KEEP,), "method_options": {"outputs": WIDE, "handed_momentum": True}},
    "OrthDrop": {"method": "orthdrop", "tiers": (KEEP,)},
    SMALL: {"method": "origdrop", "tiers": (KEEP,)},
}
ORDERINGS = (
    *((row, other) for row in (TEXT, CODE) for other in ("OrthDrop", SMALL)),
    (CODE, TEXT),
    *((handed, row) for row, handed in HANDED.items()),
)
COLUMN = "IID"
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 300, "local_epochs": 2, "batch_size": 32, "per_round": 20, "data_share": 0.5},
    "quick": {
        **{"rounds": 16, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"lr": 0.03},
    },
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.03, 0.01, 0.1), length=0.1, grows=True),
    "quick": None,
    "smoke": Tuning((0.01,)),
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-deep",
        "norm": "static",
        "clients": 100,
        "tier_assignment": "uniform",
        "optimizer": "momentum",
        "lr_schedule": "cosine",
        "weight_decay": 2e-4,
        "partition": "iid",
        "eval_every": SCALE[scale]["rounds"],
    }
    return seeded([Run(row, COLUMN, {**common, **own}) for row, own in ROWS.items()], SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return costs and accuracies at the clients' size and of the server's model, and the orderings."""
    found, lines = Figures(entries), []
    for row, own in ROWS.items():
        tier = f"{own['tiers'][0]:g}"
        keys = ("params", "macs_round", "peak_activation_bytes_training")
        params, macs, activations = (found.cost(row, COLUMN, tier, key) for key in keys)
        costs = [size(params), size(found.bytes_of_round(row, COLUMN, tier), "B"), size(macs), size(activations, "B")]
        lines.append([row, *costs, *(found.accuracy(row, COLUMN, of) for of in (tier, "global"))])
    titles = [work(entries, PAPER_WORK), "parameters", "bytes of a client's round", "MACs of it", "peak activations"]
    titles += [f"{COLUMN}, {of}" for of in ("the clients' size", "the server's model")]
    alone = found.alone(COLUMN, FULL, SMALL)
    measures = {"the clients' size": (COLUMN, mean_of_tiers), "the server's model": (COLUMN, at_tier())}
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                f"*Tiers*: all clients have the keep ratio {KEEP:g}. Four convolutions after the stem are factorized.",
                "*Reference widths*: 0.4 of the outputs in a network of full width, as in the authors' code, with the cost of that.",
                "*Momentum handed on*: clients send their momentum and begin with the server's average of it, as in the authors' code.",
            ),
            table(titles, lines),
            f"{capacity(*alone)} (The smallest tier alone is OrigDrop.)",
            orderings(found, ORDERINGS, measures, {COLUMN: alone}),
        ]
    )
