"""What every page on a fleet shows of it: rounds on the clock, who took part, what was useful and what was wasted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgefl.report.chart import Chart, Json
from edgefl.report.fleet_charts import outcome_charts, participation_chart, waste_charts
from edgefl.report.tables import Column, PlainTable, text, under
from edgefl.report.timeline import Timelines, timelines
from edgefl.report.words import STATUSES, USEFUL, lost_text, status_name, summed, taken_by_status, tier_label
from edgefl.util.units import human_count, human_joules, human_percent


class FleetView(NamedTuple):
    """The parts of a page; ``meanings`` says what the statuses are that occur."""

    timelines: Timelines
    participation: Chart
    participation_table: PlainTable
    outcomes: tuple[Chart, ...]
    waste: tuple[Chart, ...]
    waste_table: PlainTable
    meanings: tuple[tuple[str, str], ...]


def fleet_view(summary: Json, rounds: Sequence[Json]) -> FleetView:
    """Return what a page shows of a run's fleet; ``rounds`` are the records' JSON form, with or without their clients."""
    rows = summary["participation"]
    seen = {status for row in rows for status, count in row["statuses"].items() if count}
    return FleetView(
        timelines=timelines(summary, rounds),
        participation=participation_chart(rows),
        participation_table=participation_table(rows),
        outcomes=outcome_charts(summary, rounds),
        waste=waste_charts(rounds),
        waste_table=waste_table(rounds),
        meanings=tuple((status_name(status), of.meaning) for status, of in STATUSES.items() if status in seen),
    )


def useful_card(summary: Json) -> list[tuple[str, str, str]]:
    """Return the share of the devices' time whose updates were used; nothing if no client was sent anything."""
    useful_s, all_s = summary["useful"]["device_s"], summary["useful"]["device_s"] + summary["wasted"]["device_s"]
    return [("Useful work", human_percent(useful_s / all_s), "of the time that devices spent")] if all_s else []


def participation_table(rows: Sequence[Json]) -> PlainTable:
    """Return who took part, a row per device class."""

    def counted(status: str) -> Callable[[Json], str]:
        return lambda row: human_count(row["statuses"].get(status, 0))

    def part(some: float, of: float) -> str:
        return human_percent(some / of if of else None)

    columns = [
        text("device class", "", "title"),
        *under("population", clients="clients", share="share"),
        *under("sessions", sessions="all"),
        Column("sessions", "trained", lambda row: part(row["statuses"].get(USEFUL, 0), row["sessions"])),
        Column("sessions", "late", counted("late")),
        Column("sessions", "refused", counted("refused")),
        Column("sessions", "lost", lambda row: lost_text(row["statuses"]) or "none", numeric=False),
        *under("clients that trained", distinct=""),
        Column("clients that trained", "of the class", lambda row: part(row["distinct"], row["clients"])),
        *under("energy on devices", lambda work: human_joules(work["energy_j"]), useful="useful", wasted="wasted"),
        *under("tier", lambda tier: "none" if tier is None else tier_label(tier), tier=""),
        *(under("tier", accuracy="accuracy") if any(row["accuracy"] is not None for row in rows) else ()),
    ]
    return PlainTable.of(columns, rows)


def waste_table(rounds: Sequence[Json]) -> PlainTable:
    """Return what clients of each status took over the run, with what was useful and wasted in all."""
    taken = taken_by_status(rounds)
    rows = [{"what": status_name(status), **work} for status, work in taken.items()]
    wasted = summed(work for status, work in taken.items() if status != USEFUL)
    rows += [{"what": "all that was wasted", **wasted}, {"what": "all", **summed(taken.values())}]
    columns = (
        text("sessions that ended", "", "what"),
        *under("sessions", clients=""),
        *under("MACs", macs=""),
        *under("bytes", download_bytes="down", upload_bytes="up"),
        *under("energy", energy_j="on devices", end_to_end_j="end to end"),
        *under("time of devices", device_s=""),
    )
    return PlainTable.of(columns, rows)
