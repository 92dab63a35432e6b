"""Who wins under a budget: the tiered methods on two fleets with their real conditions, beyond the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counters.markdown import table

from edgefl.records import ACCURACY, Metric
from edgefl.report.compare_page_budget import budget_table, class_tiers, front_text, mean_error
from edgefl.report.comparison_budget import BudgetSummary, Rule, WithinBudget, budget_summary
from edgefl.report.evaluated import CountedRun, Evaluated, Served
from edgefl.report.run_budget import AXES, RunBudget
from edgefl.report.verdict_words import verdict_notes, winner
from papers.captions import protocol
from papers.paired import capacity
from papers.runs import FULL, PROFILE, SMALLEST, UNCLIPPED, Entry, Run, Scale, seeded
from papers.show import STALE, Figures, at_tier
from papers.tuning import Tuning

TITLE = "Who wins under a budget (beyond the papers)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
TIERS = (1.0, 0.5, 0.25)
METHODS = {
    "FedHM": "fedhm",
    "FjORD": "fjord",
    "FLANC": "flanc",
    "HeteroFL": "heterofl",
    "PriSM": "prism",
    "Split-Mix": "splitmix",
}
"""OrigDrop is not among them: with a tier of 1, it is HeteroFL."""
ALONE: dict[str, dict[str, Any]] = {
    FULL: {"method": "fedavg", "tiers": (1.0,)},
    SMALLEST: {"method": "origdrop", "tiers": (0.25,)},
}
"""They tell whether there is capacity to lose, on a device that fits everything and under ideal conditions."""
FLEETS = ("phone", "lab")
DATA: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "model": "cnn-digits", "clients": 50, "per_round": 10, "local_epochs": 5, "batch_size": 10},
    "Fashion-MNIST": {
        **{"dataset": "fashion-mnist", "model": "cnn-fashion", "clients": 100, "data_share": 0.2},
        **{"per_round": 5, "local_epochs": 1, "batch_size": 32, "eval_samples": 2000},
    },
}
ROUNDS = {("phone", "digits"): 1480, ("phone", "Fashion-MNIST"): 520, ("lab", "digits"): 510, ("lab", "Fashion-MNIST"): 230}
"""Rounds in which the fastest of the methods fills ten simulated minutes, from dry runs. The others come to that limit before."""
POINTS: dict[Scale, int] = {"full": 40, "quick": 10, "smoke": 2}
"""Evaluated rounds of a run, at least."""
TARGET = 0.85
BUDGET: dict[Scale, RunBudget] = {
    "full": RunBudget(s=600, bytes=100e6, j=1000),
    "quick": RunBudget(s=60, bytes=10e6, j=100),
    "smoke": RunBudget(s=60, bytes=10e6, j=100),
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.03, 0.01, 0.1), length=0.1),
    "quick": None,
    "smoke": None,
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    found = []
    for data, settings in DATA.items():
        for fleet in FLEETS:
            common = _common(fleet, data, settings, scale)
            column = f"{fleet}, {data}"
            own = {"HeteroFL": UNCLIPPED}
            found += [Run(row, column, {**common, "method": m, **own.get(row, {}), "tiers": TIERS}) for row, m in METHODS.items()]
        ideal = {**_common(FLEETS[0], data, settings, scale), "profile": PROFILE, "conditions": "ideal"}
        found += [Run(row, _alone(data), {**ideal, **own, "eval_every": ideal["rounds"]}) for row, own in ALONE.items()]
    return seeded(found, SEEDS[scale])


def _alone(data: str) -> str:
    return f"alone, {data}"


def _common(fleet: str, data: str, settings: dict[str, Any], scale: Scale) -> dict[str, Any]:
    rounds = {"full": ROUNDS[fleet, data], "quick": ROUNDS[fleet, data] // 10, "smoke": 2}[scale]
    reduced = {"smoke": {"data_share": 0.02 if data == "Fashion-MNIST" else 0.3, "eval_samples": 50}}.get(scale, {})
    return {
        **settings,
        **reduced,
        "profile": fleet,
        "conditions": "fleet",
        "rounds": rounds,
        "eval_every": max(1, rounds // POINTS[scale]),
        "optimizer": "momentum",
        "lr": 0.03,
        "lr_schedule": "constant",
        "partition": "dirichlet:0.5",
    }


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return per fleet and data set the ranking, what a reader must know of it, the best of smaller budgets and the device classes."""
    found = Figures(entries)
    limits = BUDGET[scale]
    parts = [
        protocol(
            entries,
            scale,
            "*Fleets* lose, delay and refuse clients as in `edgefl simulate`. Every class trains the largest of the tiers "
            f"{', '.join(f'{tier:g}' for tier in TIERS)} that fits it.",
            f"*Budget*: {limits.s:g} simulated seconds, and {limits.bytes or 0:,.0f} bytes and {limits.j:g} J of each client. The "
            f"target is {100 * TARGET:g} %.",
            "*HeteroFL* does not clip gradients (`--clip-gradient none`), as the other methods.",
            "*Columns* are explained under [`edgefl compare`](fleet.md#compare-methods-under-a-budget). Here ± is the standard error over "
            "seeds.",
            "*Test samples* are used at every evaluated round. No setting depends on them.",
        )
    ]
    for data in DATA:
        alone = [found.values(row, _alone(data), at_tier()) for row in (FULL, SMALLEST)]
        parts.append(f"{data}. {capacity(*alone)}")
        parts += [_ranking(found, fleet, data, scale) for fleet in FLEETS]
    return "\n\n".join(parts)


