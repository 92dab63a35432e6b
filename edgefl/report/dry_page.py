"""One self-contained HTML page on a dry run: who would take part and what it would take, without training anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.report.charts import tier_colour
from edgefl.report.class_tables import planning_steps
from edgefl.report.dry_charts import hour_chart, policy_sentence, policy_table, round_chart
from edgefl.report.fleet_view import fleet_view, useful_card
from edgefl.report.page import render_page
from edgefl.report.tables import TIER_COLUMNS, PlainTable, largest_first
from edgefl.util.units import human_count, human_joules, human_percent, human_seconds

Json = Mapping[str, Any]
_ABOUT = (
    "method", "model", "dataset", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment",
    "over_selection", "conditions", "availability", "start_hour", "mode", "seed",
)  # fmt: skip


def render(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a dry run; the same run gives the same page.

    Args:
        summary: ``clients``, ``tiers``, ``classes``, the totals, ``participation`` and, if any were tried, ``policies``, a list of
            ``policy``, ``tiers``, ``round_s`` (median), ``useful_share`` and ``inclusion`` (device → share of its sessions that trained).
        rounds: the records' JSON form; only those that list clients have a timeline.
    """
    fleet = fleet_view(summary, rounds)
    lasting = [chart for chart in (round_chart(rounds), hour_chart(summary, rounds)) if chart]
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    policies = summary["policies"]
    return render_page(
        "dry.html.j2",
        [*lasting, *fleet.charts],
        about=_about(summary),
        fleet_name=summary["fleet"],
        cards=_cards(summary, rounds),
        lasting=lasting,
        fleet=fleet,
        policies=policy_table(policies, titles) if policies else None,
        policy_sentence=policy_sentence(policies, titles),
        table=_planned(summary),
        tier_colours=[tier_colour(summary, row["tier"]) for row in largest_first(summary)],
        batch_size=summary["batch_size"],
        steps=planning_steps(summary),
        edgefl_version=summary["edgefl_version"],
    )


def _about(summary: Json) -> list[tuple[str, str]]:
    pairs = [(key.replace("_", " "), f"{summary[key]}") for key in _ABOUT]
    deadline_s = summary["deadline_s"]
    return [*pairs, ("round deadline", "none" if deadline_s is None else human_seconds(deadline_s))]


def _cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    took_part = sum(row["distinct"] for row in summary["participation"])
    clients = summary["clients"]
    waited_s = summary["waited_s"]
    time = f"{human_seconds(waited_s)} of it waiting for clients" if waited_s else "on the fleet's own clock"
    return [
        ("Rounds", f"{len(rounds):,}", "played without training"),
        ("Simulated time", human_seconds(summary["simulated_s"]), time),
        ("Clients that took part", human_count(took_part), f"{human_percent(took_part / clients)} of {clients:,}"),
        *useful_card(summary),
        ("Energy on devices", human_joules(summary["energy_j"]), "computing and radio"),
        ("Energy end to end", human_joules(summary["end_to_end_j"]), "devices, and the path to the data centre"),
    ]


def _planned(summary: Json) -> PlainTable:
    """Return the costs of every tier that are known before anybody trains, largest tier first."""
    known = [column for column in TIER_COLUMNS if column.group != "accuracy" and "measured" not in column.head]
    return PlainTable.of(known, largest_first(summary))
