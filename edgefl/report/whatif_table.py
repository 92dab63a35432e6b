"""The table of a what-if: a row per policy, for a terminal, as plain lines, and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgefl.report.tables import Column, PlainTable, text, under
from edgefl.report.words import tier_label
from edgefl.util.units import MISSING, human_count, human_joules, human_percent, human_seconds

Json = Mapping[str, Any]


def whatif_table(result: Json) -> PlainTable:
    """Return every figure of every policy, in the order asked for."""
    columns = (
        text("policy", "", "label"),
        Column("policy", "tiers", lambda row: ", ".join(map(tier_label, row["tiers"])) or MISSING, numeric=False),
        *under("rounds", human_seconds, deadline_s="deadline", round_s="median"),
        *under("rounds", _tenths, rounds_per_hour="an hour"),
        *under("asked", lambda value: f"{value:g}", over_selection="per wanted"),
        *under("sessions trained", human_percent, inclusion="of all", weakest_inclusion="of the weakest"),
        Column("weakest", "", _weakest(result), numeric=False),
        *under("wasted", human_percent, wasted_share="of time"),
        *under("energy", human_joules, energy_j="per update"),
    )
    best = front(result["rows"])
    return PlainTable.of(columns, result["rows"], (n in best for n in range(len(result["rows"]))), note=footnote(result))


def compact_whatif(result: Json) -> PlainTable:
    """Return the table for a terminal: a line per policy, with a star if no other policy beats it."""
    rows, best = result["rows"], front(result["rows"])
    starred = [{**row, "star": "*" if number in best else ""} for number, row in enumerate(rows)]
    columns = (
        Column("", "", lambda row: row["star"], numeric=False, widest=1),
        text("policy", "", "label"),
        *under("round", human_seconds, round_s=""),
        *under("trained", human_percent, inclusion=""),
        *under("weakest", human_percent, weakest_inclusion=""),
        *under("wasted", human_percent, wasted_share=""),
        *under("per update", human_joules, energy_j=""),
        *under("an hour", _tenths, rounds_per_hour=""),
        Column("which is", "", _weakest(result), numeric=False),
    )
    return PlainTable.of(columns, starred, note=f"* {footnote(result)}" if best else footnote(result))


def front(rows: Sequence[Json]) -> list[int]:
    """Return the numbers of the policies that no other beats in both time and inclusion, from the shortest round on.

    Of policies that are equal in both, the first stands for all. A policy under which no client trains is left out.

    >>> front([{"round_s": 2.0, "inclusion": 0.9}, {"round_s": 1.0, "inclusion": 0.5}, {"round_s": 3.0, "inclusion": 0.8}])
    [1, 0]
    """
    known = [number for number, row in enumerate(rows) if row["round_s"] is not None and row["inclusion"]]
    best, found = 0.0, []
    for number in sorted(known, key=lambda n: (rows[n]["round_s"], -rows[n]["inclusion"], n)):
        if rows[number]["inclusion"] > best:
            best = rows[number]["inclusion"]
            found.append(number)
    return found


def footnote(result: Json) -> str:
    """Return the policies that no other beats."""
    labels = [str(result["rows"][number]["label"]) for number in front(result["rows"])]
    if not labels:
        return "Nobody trained under any policy."
    return f"No other policy is both as fast and as inclusive as {'; '.join(labels)}."


def _tenths(value: float | None) -> str:
    return human_count(None if value is None else round(value, 1))


def _weakest(result: Json) -> Callable[[Json], str]:
    titles: Mapping[str, str] = result.get("titles") or {}
    return lambda row: MISSING if row["weakest"] is None else titles.get(row["weakest"], str(row["weakest"]))
