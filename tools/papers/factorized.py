"""Factorized-FL, Table 1: clients that name the classes alike, and clients that each have an order of their own for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.runs import PROFILE, Run, Scale, seeded
from papers.show import Entry, Figures, protocol

TITLE = "Labels in an order of one's own (Factorized-FL, Table 1)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
HOME = {"method_options": {"layers": 1}, "method": "fedper"}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Stand-alone": ({"method": "standalone", "tiers": (1.0,)}, {"method": "standalone", "tiers": (1.0,)}),
    "FedAvg": ({"method": "fedavg"}, HOME),
    "FedProx": ({"method": "fedavg", "objective": "prox"}, {**HOME, "objective": "prox"}),
    "Clustered-FL": ({"method": "clustered-fl"}, {"method": "clustered-fl"}),
    "pFedPara": ({"method": "pfedpara"}, {"method": "pfedpara", "method_options": {"personal_classifier": True}}),
    "Factorized-FL": (
        {"method": "factorized-fl", "lr": 0.005, "method_options": {"personal_classifier": False}},
        {"method": "factorized-fl", "lr": 0.005},
    ),
    "Factorized-FL β": (
        {"method": "factorized-fl-beta", "lr": 0.005, "method_options": {"personal_classifier": False}},
        {"method": "factorized-fl-beta", "lr": 0.005},
    ),
}
"""Row → its own settings where labels are alike, and where they are permuted: the paper then leaves the classifiers on the clients."""
PAPER = {
    "Stand-alone": ("64.31", "63.93", "–"),
    "FedAvg": ("70.28", "65.31", "20.39 GB"),
    "FedProx": ("70.54", "66.28", "20.39 GB"),
    "Clustered-FL": ("69.48", "65.77", "20.39 GB"),
    "pFedPara": ("67.96", "65.12", "7.4 GB"),
    "Factorized-FL": ("66.97", "67.91", "0.32 GB"),
    "Factorized-FL β": ("76.26", "70.59", "18.25 GB"),
}
"""Row → standard IID, permuted IID, traffic (CIFAR-10, ResNet-9)."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"dataset": "fashion-mnist", "model": "cnn-fashion", "rounds": 50, "local_epochs": 5, "batch_size": 256},
    "quick": {"dataset": "digits", "model": "cnn-digits", "rounds": 8, "local_epochs": 2, "batch_size": 16},
    "smoke": {"dataset": "digits", "model": "cnn-digits", "rounds": 1, "local_epochs": 1, "batch_size": 16, "data_share": 0.1},
}
PARTITIONS: dict[Scale, dict[str, str]] = {
    "full": {"IID": "iid", "Dirichlet .5": "dirichlet:0.5"},
    "quick": {"IID": "iid"},
    "smoke": {"IID": "iid"},
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "clients": 20,
        "per_round": 20,
        "optimizer": "momentum",
        "lr": 0.02,
        "weight_decay": 1e-6,
        "eval_every": SCALE[scale]["rounds"],
    }
    found = []
    for column, partition in PARTITIONS[scale].items():
        for row, (alike, permuted) in ROWS.items():
            own = {**common, "partition": partition}
            found.append(Run(row, column, {**own, **alike}, local=True))
            found.append(Run(row, f"{column}, permuted", {**own, **permuted, "permute_labels": True}, local=True))
    return seeded(found, SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return accuracies with labels alike and permuted, and all bytes of a run, beside the paper's."""
    found = Figures(entries)
    columns = [name for column in PARTITIONS[scale] for name in (column, f"{column}, permuted")]
    lines = []
    for row in ROWS:
        standard, permuted, traffic = PAPER[row]
        accuracies = [found.local(row, column) for column in columns]
        lines.append([row, *accuracies, found.traffic(row, "IID"), standard, permuted, traffic])
    titles = ["", *columns, "bytes, all", "paper: IID", "permuted", "bytes"]
    return "\n\n".join(
        [
            protocol(entries, scale)
            + " Factorized-FL and β have the smaller rate: a step moves a product of rank-1 factors several times as far. Mean over "
            "clients, each on held-out samples labelled as it labels them. With permuted labels "
            "the classifier stays on the client, as in the paper, but for Clustered-FL, which has no such variant here. "
            "*Paper*: CIFAR-10, ResNet-9, 50 rounds of 5 epochs.",
            table(titles, lines),
        ]
    )
