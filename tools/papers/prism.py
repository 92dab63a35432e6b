"""PriSM: all clients at one small keep ratio, against the first kernels and the first channels (Figure 5); sampling (Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import FULL, PROFILE, Entry, Run, Scale, seeded
from papers.show import Figures, at_tier, mean_of_tiers, orderings, size
from papers.tuning import Tuning

TITLE = "Sampled kernels (PriSM, Figure 5 and Table 5)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1), "quick": (0, 1, 2), "smoke": (0,)}
KEEPS = (0.4, 0.2)
METHODS = {"PriSM": "prism", "PriSM, reference widths": "prism", "OrthDrop": "orthdrop", "OrigDrop": "origdrop"}
WARM = "PriSM, warm-up"
SAMPLING = {
    "power (PriSM)": ("PriSM 0.2", "90.57"),
    "softmax": ("softmax", "84.74"),
    "uniform": ("uniform", "69.54"),
}
"""How kernels are drawn → its row, and the paper's figure (Table 5: ResNet-18 on CIFAR-10, IID)."""
WIDE = 0.4
"""Outputs of the authors' code, as a share."""
WARM_UP: dict[Scale, int] = {"full": 5, "quick": 2, "smoke": 1}
"""Rounds of top kernels at first: the code has 50 of the paper's 1,000 rounds."""
NETWORK: dict[str, Any] = {"model": "cnn-tiny", "norm": "none"}
"""Of the small networks tried, the one whose full width is furthest above OrigDrop's: the claim needs capacity to lose."""
PAIRS = {
    keep: (
        *((f"PriSM {keep:g}", f"{row} {keep:g}") for row in ("OrthDrop", "OrigDrop")),
        *((f"PriSM, reference widths {keep:g}", f"{row} {keep:g}") for row in ("PriSM", "OrigDrop")),
        *((("PriSM, warm-up 0.2", "PriSM 0.2"), ("PriSM 0.2", "softmax"), ("softmax", "uniform")) if keep == 0.2 else ()),
    )
    for keep in KEEPS
}
ORDERINGS = tuple(pair for pairs in PAIRS.values() for pair in pairs)
COLUMN = "IID"
PAPER_WORK = 1000 * 2
"""Rounds times local epochs of ResNet-18 (Table 10), which has the claims. Those of the small CNN are 100 · 2 (Table 11)."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 2, "batch_size": 32, "per_round": 20, "data_share": 0.5},
    "quick": {
        **{"rounds": 16, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"lr": 0.03},
    },
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
"""Full scale is the paper's Table 11."""
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.03, 0.01, 0.1), length=0.1),
    "quick": None,
    "smoke": Tuning((0.01,)),
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        **NETWORK,
        "clients": 100,
        "tier_assignment": "uniform",
        "optimizer": "momentum",
        "lr_schedule": "cosine",
        "weight_decay": 2e-4,
        "partition": "iid",
        "eval_every": SCALE[scale]["rounds"],
    }
    found = [Run(FULL, COLUMN, {**common, "method": "fedavg", "tiers": (1.0,)})]
    found += [
        Run(f"{row} {keep:g}", COLUMN, {**common, "method": method, "tiers": (keep,), **_options(row)})
        for row, method in METHODS.items()
        for keep in KEEPS
    ]
    warm = {"method": "prism", "tiers": (0.2,), "method_options": {"warmup_rounds": WARM_UP[scale]}}
    found.append(Run(f"{WARM} 0.2", COLUMN, {**common, **warm}))
    for sampling in ("softmax", "uniform"):
        options = {"method": "prism", "tiers": (0.2,), "method_options": {"sampling": sampling}}
        found.append(Run(sampling, COLUMN, {**common, **options}))
    return seeded(found, SEEDS[scale])


def _options(row: str) -> dict[str, Any]:
    return {"method_options": {"outputs": WIDE}} if row == "PriSM, reference widths" else {}


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the comparison at each keep ratio, the orderings, and the ablation of sampling."""
    found = Figures(entries)
    rows = [(FULL, "1"), *((f"{row} {keep:g}", f"{keep:g}") for keep in KEEPS for row in METHODS), (f"{WARM} 0.2", "0.2")]
    keys = ("params", "macs_round", "peak_activation_bytes_training")
    lines = []
    for row, tier in rows:
        params, macs, activations = (found.cost(row, COLUMN, tier, key) for key in keys)
        both = found.bytes_of_round(row, COLUMN, tier)
        costs = [size(params), size(both, "B"), size(macs), size(activations, "B")]
        lines.append([row, *costs, *(found.accuracy(row, COLUMN, of) for of in (tier, "global"))])
    titles = [work(entries, PAPER_WORK), "parameters", "bytes of a client's round", "MACs of it", "peak activations"]
    titles += [f"{COLUMN}, {of}" for of in ("the clients' size", "the server's model")]
    ablation = [[name, found.accuracy(row, COLUMN), paper] for name, (row, paper) in SAMPLING.items()]
    alone = {keep: found.alone(COLUMN, FULL, f"OrigDrop {keep:g}") for keep in KEEPS}
    sentences = [f"- Keep ratio {keep:g}. {capacity(*of)}" for keep, of in alone.items()]
    measures = {"the clients' size": (COLUMN, mean_of_tiers), "the server's model": (COLUMN, at_tier())}
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                "*Tiers*: all clients have the same keep ratio.",
                "*Server's model*: dense for PriSM and OrthDrop. For OrigDrop it is the narrow network, because nothing else was trained.",
                "*Reference widths*: 0.4 of the outputs at every keep ratio in a network of full width, as in the authors' code, with the "
                "cost of that. The paper's Table 1 lists the costs of the smaller networks.",
                f"*Warm-up*: the first {WARM_UP[scale]} rounds train the kernels of largest σ.",
            ),
            table(titles, lines),
            "\n".join([*sentences, "- The smallest tier alone is OrigDrop."]),
            *(f"Keep ratio {keep:g}. {orderings(found, PAIRS[keep], measures, {COLUMN: alone[keep]})}" for keep in KEEPS),
            "How kernels are drawn, at keep ratio 0.2 (κ = 4):",
            table([work(entries, PAPER_WORK), COLUMN, "paper, ResNet-18 on CIFAR-10, IID"], ablation),
        ]
    )
