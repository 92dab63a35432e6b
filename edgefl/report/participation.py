"""Who takes part: sessions, losses and accuracy per device class, and what a policy costs the weakest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefl.report.statuses import USEFUL, groups_of, lost_text, summed
from edgefl.report.tables import Column, PlainTable, tier_label
from edgefl.util.units import human_count, human_joules, human_percent

if TYPE_CHECKING:
    from edgefl.server.assignment import Plan

Json = Mapping[str, Any]


def participation_rows(
    plan: Plan, rounds: Sequence[Json], distinct: Mapping[str, int], accuracies: Mapping[float, float]
) -> list[dict[str, Any]]:
    """Return how each device class took part over all rounds.

    Args:
        plan: the fleet's classes and the tiers that they are given.
        rounds: the records' JSON form.
        distinct: device → how many of its clients trained at least once.
        accuracies: a tier's ratio → its accuracy; empty where nothing was evaluated.

    Returns:
        Per class ``device``, ``title``, ``share`` of the population, ``clients`` in it, ``sessions`` (refused ones included),
        ``distinct``, ``statuses`` (status → sessions), ``useful`` and ``wasted`` (sums of work), ``tier`` and its ``accuracy``.
    """
    classes = [
        {
            "device": c.device.name,
            "title": c.device.title,
            "share": c.share,
            "clients": c.clients,
            "tier": c.tier.number if c.tier else None,
        }
        for c in plan.classes
    ]
    return rows_of(classes, rounds, distinct, accuracies)


def rows_of(
    classes: Sequence[Json], rounds: Sequence[Json], distinct: Mapping[str, int], accuracies: Mapping[float, float | None]
) -> list[dict[str, Any]]:
    """Return the same from the classes of a summary; several classes with one device are one."""
    groups: dict[str, list[Json]] = {}
    for record in rounds:
        for group in groups_of(record):
            groups.setdefault(group["device"], []).append(group)
    rows: dict[str, dict[str, Any]] = {}
    for item in classes:
        if (row := rows.get(item["device"])) is not None:
            row |= {key: row[key] + item[key] for key in ("share", "clients")}
            continue
        own = groups.get(item["device"], [])
        statuses: Counter[str] = Counter()
        for group in own:
            statuses[group["status"]] += group["clients"]
        rows[item["device"]] = {
            **{key: item[key] for key in ("device", "title", "share", "clients")},
            "sessions": statuses.total(),
            "distinct": distinct.get(item["device"], 0),
            "statuses": dict(statuses),
            "useful": summed(group for group in own if group["status"] == USEFUL),
            "wasted": summed(group for group in own if group["status"] not in (USEFUL, "refused")),
            "tier": item["tier"],
            "accuracy": None if item["tier"] is None else accuracies.get(item["tier"]),
        }
    return list(rows.values())


def participation_of(summary: Json, rounds: Sequence[Json]) -> list[Json]:
    """Return the rows that a summary holds; of a run of an older version, those that its records tell."""
    if summary.get("participation"):
        return list(summary["participation"])
    trained = {(c["device"], c["client"]) for r in rounds for c in r.get("clients", ()) if c["status"] == USEFUL}
    distinct = Counter(device for device, _ in trained)
    accuracies = {row["tier"]: row.get("accuracy") for row in summary["tiers"]}
    return list(rows_of(summary["classes"], rounds, distinct, accuracies))


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
