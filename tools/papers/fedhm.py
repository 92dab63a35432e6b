"""FedHM: what its larger tiers hold beyond the smallest one, for each rule of aggregation and share of small clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from papers.captions import protocol
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, Entry, Run, Scale, seeded
from papers.show import Figures, at_tier, orderings, percent
from papers.tuning import Tuning

TITLE = "Energy beyond the smallest tier (FedHM, beyond the paper)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
TIERS = (1.0, 0.25)
RULES = ("mean", "residual", "bands")
SHARES: dict[str, tuple[float, float]] = {"all γ = 1": (1.0, 0.0), "1 in 10 γ = .25": (0.9, 0.1), "half γ = .25": (0.5, 0.5)}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "model": "cnn-digits", "clients": 20, "batch_size": 16, "local_epochs": 5},
    "Fashion-MNIST": {
        **{"dataset": "fashion-mnist", "model": "cnn-fashion", "clients": 100, "data_share": 0.2},
        **{"batch_size": 32, "local_epochs": 1, "norm": "batch"},
    },
}
ALONE: dict[str, dict[str, Any]] = {
    FULL: {"method": "fedavg", "tiers": (1.0,)},
    SMALLEST: {"method": "fedhm", "tiers": (0.25,)},
}
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
    for column, task in TASKS.items():
        common = {
            **task,
            **SCALE[scale],
            **({"data_share": 0.2} if scale == "smoke" and column == "digits" else {}),
            "profile": PROFILE,
            "partition": "iid",
            "per_round": 10,
            "optimizer": "momentum",
            "lr": 0.02,
            "lr_schedule": "cosine",
            "eval_every": SCALE[scale]["rounds"],
        }
        for rule in RULES:
            options = {"method": "fedhm", "tiers": TIERS, "tier_assignment": "uniform", "method_options": {"aggregation": rule}}
            for share, shares in SHARES.items():
                found.append(Run(row_of(rule, share), column, {**common, **options, "tier_shares": shares}))
        found += [Run(row, column, {**common, **own}) for row, own in ALONE.items()]
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
            f"*Energy*: the share of squared singular values beyond the ranks of γ = {TIERS[-1]:g}, after the last round. It is the mean "
            "over the factorized layers.",
            "*Rate and normalisation* are those of FedHM's own job.",
            "*mean*: the paper's average of reconstructed weights.",
            "*residual*, *bands*: averages of changes, which keep what a client was not sent.",
        )
    ]
    titles = ["rule, clients", "energy beyond γ = .25", *(f"accuracy, γ = {tier:g}" for tier in TIERS)]
    for column in TASKS:
        lines = [
            [name, found.measured(name, column, tail), *(found.accuracy(name, column, f"{tier:g}") for tier in TIERS)]
            for name in (row_of(rule, share) for share in SHARES for rule in RULES)
        ]
        alone = [found.values(row, column, at_tier()) for row in ALONE]
        parts += [f"**{column}**", table(titles, lines), capacity(*alone)]
        if sentence := finding(found, column):
            parts.append(sentence)
    parts.append(orderings(found, ORDERINGS, {f"{column}, γ = 1": (column, at_tier("1")) for column in TASKS}))
    return "\n\n".join(parts)


def finding(found: Figures, column: str) -> str:
    """Return the sentence about what half of small clients leave of the larger tier's own ranks."""
    values = list(found.values(row_of("mean", "half γ = .25"), column, tail).values())
    if not values:
        return ""
    return f"By the paper's rule, with half of the clients at γ = .25, tier 1 holds {percent(values)} % of its energy beyond tier .25."
