"""The tables of a run's page on its device classes: budgets, steps of planning, refusals, memory foreseen and measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.report.run_charts import budget_entries
from edgefl.report.tier_table import largest_first
from edgefl.report.words import budget_name, need_have, taken_as, tier_label
from edgefl.util.units import human_budget, human_bytes, human_difference, human_percent

Json = Mapping[str, Any]


def class_table(summary: Json) -> list[dict[str, Any]]:
    """Return each class with what it needs of its budgets, and why it takes no larger tier in whole batches."""
    return [
        {
            "title": item["title"],
            "device": item["device"],
            "clients": item["clients"],
            "share": human_percent(item["share"]),
            "tier": "none" if item["tier"] is None else taken_as(item),
            "budgets": [_budget_line(entry) for entry in budget_entries(item)],
            "larger": [
                f"tier {tier_label(refusal['tier'])}: {_reason(refusal)}"
                for refusal in item["refusals"]
                if item["tier"] is not None and refusal["tier"] > item["tier"] and refusal["micro_batch"] is None
            ],
            "assumed": item["assumed"],
        }
        for item in summary["classes"]
    ]


def planning_steps(summary: Json) -> list[dict[str, Any]]:
    """Return the steps of every class's assignment, in order, and their results."""
    return [
        {
            "title": item["title"],
            "tier": tier_label(step["tier"]),
            "samples": step["micro_batch"] or "the whole batch",
            **_outcome(item, step),
        }
        for item in summary["classes"]
        for step in item["considered"]
    ]


def _outcome(item: Json, step: Json) -> dict[str, Any]:
    given = item["tier"] == step["tier"] and item["micro_batch"] == step["micro_batch"]
    short = "; ".join(_reason(refusal) for refusal in step["refusals"])
    fits = "given, though it does not fit: " if given and short else "given" if given else "" if short else "fits"
    return {"given": given, "outcome": fits + short}


def _reason(refusal: Json) -> str:
    return f"{budget_name(refusal['budget'])} {need_have(refusal)}"


def _budget_line(entry: Json) -> str:
    need, have = (human_budget(entry["budget"], entry[key]) for key in ("need", "have"))
    return f"{budget_name(entry['budget'])}: {need} of {have} ({human_percent(entry['share'])})"


def refusals_of(summary: Json, rounds: Sequence[Json]) -> list[dict[str, Any]]:
    """Return every distinct reason for a refusal and how many client turns it cost: 0 if no such client was asked."""
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    turns: Counter[str] = Counter()
    reasons: dict[str, Json] = {}
    never_asked = [refusal for item in summary["classes"] if item["tier"] is None for refusal in item["refusals"]]
    asked = [refusal for record in rounds for client in record.get("clients", ()) for refusal in client["refusal"]]
    for refusals, counted in ((never_asked, 0), (asked, 1)):
        for refusal in refusals:
            key = json.dumps(refusal, sort_keys=True)
            reasons[key] = refusal
            turns[key] += counted
    return [
        {
            "title": titles.get(refusal["device"], refusal["device"]),
            "tier": taken_as(refusal),
            "budget": budget_name(refusal["budget"]),
            "reason": need_have(refusal),
            "turns": turns[key],
        }
        for key, refusal in reasons.items()
    ]


_MEASURED = {
    "activations of a training step": ("peak_activation_bytes_training", "measured_peak_activation_bytes_training"),
    "activations of a training step, in onnxruntime": ("peak_activation_bytes_training", "measured_peak_activation_bytes_onnx"),
    "a training step in all": ("training_memory_bytes", "measured_training_memory_bytes"),
    "activations of an inference": ("peak_activation_bytes_inference", "measured_peak_activation_bytes_inference"),
}


def memory(summary: Json) -> list[tuple[str, str, str, str, str]]:
    """Return, per tier and kind of memory, the predicted and the measured peak and the difference."""
    rows = []
    for row in largest_first(summary):
        for what, keys in _MEASURED.items():
            predicted, measured = row[keys[0]], row[keys[1]]
            difference = human_difference(predicted, measured)
            rows.append((taken_as(row), what, human_bytes(predicted), human_bytes(measured), difference))
    return rows
