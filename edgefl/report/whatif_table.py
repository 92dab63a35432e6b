"""The table of a what-if: one row per policy, for a terminal, as plain lines, and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from edgefl.report.tables import Column, PlainTable, bare_table, plain_lines, tier_label, under
from edgefl.util.units import MISSING, human_count, human_joules, human_percent, human_seconds

Json = Mapping[str, Any]
_ROOMY = 100


def whatif_table(result: Json) -> PlainTable:
    """Return every figure of every policy, written for people, in the order asked for."""
    return PlainTable.of(_columns(result), result["rows"])


def to_rich(result: Json, width: int = 80) -> Table:
    """Return the table for a terminal of ``width`` columns: a line per policy, with a star where no other beats it."""
    rows, titles = result["rows"], result.get("titles") or {}
    best = front(rows)
    table = bare_table(2 if width >= _ROOMY else 1)
    table.caption = Text(f"* {footnote(result)}" if best else footnote(result))
    table.add_column("")
    table.add_column("policy", overflow="fold", min_width=14)
    heads = {"round": "round_s", "trained": "inclusion", "weakest": "weakest_inclusion", "wasted": "wasted_share"}
    for head in (*heads, "per update", *(["an hour"] if width >= _ROOMY else [])):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("which is", overflow="fold")
    for number, row in enumerate(rows):
        cells = ["*" if number in best else "", str(row["label"]), human_seconds(row["round_s"])]
        cells += [human_percent(row[key]) for key in list(heads.values())[1:]]
        cells += [human_joules(row["energy_j"]), *([human_count(_tenths(row["rounds_per_hour"]))] if width >= _ROOMY else [])]
        table.add_row(*map(Text, [*cells, _weakest(titles)(row)]))
    return table


def to_plain(result: Json) -> str:
    """Return the same figures as plain lines, one per policy."""
    return "\n".join([*plain_lines(_columns(result), result["rows"]), footnote(result)])


def front(rows: Sequence[Json]) -> list[int]:
    """Return the numbers of the policies that no other beats in time and inclusion at once, from the shortest round on.

    Of policies that are equal in both, the first stands for all; one under which nobody trains is none of them.

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
    """Return which policies no other beats."""
    labels = [str(result["rows"][number]["label"]) for number in front(result["rows"])]
    if not labels:
        return "Nobody trained under any policy."
    return f"No other policy is both as fast and as inclusive as {'; '.join(labels)}."


def _columns(result: Json) -> tuple[Column, ...]:
    titles: Mapping[str, str] = result.get("titles") or {}
    return (
        Column("policy", "", lambda row: str(row["label"]), numeric=False),
        Column("policy", "tiers", lambda row: ", ".join(map(tier_label, row["tiers"])) or MISSING, numeric=False),
        *under("rounds", human_seconds, deadline_s="deadline", round_s="median"),
        Column("rounds", "an hour", lambda row: human_count(_tenths(row["rounds_per_hour"]))),
        Column("asked", "per wanted", lambda row: f"{row['over_selection']:g}"),
        *under("sessions trained", human_percent, inclusion="of all"),
        Column("sessions trained", "of the weakest", lambda row: human_percent(row["weakest_inclusion"])),
        Column("weakest", "", _weakest(titles), numeric=False),
        *under("wasted", human_percent, wasted_share="of time"),
        *under("energy", human_joules, energy_j="per update"),
    )


def _tenths(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _weakest(titles: Mapping[str, str]) -> Callable[[Json], str]:
    return lambda row: MISSING if row["weakest"] is None else titles.get(row["weakest"], str(row["weakest"]))
