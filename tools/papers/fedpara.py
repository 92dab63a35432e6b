"""FedPara: against plain low rank of equal size and dense training with equal bytes (Table 2, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counters.markdown import table

from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.wire.payload import payload_bytes
from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import PROFILE, Entry, Run, Scale, Settings, seeded
from papers.show import Figures, at_tier, orderings, size
from papers.tuning import Tuning

TITLE = "Low-rank Hadamard products behind a dense classifier (FedPara, Table 2 and Figure 3)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
MODEL, GAMMA, NARROW = "cnn-fashion", 0.1, 0.66
EQUAL_BYTES, DENSE, SMALL = "FedAvg, equal bytes", "FedAvg, equal rounds", "narrow network, equal parameters"
LOW = "low rank (Tucker-2), equal parameters"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedPara": ("82.88", {"method": "fedpara", "tiers": (GAMMA,)}),
    "FedPara, tanh and Jacobian": (
        "",
        {"method": "fedpara", "tiers": (GAMMA,), "method_options": {"tanh": True, "jacobian": 1.0}},
    ),
    LOW: ("77.62", {"method": "lowrank", "tiers": (GAMMA,), "method_options": {"match": "fedpara"}}),
    EQUAL_BYTES: ("", {"method": "fedavg"}),
    DENSE: ("83.68", {"method": "fedavg"}),
    SMALL: ("", {"method": "origdrop", "tiers": (NARROW,)}),
}
"""Row → the paper's figure (VGG16, CIFAR-10, IID, 200 rounds; Tables 2 and 9) and what is its own."""
ORDERINGS = (("FedPara", LOW), ("FedPara", EQUAL_BYTES), (DENSE, "FedPara"), ("FedPara", SMALL))
COLUMN = "IID"
PAPER_WORK = 200 * 10
"""Rounds times local epochs (Table 6)."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 1, "batch_size": 64, "per_round": 10},
    "quick": {
        **{"rounds": 20, "local_epochs": 1, "batch_size": 10, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"norm": "static", "lr": 0.02},
    },
    "smoke": {"rounds": 2, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03, 0.1), ("static",), length=0.1),
    "quick": None,
    "smoke": Tuning((0.01,), ("static",)),
}
NOTE = (
    f"*Factors*: γ = {GAMMA:g} for both convolutions after the stem. The classifier with its 136 K parameters stays dense, also in the "
    "rows of low rank. It is 48 % of the network, and 89 % of FedPara's form of it: FedPara sends 1.9 times less than FedAvg here, and 9.9 "
    "times less in the paper."
)


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    return runs_of(ROWS, scale, {**SCALE[scale], "model": MODEL, "optimizer": "momentum"})


def runs_of(rows: Mapping[str, tuple[str, Settings]], scale: Scale, settings: Settings) -> list[Run]:
    """Return the runs of ``rows``, each once per seed, with common ``settings``."""
    common = {
        **settings,
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "clients": 100,
        "lr_schedule": "cosine",
        "partition": "iid",
    }
    found = []
    for row, (_, own) in rows.items():
        rounds = equal_bytes_rounds(common["rounds"], common["model"]) if row == EQUAL_BYTES else common["rounds"]
        found.append(Run(row, COLUMN, {**common, **own, "rounds": rounds, "eval_every": rounds}))
    return seeded(found, SEEDS[scale])


def equal_bytes_rounds(rounds: int, model: str = MODEL) -> int:
    """Return in how many rounds FedAvg moves as many bytes as FedPara in ``rounds``, rounded."""
    architecture = Architecture(model, (1, 28, 28), 10)
    sizes = [
        payload_bytes(download_shapes(create(name), architecture, Tier(ratio)))
        for name, ratio in (("fedpara", GAMMA), ("fedavg", 1.0))
    ]
    return max(1, round(rounds * sizes[0] / sizes[1]))


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return sizes, traffic and accuracies beside the paper's, and the orderings."""
    return render_of(entries, scale, ROWS, ORDERINGS, NOTE)


def render_of(
    entries: Sequence[Entry],
    scale: Scale,
    rows: Mapping[str, tuple[str, Settings]],
    pairs: Sequence[tuple[str, str]],
    *notes: str,
) -> str:
    """Return the table of ``rows``, its capacity, and the orderings of ``pairs``."""
    found = Figures(entries)
    lines = []
    for row, (paper, own) in rows.items():
        tier = f"{own.get('tiers', (1.0,))[0]:g}"
        macs = found.total(row, COLUMN, "macs")
        rounds = found.setting(row, "rounds")
        cells = [size(found.cost(row, None, tier, "params")), str(rounds or "–"), found.traffic(row, COLUMN), size(macs)]
        lines.append([row, *cells, found.accuracy(row, COLUMN), paper or "–"])
    titles = [
        work(entries, PAPER_WORK),
        "parameters",
        "rounds",
        "bytes, all",
        "MACs, all",
        COLUMN,
        "paper, VGG16 on CIFAR-10, IID",
    ]
    alone = found.alone(COLUMN, DENSE, SMALL)
    return "\n\n".join(
        [
            protocol(entries, scale, *notes),
            table(titles, lines),
            f"{capacity(*alone)} (The full network alone is FedAvg with equal rounds, the smallest tier the narrow network.)",
            orderings(found, pairs, {COLUMN: (COLUMN, at_tier())}, {COLUMN: alone}),
        ]
    )
