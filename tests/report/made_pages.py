"""One page of every kind, from hand-made records."""

from dataclasses import replace
from functools import cache
from typing import Any

from compared import of_json, two
from made_cost_rows import on_devices
from made_fleet import dry, whatif
from made_records import dry_run_page, run_page
from made_run import make_rounds, make_summary

from edgefl.report import whatif_page
from edgefl.report.compare_page import compare_page
from edgefl.report.cost_page import cost_page
from edgefl.report.cost_rows import ProfileRow
from edgefl.report.policies import Learned, Surrogate, WhatIf
from edgefl.report.run_budget import RunBudget

KINDS = ("run", "without-energy", "dry-run", "what-if", "what-if-learned", "costs", "deep-costs", "compare", "budget")


def evaluated_summary() -> dict[str, Any]:
    """A run with its last evaluation and the layers of its tiers, the smaller ones factorized."""
    summary = make_summary()
    for row in summary["tiers"]:
        names = ("conv1", "conv2") if row["tier"] == 1 else ("conv1", "conv2.u", "conv2.v")
        row["layers"] = [{"layer": name, "macs_train_step": 1000 * n, "parameter_bytes": 400} for n, name in enumerate(names, 1)]
    clients = [
        {"client": n, "device": "low-end-phone", "tier": 0.25, "samples": 50, "accuracy": share}
        for n, share in enumerate([0.5] + [0.9] * 10)
    ]
    counts = {"samples": [40, 40, 0], "right": [30, 40, 0], "confusion": [[30, 10, 0], [0, 40, 0], [0, 0, 0]]}
    return summary | {"evaluation": {"labels": ["T-shirt/top", "trouser", "ankle boot"], **counts, "clients": clients}}


def judged_whatif() -> WhatIf:
    """A what-if whose policies are judged by a run; of one it says nothing."""
    known = Learned(accuracy=0.8, low=0.7, high=0.9, rounds=20.0, target_s=400.0, target_j=90.0)
    rows = (*(replace(known, target_s=100.0 * n) for n in (4, 1, 3)), Learned(why="other tiers than the run's"))
    return replace(whatif(), surrogate=Surrogate("0001-fedhm-digits", 0.2, 0.8, rows))


def without_energy() -> dict[str, Any]:
    """A run whose devices have no figures of energy."""
    summary = evaluated_summary()
    tiers = [row | {"round_joules": None} for row in summary["tiers"]]
    return summary | {"energy_j": None, "end_to_end_j": None, "tiers": tiers}


def deep_costs() -> list[ProfileRow]:
    """The costs of a network whose layers have long names."""
    names = {"body.conv": "layer2.0.shortcut.conv.u", "body.conv.v": "layer2.0.shortcut.conv.v"}

    def deep(row: ProfileRow) -> ProfileRow:
        return replace(row, layers=tuple(replace(of, layer=names.get(of.layer, of.layer)) for of in row.layers))

    return [deep(row) for row in on_devices()]


@cache
def made_pages() -> dict[str, str]:
    """Return name → page."""
    return {
        "run": run_page(evaluated_summary(), make_rounds()),
        "without-energy": run_page(without_energy(), make_rounds()),
        "dry-run": dry_run_page(*dry()),
        "what-if": whatif_page.render(whatif()),
        "what-if-learned": whatif_page.render(judged_whatif()),
        "costs": cost_page(on_devices()),
        "deep-costs": cost_page(deep_costs()),
        "compare": compare_page(of_json(two())),
        "budget": compare_page(of_json(two(budget=RunBudget(s=5), target_accuracy=0.8))),
    }