def _ranking(found: Figures, fleet: str, data: str, scale: Scale) -> str:
    column = f"{fleet}, {data}"
    methods = {label: own for row in METHODS for label, own in [_runs_of(found, row, column)] if own}
    if not methods:
        return f"**{column}**: not run yet."
    judged = Verdict(budget_summary(methods, Rule(BUDGET[scale], TARGET)))
    fronts = [f"- {front_text(judged, axis)}" for axis in AXES]
    notes = [f"- {note.removesuffix('; give more --seeds')}" for note in (winner(judged), *verdict_notes(judged))]
    return "\n\n".join([f"**{column}**:", _budget(judged), "\n".join([*notes, *fronts]), _classes(judged.verdict.methods)])


@dataclass(frozen=True)
class Verdict:
    """A verdict on accuracies, as the pages of a comparison take it."""

    verdict: BudgetSummary
    metric: Metric = ACCURACY


def _budget(judged: Verdict) -> str:
    """Return the ranking without its columns on the fronts, which are sentences on this page."""
    full = budget_table(judged)
    kept = [number for number, column in enumerate(full.columns) if column.group != "best for some"]
    rows = tuple(tuple(row[number] for number in kept) for row in full.rows)
    return replace(full, columns=tuple(full.columns[number] for number in kept), rows=rows).to_markdown()


def _classes(methods: Sequence[WithinBudget]) -> str:
    """Return a line per device class, with each method's tier and its accuracy."""
    ranked = [row for row in methods if row.classes]
    tiers = {class_tiers(of) for row in ranked for of in row.classes}
    if not ranked:
        return ""
    if len(tiers) == 1:
        return f"Every device class trains tier {tiers.pop()}."
    lines = []
    for number, of in enumerate(ranked[0].classes):
        own = [row.classes[number] for row in ranked]
        cells = [f"{mean_error(one.accuracy)} ({class_tiers(one)})" for one in own]
        lines.append([of.title, str(of.clients), *cells])
    heads = ["device class", "clients", *(row.label for row in ranked)]
    return "The tier of each device class in parentheses, and the accuracy of what its clients run:\n\n" + table(heads, lines)


def _runs_of(found: Figures, row: str, column: str) -> tuple[str, list[CountedRun]]:
    """Return a row's name, marked if a run is stale, and its runs by seed."""
    entries = [entry for entry in found.of(row, column) if "curve" in entry["figures"]]
    stale = any(entry.get("stale") for entry in entries)
    made = [
        CountedRun(
            entry["seed"],
            tuple(Evaluated(**point) for point in entry["figures"]["curve"]),
            tuple(Served.of_tier(**of) for of in entry["figures"]["classes"]),
        )
        for entry in sorted(entries, key=lambda entry: int(entry["seed"]))
    ]
    return f"{row} {STALE}" if stale else row, made
