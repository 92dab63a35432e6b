"""What every page on a fleet shows of it: rounds on the clock, who took part, what was useful and what was wasted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.report.outcome_charts import outcome_charts, waste_charts, waste_table
from edgefl.report.participation import participation_chart, participation_table
from edgefl.report.plot import Chart
from edgefl.report.statuses import STATUSES, status_name
from edgefl.report.tables import PlainTable
from edgefl.report.timeline import Timelines, timelines
from edgefl.util.units import human_percent

Json = Mapping[str, Any]


@dataclass(frozen=True)
class FleetView:
    """The parts of a page; ``meanings`` says what the statuses are that occur."""

    timelines: Timelines
    participation: Chart
    participation_table: PlainTable
    outcomes: tuple[Chart, ...]
    waste: tuple[Chart, ...]
    waste_table: PlainTable
    meanings: tuple[tuple[str, str], ...]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        return [*self.timelines.charts, self.participation, *self.outcomes, *self.waste]


def fleet_view(summary: Json, rounds: Sequence[Json]) -> FleetView:
    """Return what a page shows of a run's fleet.

    Args:
        summary: with ``classes``, ``tiers`` and ``participation``.
        rounds: the records' JSON form, with or without their clients.
    """
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
    if not all_s:
        return []
    share = useful_s / all_s
    return [("Useful work", human_percent(share), "of the time that devices spent")]
