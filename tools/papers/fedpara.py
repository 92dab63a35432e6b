"""FedPara: against plain low rank of equal size and dense training with equal bytes (Table 2, Figure 3); pFedPara (Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from edgefl.methods.base import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.wire.payload import payload_bytes
from papers.runs import PROFILE, Run, Scale, seeded
from papers.show import Entry, Figures, protocol, size

TITLE = "Low-rank Hadamard products (FedPara, Table 2 and Figures 3 and 5)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
GAMMA = 0.1
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedPara": ("82.88", {"method": "fedpara", "tiers": (GAMMA,)}),
    "low rank (Tucker-2), equal parameters": ("77.62", {"method": "lowrank", "tiers": (GAMMA,), "method_options": {"match": "fedpara"}}),
    "FedAvg, equal bytes": ("", {"method": "fedavg"}),
    "FedAvg, equal rounds": ("83.68", {"method": "fedavg"}),
}  # fmt: skip
"""Row → the paper's figure (VGG16, CIFAR-10, IID, 200 rounds; Tables 2 and 9) and what is its own."""
PERSONAL: dict[str, str] = {"pFedPara": "pfedpara", "FedPer": "fedper", "FedAvg": "fedavg", "Stand-alone": "standalone"}
TIERS = {"pfedpara": 0.5, "fedper": 1.0, "fedavg": 1.0, "standalone": 1.0}
SHARED_SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 200, "local_epochs": 2, "batch_size": 64, "per_round": 16},
    "quick": {"rounds": 20, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
    "smoke": {"rounds": 2, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
PERSONAL_COLUMNS = ("2 classes", "20 % of the samples")
PERSONAL_SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 5, "batch_size": 10},
    "quick": {"rounds": 20, "local_epochs": 2, "batch_size": 20, "eval_samples": 1000},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "eval_samples": 50},
}
ENOUGH: dict[Scale, float] = {"full": 1.0, "quick": 0.03, "smoke": 0.002}
"""Share of Fashion-MNIST that the clients of a personal run hold together; the scarce setting has a fifth of it."""


def runs(scale: Scale) -> list[Run]:
    """Return the runs of both tables, each once per seed."""
    return seeded([*_shared_runs(scale), *_personal_runs(scale)], SEEDS[scale])


def _shared_runs(scale: Scale) -> list[Run]:
    common: dict[str, Any] = {
        **SHARED_SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-fashion",
        "clients": 100,
        "optimizer": "momentum",
        "norm": "batch",
        "lr": 0.02,
        "lr_schedule": "cosine",
    }
    found = []
    for column, partition in {"IID": "iid", "Dirichlet .5": "dirichlet:0.5"}.items():
        if scale == "quick" and column != "IID":
            continue
        for row, (_, own) in ROWS.items():
            rounds = equal_bytes_rounds(common["rounds"]) if row == "FedAvg, equal bytes" else common["rounds"]
            found.append(Run(row, column, {**common, **own, "partition": partition, "rounds": rounds, "eval_every": rounds}))
    return found


def equal_bytes_rounds(rounds: int) -> int:
    """Return in how many rounds FedAvg moves as many bytes as FedPara in ``rounds``, rounded."""
    architecture = Architecture("cnn-fashion", (1, 28, 28), 10)
    sizes = [
        payload_bytes(create(name).shapes(architecture, Tier(ratio))) for name, ratio in (("fedpara", GAMMA), ("fedavg", 1.0))
    ]
    return max(1, round(rounds * sizes[0] / sizes[1]))


def _personal_runs(scale: Scale) -> list[Run]:
    common = {
        **PERSONAL_SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "mlp",
        "clients": 10,
        "per_round": 10,
        "optimizer": "sgd",
        "lr": 0.03,
        "lr_schedule": "cosine",
        "eval_every": PERSONAL_SCALE[scale]["rounds"],
    }
    settings = {
        "2 classes": {"partition": "classes:2", "data_share": ENOUGH[scale]},
        "20 % of the samples": {"partition": "dirichlet:0.5", "data_share": 0.2 * ENOUGH[scale]},
    }
    return [
        Run(row, column, {**common, **own, "method": method, "tiers": (TIERS[method],)}, local=True)
        for column, own in settings.items()
        for row, method in PERSONAL.items()
    ]


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return both tables: one model for all, and models of the clients' own."""
    found = Figures(entries)
    columns = [column for column in ("IID", "Dirichlet .5") if any(entry["column"] == column for entry in entries)]
    lines = []
    for row, (paper, own) in ROWS.items():
        tier = f"{own.get('tiers', (1.0,))[0]:g}"
        macs = found.total(row, columns[0] if columns else None, "macs")
        rounds = found.setting(row, "rounds")
        cells = [size(found.cost(row, None, tier, "params")), str(rounds or "–"), found.traffic(row, "IID"), size(macs)]
        lines.append([row, *cells, *(found.accuracy(row, column) for column in columns), paper or "–"])
    titles = ["", "parameters", "rounds", "bytes, all", "MACs, all", *columns, "paper, VGG16 on CIFAR-10, IID"]
    personal = [
        [
            row,
            size(found.bytes_of_round(row, "2 classes", f"{TIERS[PERSONAL[row]]:g}"), "B"),
            *(found.local(row, c) for c in PERSONAL_COLUMNS),
        ]
        for row in PERSONAL
    ]
    note = f"γ = {GAMMA:g}: the factors of both convolutions after the stem; the classifier, 136 K, stays dense, in low rank too."
    return "\n\n".join(
        [
            protocol([e for e in entries if not e["local"]], scale) + " " + note,
            table(titles, lines),
            "pFedPara and its rivals. " + protocol([e for e in entries if e["local"]], scale) + " Mean over clients, each on "
            "held-out samples drawn as its own are. *20 % of the samples*: Dirichlet .5, and a fifth of what the clients of the other "
            "column have. The paper gives these only as a figure.",
            table(["", "bytes of a client's round", *PERSONAL_COLUMNS], personal),
        ]
    )
