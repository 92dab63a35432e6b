"""One self-contained HTML page per run: no network, readable on a phone and in the dark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.files import write_bytes
from edgefl.report import charts
from edgefl.report.observed import observed_charts
from edgefl.report.page import render_page
from edgefl.report.schema import Refusal, read_rounds, read_summary
from edgefl.report.tables import BUDGETS, need_have, tier_label, tier_table
from edgefl.units import (
    human_budget,
    human_bytes,
    human_count,
    human_difference,
    human_joules,
    human_percent,
    human_seconds,
)

Json = Mapping[str, Any]


def write(run: Path) -> Path:
    """Write ``report.html`` into a run's folder from its ``summary.json`` and ``rounds.jsonl``, and return its path.

    Raises:
        InputError: a file is missing or malformed; the message names the file, the line and the key.
        StorageError: the page cannot be written.
    """
    summary, rounds = read_summary(run / "summary.json"), read_rounds(run / "rounds.jsonl")
    page = run / "report.html"
    write_bytes(page, render(summary, rounds).encode())
    return page


def render(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a run; the same run gives the same page.

    Args:
        summary: the content of ``summary.json``.
        rounds: the lines of ``rounds.jsonl``, in their order.
    """
    sections = {
        "accuracy": charts.accuracy_charts(summary, rounds),
        "cost": charts.cost_charts(summary),
        "budgets": (charts.budget_chart(summary),),
        "outcomes": charts.outcome_charts(summary, rounds),
        "observed": observed_charts(rounds),
    }
    return render_page(
        "template.html.j2",
        [chart for group in sections.values() for chart in group],
        summary=summary,
        about=_about(summary),
        cards=_cards(summary, rounds),
        table=tier_table(summary),
        tier_colours=[charts.tier_colour(summary, row["tier"]) for row in _largest_first(summary)],
        sections=sections,
        classes=_classes(summary),
        refusals=_refusals(summary, rounds),
        memory=_memory(summary),
        of_clients=charts.of_clients(summary),
    )


def _largest_first(summary: Json) -> list[Json]:
    return sorted(summary["tiers"], key=lambda row: -float(row["tier"]))


def _about(summary: Json) -> list[tuple[str, str]]:
    """Return what was run, as pairs of a name and its value."""
    keys = (
        "method",
        "fleet",
        "partition",
        "clients",
        "per_round",
        "rounds",
        "local_epochs",
        "batch_size",
        "tier_assignment",
        "seed",
    )
    pairs = [(key.replace("_", " "), str(summary[key])) for key in keys]
    pairs += [(key.replace("_", " "), str(summary.get(key, usual))) for key, usual in _ADDED.items()]
    whose = "the mean over clients, each on its own" if charts.of_clients(summary) else "the global model"
    return [
        *pairs,
        ("labels", "each client's own" if summary.get("permute_labels") else "the same for all"),
        ("accuracy of", whose),
        ("round deadline", "none" if summary["deadline_s"] is None else human_seconds(summary["deadline_s"])),
    ]


_ADDED = {"objective": "none", "server_optimizer": "avg", "codec": "fp32"}
"""Keys that runs of older versions do not have, and what those were."""


def _cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    turns = [client for record in rounds for client in record["clients"]]
    down, up = summary["download_bytes"], summary["upload_bytes"]
    accuracy = human_percent(summary["global_accuracy"])
    shown = ("Clients' accuracy", accuracy, "in the mean, each on its own held-out samples")
    return [
        shown if charts.of_clients(summary) else ("Global accuracy", accuracy, "of held-out samples"),
        ("Simulated time", human_seconds(summary["simulated_s"]), "on the fleet's own clock"),
        ("Bytes sent", human_bytes(down + up), f"{human_bytes(down)} down, {human_bytes(up)} up"),
        ("Energy", human_joules(summary["energy_j"]), "on all devices"),
        ("Clients refused", human_count(_refused_clients(summary, turns)), f"of {summary['clients']} clients"),
        ("Host time", human_seconds(summary["host_s"]), "this computer's time"),
    ]


def _refused_clients(summary: Json, turns: Sequence[Json]) -> int:
    """Count clients that were refused, among them those of a class that fits no tier and were never asked."""
    asked = {(turn["device"], turn["client"]) for turn in turns if turn["status"] == "refused"}
    refused = Counter(device for device, _ in asked)
    for item in summary["classes"]:
        if item["tier"] is None:
            refused[item["device"]] = max(refused[item["device"]], item["clients"])
    return refused.total()


def _classes(summary: Json) -> list[dict[str, Any]]:
    return [
        {
            "title": item["title"],
            "device": item["device"],
            "clients": item["clients"],
            "share": human_percent(item["share"]),
            "tier": "none" if item["tier"] is None else tier_label(item["tier"]),
            "budgets": [_budget_line(entry) for entry in charts.budget_entries(item)],
            "larger": [
                f"tier {tier_label(refusal['tier'])}: {_budget(refusal)} {need_have(refusal)}"
                for refusal in item["refusals"]
                if item["tier"] is not None
            ],
            "assumed": item["assumed"],
        }
        for item in summary["classes"]
    ]


def _budget(entry: Json) -> str:
    return BUDGETS.get(entry["budget"], str(entry["budget"]))


def _budget_line(entry: Json) -> str:
    need, have = (human_budget(entry["budget"], entry[key]) for key in ("need", "have"))
    return f"{_budget(entry)}: {need} of {have} ({human_percent(entry['share'])})"


def _refusals(summary: Json, rounds: Sequence[Json]) -> list[dict[str, Any]]:
    """Return every distinct reason for a refusal and how many client turns it cost: 0 if no such client was asked."""
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    turns: Counter[str] = Counter()
    reasons: dict[str, Json] = {}
    never_asked = [refusal for item in summary["classes"] if item["tier"] is None for refusal in item["refusals"]]
    asked = [refusal for record in rounds for client in record["clients"] for refusal in client["refusal"]]
    for refusals, counted in ((never_asked, 0), (asked, 1)):
        for refusal in refusals:
            key = json.dumps({name: refusal[name] for name in Refusal.model_fields})
            reasons[key] = refusal
            turns[key] += counted
    return [
        {
            "title": titles.get(refusal["device"], refusal["device"]),
            "tier": tier_label(refusal["tier"]),
            "budget": _budget(refusal),
            "reason": need_have(refusal),
            "turns": turns[key],
        }
        for key, refusal in reasons.items()
    ]


_MEASURED = {
    "activations of a training step": ("peak_activation_bytes_training", "measured_peak_activation_bytes_training"),
    "a training step in all": ("training_memory_bytes", "measured_training_memory_bytes"),
    "activations of an inference": ("peak_activation_bytes_inference", "measured_peak_activation_bytes_inference"),
}


def _memory(summary: Json) -> list[tuple[str, str, str, str, str]]:
    """Return, per tier and kind of memory, the predicted and the measured peak and the difference."""
    rows = []
    for row in _largest_first(summary):
        for what, keys in _MEASURED.items():
            predicted, measured = row[keys[0]], row.get(keys[1])
            difference = human_difference(predicted, measured)
            rows.append((tier_label(row["tier"]), what, human_bytes(predicted), human_bytes(measured), difference))
    return rows
