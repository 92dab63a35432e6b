"""One self-contained HTML page per run: no network, readable on a phone and in the dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.report import dry_page
from edgefl.report.fleet_view import fleet_view, useful_card
from edgefl.report.observed import observed_charts
from edgefl.report.page import facts, render_page
from edgefl.report.run_charts import accuracy_charts, budget_chart, cost_charts, of_clients, tier_colour
from edgefl.report.run_files import read_rounds, read_summary
from edgefl.report.run_tables import (
    MEASURED,
    assignment_steps,
    class_table,
    largest_first,
    memory_table,
    refusals_of,
    stage_table,
    tier_table,
)
from edgefl.util.files import write_bytes
from edgefl.util.units import human_bytes, human_count, human_joules, human_percent, human_seconds

Json = Mapping[str, Any]


_ABOUT = (
    "method", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment", "seed", "objective",
    "server_optimizer", "codec", "conditions", "availability", "over_selection", "mode", "enforce",
)  # fmt: skip


def write(run: Path) -> Path:
    """Write ``report.html`` into the folder of a run or a dry run from its ``summary.json`` and ``rounds.jsonl``, and return its path.

    Raises:
        InputError: a file is missing or malformed; the message names the file, the line and the key.
        StorageError: the page cannot be written.
    """
    summary, rounds = read_summary(run / "summary.json"), read_rounds(run / "rounds.jsonl")
    page = run / "report.html"
    rendered = dry_page.render(summary, rounds) if summary.get("dry_run") else render(summary, rounds)
    write_bytes(page, rendered.encode())
    return page


def render(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a run, from its ``summary.json`` and the lines of ``rounds.jsonl``; the same run gives the same page."""
    tier_colours = [tier_colour(summary, row["tier"]) for row in largest_first(summary)]
    return render_page(
        "template.html.j2",
        summary=summary,
        about=_about(summary),
        cards=_cards(summary, rounds),
        table=tier_table(summary),
        tier_colours=tier_colours,
        accuracy=accuracy_charts(summary, rounds),
        cost=cost_charts(summary),
        budgets=budget_chart(summary),
        observed=observed_charts(rounds),
        classes=class_table(summary),
        steps=assignment_steps(summary),
        fleet=fleet_view(summary, rounds),
        refusals=refusals_of(summary, rounds),
        memory=memory_table(summary),
        memory_colours=[colour for colour in tier_colours for _ in MEASURED],
        of_clients=of_clients(summary),
        stages=stage_table(summary),
    )


def _about(summary: Json) -> list[tuple[str, str]]:
    """Return what was run, as pairs of a name and its value."""
    whose = "the mean over clients, each on its own" if of_clients(summary) else "the global model"
    return [
        *facts(summary, _ABOUT),
        ("labels", "each client's own" if summary["permute_labels"] else "the same for all"),
        ("accuracy of", whose),
        ("round deadline", "none" if summary["deadline_s"] is None else human_seconds(summary["deadline_s"])),
    ]


def _cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    turns = [client for record in rounds for client in record.get("clients", ())]
    down, up = summary["download_bytes"], summary["upload_bytes"]
    accuracy = human_percent(summary["global_accuracy"])
    shown = ("Clients' accuracy", accuracy, "on average, each on its own held-out samples")
    return [
        shown if of_clients(summary) else ("Global accuracy", accuracy, "of held-out samples"),
        ("Simulated time", human_seconds(summary["simulated_s"]), "on the fleet's own clock"),
        ("Bytes sent", human_bytes(down + up), f"{human_bytes(down)} down, {human_bytes(up)} up"),
        ("Energy", human_joules(summary["energy_j"]), f"on all devices; {human_joules(summary['end_to_end_j'])} end to end"),
        *useful_card(summary),
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
