"""The table of what a month of rounds takes of one device of each class, under each policy of a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl.report.device_month import device_months, rounds_per_day
from edgefl.report.tables import PlainTable, text, under
from edgefl.report.words import joined
from edgefl.util.units import human_bytes, human_count, human_joules, human_seconds

Json = Mapping[str, Any]


def month_table(result: Json) -> PlainTable | None:
    """Return a row per policy and class; None without rounds per day."""
    titles = result.get("titles") or {}
    rows = [
        {
            "policy": f"{number}: {row['label']}",
            "class": titles.get(device, device),
            "rounds": rounds_per_day(result, row),
            **vars(month),
        }
        for number, row in enumerate(result["rows"], start=1)
        for device, month in device_months(result, row).items()
    ]
    if not rows:
        return None
    columns = (
        text("policy", "", "policy"),
        text("device class", "", "class"),
        *under("rounds", human_count, rounds="a day"),
        *under("of one device, in a month", human_count, sessions="sessions", updates="useful updates"),
        *under("of one device, in a month", human_bytes, bytes="bytes"),
        *under("of one device, in a month", human_joules, energy_j="joules"),
        *under("of one device, in a month", human_seconds, device_s="time"),
    )
    return PlainTable.of(columns, rows)


def too_many_rounds(result: Json) -> str:
    """Return under which policies a day has no time for the rounds that were asked for; nothing if it has."""
    asked = result.get("rounds_per_day")
    short = [(row, n) for row in result["rows"] if asked and (n := rounds_per_day(result, row)) is not None and n < asked]
    if not short:
        return ""
    told = joined([f"“{row['label']}” ({human_count(n)})" for row, n in short])
    return f"A day has no time for {human_count(asked)} rounds under {told}: months are of as many as fit."
