"""FedPara: against plain low rank of equal size and dense training with equal bytes (Table 2, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.wire.payload import payload_bytes
from papers.captions import protocol
from papers.paired import capacity
from papers.runs import PROFILE, Entry, Run, Scale, seeded
from papers.show import Figures, at_tier, orderings, size
from papers.tuning import Tuning

TITLE = "Low-rank Hadamard products (FedPara, Table 2 and Figure 3)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
GAMMA, NARROW = 0.1, 0.66
EQUAL_BYTES, DENSE, SMALL = "FedAvg, equal bytes", "FedAvg, equal rounds", "narrow network, equal parameters"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedPara": ("82.88", {"method": "fedpara", "tiers": (GAMMA,)}),
    "FedPara, tanh and Jacobian": ("", {"method": "fedpara", "tiers": (GAMMA,), "method_options": {"tanh": True, "jacobian": 1.0}}),
    "low rank (Tucker-2), equal parameters": ("77.62", {"method": "lowrank", "tiers": (GAMMA,), "method_options": {"match": "fedpara"}}),
    EQUAL_BYTES: ("", {"method": "fedavg"}),
    DENSE: ("83.68", {"method": "fedavg"}),
    SMALL: ("", {"method": "origdrop", "tiers": (NARROW,)}),
}  # fmt: skip
"""Row → the paper's figure (VGG16, CIFAR-10, IID, 200 rounds; Tables 2 and 9) and what is its own."""
ORDERINGS = (
    ("FedPara", "low rank (Tucker-2), equal parameters"),
    ("FedPara", EQUAL_BYTES),
    (DENSE, "FedPara"),
    ("FedPara", SMALL),
)
COLUMN = "IID"
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 1, "batch_size": 64, "per_round": 10},
    "quick": {
        **{"rounds": 20, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"norm": "batch", "lr": 0.02},
    },
    "smoke": {"rounds": 2, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03, 0.1), ("batch", "static"), length=0.1),
    "quick": None,
    "smoke": Tuning((0.01,), ("batch", "static")),
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "cnn-fashion",
        "clients": 100,
        "optimizer": "momentum",
        "lr_schedule": "cosine",
        "partition": "iid",
    }
    found = []
    for row, (_, own) in ROWS.items():
        rounds = equal_bytes_rounds(common["rounds"]) if row == EQUAL_BYTES else common["rounds"]
        found.append(Run(row, COLUMN, {**common, **own, "rounds": rounds, "eval_every": rounds}))
    return seeded(found, SEEDS[scale])


def equal_bytes_rounds(rounds: int) -> int:
    """Return in how many rounds FedAvg moves as many bytes as FedPara in ``rounds``, rounded."""
    architecture = Architecture("cnn-fashion", (1, 28, 28), 10)
    sizes = [
        payload_bytes(create(name).shapes(architecture, Tier(ratio))) for name, ratio in (("fedpara", GAMMA), ("fedavg", 1.0))
    ]
    return max(1, round(rounds * sizes[0] / sizes[1]))


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return sizes, traffic and accuracies beside the paper's, and the orderings."""
    found = Figures(entries)
    lines = []
    for row, (paper, own) in ROWS.items():
        tier = f"{own.get('tiers', (1.0,))[0]:g}"
        macs = found.total(row, COLUMN, "macs")
        rounds = found.setting(row, "rounds")
        cells = [size(found.cost(row, None, tier, "params")), str(rounds or "–"), found.traffic(row, COLUMN), size(macs)]
        lines.append([row, *cells, found.accuracy(row, COLUMN), paper or "–"])
    titles = ["", "parameters", "rounds", "bytes, all", "MACs, all", COLUMN, "paper, VGG16 on CIFAR-10, IID"]
    note = (
        f"*Factors*: γ = {GAMMA:g} for both convolutions after the stem. The classifier with its 136 K parameters stays dense, also in the "
        "rows of low rank."
    )
    alone = capacity(*(found.values(row, COLUMN, at_tier()) for row in (DENSE, SMALL)))
    return "\n\n".join(
        [
            protocol(entries, scale, note),
            table(titles, lines),
            f"{alone} (The full network alone is FedAvg with equal rounds, the smallest tier the narrow network.)",
            orderings(found, ORDERINGS, {COLUMN: (COLUMN, at_tier())}),
        ]
    )
