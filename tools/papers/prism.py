"""PriSM: all clients at one small keep ratio, against the first kernels and the first channels (Figure 5); sampling (Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.runs import PROFILE, Run, Scale, seeded
from papers.show import Entry, Figures, protocol, size

TITLE = "Sampled kernels (PriSM, Figure 5 and Table 5)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
KEEPS = (0.4, 0.2)
METHODS = {"PriSM": "prism", "OrthDrop": "orthdrop", "OrigDrop": "origdrop"}
FULL = "full network"
SAMPLING = {
    "power (PriSM)": ("PriSM 0.2", "90.57"),
    "softmax": ("softmax", "84.74"),
    "uniform": ("uniform", "69.54"),
}
"""How kernels are drawn → its row, and the paper's figure (Table 5: ResNet-18 on CIFAR-10, IID)."""
PARTITIONS: dict[Scale, dict[str, str]] = {
    "full": {"IID": "iid", "Dirichlet 1": "dirichlet:1", "Dirichlet .1": "dirichlet:0.1"},
    "quick": {"IID": "iid"},
    "smoke": {"IID": "iid"},
}
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 200, "local_epochs": 2, "batch_size": 32, "per_round": 20, "data_share": 0.5},
    "quick": {"rounds": 16, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-fashion",
        "clients": 100,
        "tier_assignment": "uniform",
        "optimizer": "momentum",
        "norm": "batch",
        "lr": 0.02,
        "lr_schedule": "cosine",
        "weight_decay": 2e-4,
        "eval_every": SCALE[scale]["rounds"],
    }
    found = []
    for column, partition in PARTITIONS[scale].items():
        own = {**common, "partition": partition}
        found.append(Run(FULL, column, {**own, "method": "fedavg", "tiers": (1.0,)}))
        found += [
            Run(f"{row} {keep:g}", column, {**own, "method": method, "tiers": (keep,)})
            for row, method in METHODS.items()
            for keep in KEEPS
        ]
        for sampling in ("softmax", "uniform"):
            options = {"method": "prism", "tiers": (0.2,), "method_options": {"sampling": sampling}}
            found.append(Run(sampling, column, {**own, **options}))
    return seeded(found, SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the comparison at each keep ratio, and the ablation of sampling."""
    found = Figures(entries)
    columns = list(PARTITIONS[scale])
    rows = [(FULL, "1"), *((f"{row} {keep:g}", f"{keep:g}") for keep in KEEPS for row in METHODS)]
    keys = ("params", "macs_round", "peak_activation_bytes_training")
    lines = []
    for row, tier in rows:
        params, macs, activations = (found.cost(row, columns[0], tier, key) for key in keys)
        both = found.bytes_of_round(row, columns[0], tier)
        costs = [size(params), size(both, "B"), size(macs), size(activations, "B")]
        accuracies = [found.accuracy(row, column, of) for column in columns for of in (tier, "global")]
        lines.append([row, *costs, *accuracies])
    titles = ["", "parameters", "bytes of a client's round", "MACs of it", "peak activations"]
    titles += [f"{column}, {of}" for column in columns for of in ("the clients' size", "the server's model")]
    ablation = [[name, *(found.accuracy(row, c) for c in columns), paper] for name, (row, paper) in SAMPLING.items()]
    return "\n\n".join(
        [
            protocol(entries, scale)
            + " All clients have the same keep ratio. The server's model is dense for PriSM and OrthDrop, for OrigDrop the narrow "
            "network, which is all it has trained.",
            table(titles, lines),
            "How kernels are drawn, at keep ratio 0.2 (κ = 4):",
            table(["", *columns, "paper, ResNet-18 on CIFAR-10, IID"], ablation),
        ]
    )
