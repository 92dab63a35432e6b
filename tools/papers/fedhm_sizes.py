"""FedHM, Tables 2 and 3: against HeteroFL and Split-Mix at equal sizes of the clients' models, and DepthFL beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.fedhm import PAPER_WORK, RULES
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, UNCLIPPED, Entry, Run, Scale, seeded
from papers.show import NONE, Figures, Measure, at_tier, mean_of_tiers, orderings, size
from papers.tuning import Tuning

TITLE = "Equal sizes (FedHM, Tables 2 and 3)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
MODEL, NORM = "cnn-pooled", "static"
RATIOS, WIDTHS = (1.0, 0.5, 0.26, 0.125), (1.0, 0.609375, 0.4375, 0.3125)
"""FedHM's rank ratios, and HeteroFL's widths with the same parameters to 1 %."""
BASES = (0.9375, 0.625, 0.3125)
"""Three, two and one base of HeteroFL's smallest width. Split-Mix has no more of them."""
DEPTHS = (1.0, 0.75, 0.5, 0.25)
ROWS: dict[str, dict[str, Any]] = {
    **{f"FedHM, {rule}": {"method": "fedhm", "tiers": RATIOS, "method_options": {"aggregation": rule}} for rule in RULES},
    "HeteroFL": {"method": "heterofl", **UNCLIPPED, "tiers": WIDTHS},
    "Split-Mix": {"method": "splitmix", "tiers": BASES},
    "DepthFL": {"method": "depthfl", "tiers": DEPTHS},
}
ALONE = {FULL: {"method": "fedavg", "tiers": (1.0,)}, SMALLEST: {"method": "origdrop", "tiers": (WIDTHS[-1],)}}
MEAN = f"FedHM, {RULES[0]}"
ORDERINGS = (
    *((MEAN, row) for row in ("HeteroFL", "Split-Mix")),
    *((f"FedHM, {rule}", MEAN) for rule in RULES[1:]),
    *((f"FedHM, {rule}", "HeteroFL") for rule in RULES[1:]),
    ("DepthFL", "HeteroFL"),
)
COLUMNS = {"IID": "iid", "Dirichlet .5": "dirichlet:0.5"}
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 2, "batch_size": 64, "data_share": 0.2},
    "quick": {"rounds": 10, "local_epochs": 1, "batch_size": 16, "data_share": 0.04, "eval_samples": 1000, "lr": 0.03},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "data_share": 0.005, "eval_samples": 50},
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.03, 0.01, 0.1), length=0.2, grows=True),
    "quick": None,
    "smoke": Tuning((0.03,)),
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed: 20 clients, of which half train in a round, each at a tier that is drawn anew."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": MODEL,
        "norm": NORM,
        "clients": 20,
        "per_round": 10,
        "tier_assignment": "dynamic",
        "optimizer": "momentum",
        "lr_schedule": "step",
        "weight_decay": 1e-4,
        "eval_every": SCALE[scale]["rounds"],
    }
    rows = {**ROWS, **ALONE}
    found = [
        Run(row, column, {**common, "partition": partition, **own})
        for column, partition in COLUMNS.items()
        for row, own in rows.items()
    ]
    return seeded(found, SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return for each row and tier its costs and accuracies; then capacity and orderings."""
    found, lines = Figures(entries), []
    for row, own in {**ROWS, **ALONE}.items():
        for tier in (f"{ratio:g}" for ratio in own["tiers"]):
            keys = ("params", "macs_forward", "peak_activation_bytes_training")
            params, macs, activations = (found.cost(row, "IID", tier, key) for key in keys)
            both = found.bytes_of_round(row, "IID", tier)
            costs = [size(params), size(both, "B"), size(activations, "B"), size(macs)]
            lines.append([f"{row} {tier}", *costs, *(found.accuracy(row, column, tier) for column in COLUMNS)])
    measures: dict[str, tuple[str, Measure]] = {}
    for column in COLUMNS:
        measures |= {f"{column}: mean of tiers": (column, mean_of_tiers), f"{column}: server's model": (column, at_tier())}
    heads = ["parameters", "bytes of a client's round", "peak activations", "forward MACs"]
    titles = [f"tier ({work(entries, PAPER_WORK)})", *heads, *COLUMNS]
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                "*Tiers* are drawn anew every round, with equal chances, as in the paper's Table 2.",
                "*Sizes*: HeteroFL's widths have the parameters, and so the bytes, of FedHM's ratios to 1 %. Split-Mix has one to three "
                "bases of the smallest width.",
                "*Activations*: FedHM's stay at the full network's at every ratio. With as many, HeteroFL has width 1, and is the full "
                "network alone.",
                "*HeteroFL* does not clip gradients, as the other rows.",
                "*DepthFL* has a quarter to all of the blocks.",
            ),
            table(titles, lines),
            *_within(found),
            "\n".join(f"- {column}. {capacity(*found.alone(column))}" for column in COLUMNS),
            orderings(found, ORDERINGS, measures, {column: found.alone(column) for column in COLUMNS}),
        ]
    )


def _within(found: Figures) -> list[str]:
    """Return for each budget, the bytes and peak activations of a tier of HeteroFL, the largest tier of each row that keeps both."""
    lines = []
    for budget in map(_label, WIDTHS):
        limits = _held(found, "HeteroFL", budget)
        if None in limits:
            return []
        for row, own in ROWS.items():
            fitting = [tier for tier in map(_label, own["tiers"]) if _fits(_held(found, row, tier), limits)]
            cells = [found.accuracy(row, column, fitting[0]) if fitting else NONE for column in COLUMNS]
            lines.append(
                [f"{size(limits[0], 'B')}, {size(limits[1], 'B')}", f"{row} {fitting[0]}" if fitting else f"{row}: none", *cells]
            )
    said = (
        "Within equal bytes and peak activations: the budgets are those of HeteroFL's tiers. Every method has its largest tier that keeps "
        "both. A low rank saves no activations: where tier 1 of FedHM does not fit, no tier of it does."
    )
    return [said, table(["bytes of a round, peak activations", "largest tier within", *COLUMNS], lines)]


def _label(ratio: float) -> str:
    return f"{ratio:g}"


def _held(found: Figures, row: str, tier: str) -> tuple[float | None, float | None]:
    """Return the bytes of a client's round at a tier, and its peak activations."""
    return found.bytes_of_round(row, "IID", tier), found.cost(row, "IID", tier, "peak_activation_bytes_training")


def _fits(held: tuple[float | None, float | None], limits: tuple[float | None, float | None]) -> bool:
    """Whether bytes and activations keep their limits to 1 %, to which sizes are matched."""
    return all(one is not None and most is not None and one <= 1.01 * most for one, most in zip(held, limits, strict=True))
