"""pFedPara: a model per client from shared and personal factors, on clients of two classes and on clients of few samples (Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers import show
from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import PROFILE, SMALLEST, Entry, Run, Scale, seeded
from papers.show import Figures, before_and_after, orderings, size
from papers.tuning import Tuning

TITLE = "Personal factors (pFedPara, Figure 5)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2, 3, 4), "quick": (0, 1, 2), "smoke": (0,)}
ROWS: dict[str, dict[str, Any]] = {
    "pFedPara": {"method": "pfedpara", "tiers": (0.5,)},
    "FedPer": {"method": "fedper", "tiers": (1.0,)},
    "FedAvg": {"method": "fedavg", "tiers": (1.0,)},
    "Stand-alone": {"method": "standalone", "tiers": (1.0,)},
    SMALLEST: {"method": "origdrop", "tiers": (0.25,)},
}
ORDERINGS = (("pFedPara", "FedPer"), ("pFedPara", "FedAvg"), ("pFedPara", "Stand-alone"))
TWO, SCARCE = "2 classes", "20 % of the samples"
PAPER_WORK = 100 * 5
"""Rounds times local epochs (Table 6)."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 5, "batch_size": 10},
    "quick": {"rounds": 20, "local_epochs": 2, "batch_size": 20, "eval_samples": 1000, "lr": 0.03, "lr_schedule": "cosine"},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 5, "eval_samples": 50},
}
"""Full scale is the paper's Table 6, except its decay of the rate by .1 % a round, which would leave 90 % of it at the end."""
ENOUGH: dict[Scale, float] = {"full": 0.1, "quick": 0.03, "smoke": 0.002}
"""Share of Fashion-MNIST that the ten clients hold together: 600 samples each at full scale. The scarce setting has a fifth of it."""
TUNING: dict[Scale, Tuning | None] = {"full": Tuning((0.03, 0.01, 0.1), length=0.1), "quick": None, "smoke": Tuning((0.03, 0.01))}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common = {
        **SCALE[scale],
        "profile": PROFILE,
        "dataset": "fashion-mnist",
        "model": "mlp",
        "clients": 10,
        "per_round": 10,
        "optimizer": "sgd",
        "eval_every": SCALE[scale]["rounds"],
    }
    settings = {
        TWO: {"partition": "classes:2", "data_share": ENOUGH[scale]},
        SCARCE: {"partition": "dirichlet:0.5", "data_share": 0.2 * ENOUGH[scale]},
    }
    once = [
        Run(row, column, {**common, **own, **method}, local=True)
        for column, own in settings.items()
        for row, method in ROWS.items()
    ]
    return seeded(once, SEEDS[scale])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the accuracies of the clients' own models, and the orderings."""
    found = Figures(entries)
    columns = (TWO, SCARCE)
    lines = [
        [
            row,
            size(found.bytes_of_round(row, TWO, f"{own['tiers'][0]:g}"), "B"),
            *(text for column in columns for text in found.local(row, column)),
        ]
        for row, own in ROWS.items()
    ]
    alone = {column: found.alone(column, "FedAvg", SMALLEST, show.local) for column in columns}
    sentences = [f"- {column}. {capacity(*of)}" for column, of in alone.items()]
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                f"{show.BEFORE_AND_AFTER} The paper reports the accuracy after training.",
                "*20 % of the samples*: partition Dirichlet 0.5, and a fifth of the samples of the other column. The paper shows this case "
                "as a figure only.",
            ),
            table(
                [
                    work(entries, PAPER_WORK),
                    "bytes of a client's round",
                    *(head for column in columns for head in (column, "after training")),
                ],
                lines,
            ),
            "\n".join([*sentences, "- The full network alone is FedAvg."]),
            orderings(found, ORDERINGS, before_and_after(columns)),
        ]
    )
