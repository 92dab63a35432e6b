"""FedHM: what its larger tiers hold beyond the smallest one, for each rule of aggregation and share of small clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, Entry, Run, Scale, seeded
from papers.show import Figures, at_tier, orderings, percent
from papers.tuning import Tuning

TITLE = "Energy beyond the smallest tier (FedHM, beyond the paper)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
RULES = ("mean", "residual", "bands")
SHARES: dict[str, tuple[float, float]] = {"all γ = 1": (1.0, 0.0), "1 in 10 small": (0.9, 0.1), "half small": (0.5, 0.5)}
"""Name → the shares of clients at γ = 1 and at the smallest γ."""
FASHION: dict[str, Any] = {
    **{"dataset": "fashion-mnist", "model": "cnn-fashion", "clients": 100, "data_share": 0.2},
    **{"batch_size": 32, "local_epochs": 1, "norm": "static"},
}
TASKS: dict[str, tuple[float, dict[str, Any]]] = {
    "digits": (0.25, {"dataset": "digits", "model": "cnn-digits", "clients": 20, "batch_size": 16, "local_epochs": 5}),
    "Fashion-MNIST": (0.25, FASHION),
    "Fashion-MNIST, γ = .03": (0.03, FASHION),
}
"""Column → the smallest γ and the task. At γ = .25 the networks have little capacity to lose, so a smaller one is there too."""
PAPER_WORK = 160 * 10
"""Rounds times local epochs of ResNet-18 on CIFAR-10 (Table 4)."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 30},
    "quick": {"rounds": 8},
    "smoke": {"rounds": 1, "local_epochs": 1, "data_share": 0.01},
}
TUNING: dict[Scale, Tuning | None] = dict.fromkeys(SEEDS)
"""The rules are one method, with the rate of FedHM's own job; energy is compared before accuracy."""


def row_of(rule: str, share: str) -> str:
    """Return the row of a rule of aggregation and a share of small clients."""
    return f"{rule}, {share}"


ORDERINGS = tuple(
    (row_of(above, share), row_of(below, share))
    for share in list(SHARES)[1:]
    for above, below in (("residual", "mean"), ("bands", "mean"), ("bands", "residual"))
)


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    found = []
    for column, (smallest, task) in TASKS.items():
        common = {
            **task,
            **SCALE[scale],
            **({"data_share": 0.2} if scale == "smoke" and task["dataset"] == "digits" else {}),
            "profile": PROFILE,
            "partition": "iid",
            "per_round": 10,
            "optimizer": "momentum",
            "lr": 0.02,
            "lr_schedule": "cosine",
            "eval_every": SCALE[scale]["rounds"],
        }
        for rule in RULES:
            options = {"method": "fedhm", "tier_assignment": "uniform", "method_options": {"aggregation": rule}}
            for share, shares in SHARES.items():
                found.append(
                    Run(row_of(rule, share), column, {**common, **options, "tiers": (1.0, smallest), "tier_shares": shares})
                )
        found.append(Run(FULL, column, {**common, "method": "fedavg", "tiers": (1.0,)}))
        found.append(Run(SMALLEST, column, {**common, "method": "fedhm", "tiers": (smallest,)}))
    return seeded(found, SEEDS[scale])


def tail(figures: Any) -> float:
    """Return the energy beyond the smallest tier's rank, as a share, mean over the layers."""
    return statistics.mean(figures["tail"].values())


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the energy beyond the smallest tier and the accuracy of both tiers, by rule and share of small clients."""
    found = Figures(entries)
    parts = [
        protocol(
            entries,
            scale,
            "*Small*: clients of the smallest γ, .25 unless the title says otherwise. The others have γ = 1.",
            "*Energy*: the share of squared singular values beyond the ranks of the smallest γ, after the last round. It is the mean over "
            "the factorized layers.",
            "*Rate and normalisation* are those of FedHM's own job.",
            "*mean*: the paper's average of reconstructed weights.",
            "*residual*, *bands*: averages of changes, which keep what a client was not sent.",
        )
    ]
    for column, (smallest, _) in TASKS.items():
        own = [entry for entry in entries if entry["column"] == column]
        titles = [
            f"rule, clients ({work(own, PAPER_WORK)})",
            f"energy beyond γ = {smallest:g}",
            "accuracy, γ = 1",
            f"accuracy, γ = {smallest:g}",
        ]
        lines = [
            [name, found.measured(name, column, tail), *(found.accuracy(name, column, f"{tier:g}") for tier in (1, smallest))]
            for name in (row_of(rule, share) for share in SHARES for rule in RULES)
        ]
        parts += [f"**{column}**", table(titles, lines), capacity(*found.alone(column))]
        if sentence := finding(found, column):
            parts.append(sentence)
    measures = {f"{column}: tier 1": (column, at_tier("1")) for column in TASKS}
    parts.append(orderings(found, ORDERINGS, measures, {column: found.alone(column) for column in TASKS}))
    return "\n\n".join(parts)


def finding(found: Figures, column: str) -> str:
    """Return the sentence about what half of small clients leave of the larger tier's own ranks."""
    values, smallest = list(found.values(row_of("mean", "half small"), column, tail).values()), TASKS[column][0]
    if not values:
        return ""
    return f"By the paper's rule, with half of the clients small, tier 1 holds {percent(values)} % of its energy beyond tier {smallest:g}."
