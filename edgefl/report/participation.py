"""Who takes part: sessions, losses and accuracy per device class, and what a policy costs the weakest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.report.statuses import USEFUL, lost_text
from edgefl.report.tables import Column, PlainTable
from edgefl.report.words import tier_label
from edgefl.util.units import human_count, human_joules, human_percent

Json = Mapping[str, Any]


def participation_table(rows: Sequence[Json]) -> PlainTable:
    """Return who took part, a row per device class, written for people."""
    columns = [
        Column("device class", "", lambda row: str(row["title"]), numeric=False),
        Column("population", "clients", lambda row: human_count(row["clients"])),
        Column("population", "share", lambda row: human_percent(row["share"])),
        Column("sessions", "all", lambda row: human_count(row["sessions"])),
        Column("sessions", "trained", lambda row: human_percent(trained_share(row))),
        Column("sessions", "late", _count("late")),
        Column("sessions", "refused", _count("refused")),
        Column("sessions", "lost", lambda row: lost_text(row["statuses"]) or "none", numeric=False),
        Column("clients that trained", "", lambda row: human_count(row["distinct"])),
        Column("clients that trained", "of the class", lambda row: human_percent(_part(row["distinct"], row["clients"]))),
        Column("energy on devices", "useful", lambda row: human_joules(row["useful"]["energy_j"])),
        Column("energy on devices", "wasted", lambda row: human_joules(row["wasted"]["energy_j"])),
        Column("tier", "", lambda row: "none" if row["tier"] is None else tier_label(row["tier"])),
    ]
    if any(row["accuracy"] is not None for row in rows):
        columns.append(Column("tier", "accuracy", lambda row: human_percent(row["accuracy"])))
    return PlainTable.of(columns, rows)


def trained_share(row: Json) -> float | None:
    """Return the share of a class's sessions whose updates were used, None where it had no session."""
    return _part(row["statuses"].get(USEFUL, 0), row["sessions"])


def weakest_sentence(rows: Sequence[Json]) -> str:
    """Return what the policy costs the class that takes least part, measured by its share of the population."""
    useful = sum(row["statuses"].get(USEFUL, 0) for row in rows)
    present = [row for row in rows if row["clients"] and row["share"] > 0]
    if not useful or not present:
        return "No client's update was used, so no class took part."

    def represented(row: Json) -> float:
        return float(row["statuses"].get(USEFUL, 0)) / useful / float(row["share"])

    weakest = min(present, key=lambda row: (represented(row), row["accuracy"] or 0.0))
    own = human_percent(weakest["statuses"].get(USEFUL, 0) / useful)
    shares = f"{human_percent(weakest['share'])} of the population, {own} of {useful:,} useful sessions"
    sentence = f"{weakest['title']} takes least part: {shares}"
    known = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    if weakest["tier"] is None:
        return f"{sentence}; it fits no tier."
    tier = f"its tier, {tier_label(weakest['tier'])}, "
    if weakest["accuracy"] is None or not known:
        return f"{sentence}."
    points = 100 * (max(known) - weakest["accuracy"])
    than = "the best of all classes" if points <= 0 else f"{points:.1f} points below the best class's"
    return f"{sentence}; {tier}reaches {human_percent(weakest['accuracy'])}, {than}."


def _count(status: str) -> Any:
    return lambda row: human_count(row["statuses"].get(status, 0))


def _part(some: float, of: float) -> float | None:
    return some / of if of else None
