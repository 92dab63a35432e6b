"""One self-contained HTML page on what-ifs: what deadlines, tiers and over-selection do to the time of rounds and to who takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl import __version__
from edgefl.report.page import render_page
from edgefl.report.plot import Chart, Figure, clock_unit, figure_of, layout_of, short
from edgefl.report.share_table import Cell, ShareRow, ShareTable, devices_of
from edgefl.report.whatif_table import footnote, front, whatif_table
from edgefl.util.units import human_percent, human_seconds

Json = Mapping[str, Any]
_ALL_LABELLED = 12
"""So many points have their labels beside them; of more, only those of the front."""


def render(result: Json) -> str:
    """Return the page; the same result gives the same page.

    Args:
        result: ``profile``, ``rows`` (a policy each: ``label``, ``deadline_s``, ``tiers``, ``over_selection``, ``round_s``,
            ``inclusion``, ``inclusion_by_class``, ``weakest``, ``weakest_inclusion``, ``wasted_share``, ``energy_j``,
            ``rounds_per_hour``) and, if known, ``titles`` (device → its name for people) and whatever else was asked for.
    """
    chart = whatif_chart(result)
    return render_page(
        "whatif.html.j2",
        [chart],
        profile=result["profile"],
        about=_about(result),
        chart=chart,
        table=whatif_table(result),
        inclusion=inclusion_table(result),
        note=footnote(result),
        marked=[number in front(result["rows"]) for number in range(len(result["rows"]))],
        edgefl_version=result.get("edgefl_version", __version__),
    )


def whatif_chart(result: Json) -> Chart:
    """Return inclusion over the time of a round, a point per policy, and the line of those that no other beats."""
    key, title = "whatif", "Who takes part, and how long it takes"
    rows = [row for row in result["rows"] if row["round_s"] is not None and row["inclusion"]]
    if not rows:
        return Chart(key, title, "Nobody trained under any policy, so there is nothing to draw.", None)
    idle = [str(row["label"]) for row in result["rows"] if row not in rows]
    left_out = f" Not drawn, because nobody trains: {'; '.join(idle)}." if idle else ""
    return Chart(key, title, _sentence(rows) + left_out, _scatter(rows))


def inclusion_table(result: Json) -> ShareTable:
    """Return, per policy, the share of each class's selected sessions that trained."""
    titles = result.get("titles") or {}
    rows = result["rows"]
    devices = devices_of([row["inclusion_by_class"] for row in rows], titles)
    best = set(front(rows))
    cells = [
        ShareRow(
            (
                Cell(str(row["label"])),
                Cell(human_seconds(row["round_s"])),
                Cell.of(row["inclusion"]),
                *(Cell.of(row["inclusion_by_class"].get(device)) for device in devices),
            ),
            number in best,
        )
        for number, row in enumerate(rows)
    ]
    return ShareTable(("policy", "median round", "all", *(titles.get(device, device) for device in devices)), tuple(cells))


def _about(result: Json) -> list[tuple[str, str]]:
    known = {"profile", "rows", "titles", "edgefl_version", "format"}
    return [(key.replace("_", " "), str(value)) for key, value in result.items() if key not in known and _is_short(value)]


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _sentence(rows: Sequence[Json]) -> str:
    best = [rows[number] for number in front(rows)]
    fastest, fullest = best[0], best[-1]
    first = f"{fastest['label']} has the shortest rounds, {human_seconds(fastest['round_s'])}, and {human_percent(fastest['inclusion'])}"
    if fastest is fullest:
        return f"{first} of sessions train: no policy includes more."
    more = f"{fullest['label']} includes most, {human_percent(fullest['inclusion'])}, in rounds of {human_seconds(fullest['round_s'])}"
    return f"{first} of sessions train; {more}."


def _scatter(rows: Sequence[Json]) -> Figure:
    unit, unit_s = clock_unit(max(row["round_s"] for row in rows))
    best = front(rows)
    others = [number for number in range(len(rows)) if number not in best]
    line = {"color": "var(--tier-0)", "width": 2}
    marked = {"size": 11, "color": "var(--tier-0)"}
    hollow = {"size": 10, "symbol": "circle-open", "color": "var(--soft)", "line": {"width": 2}}
    traces = [
        {
            **_points(rows, best, unit_s, ["bottom right", *["top left"] * (len(best) - 1)]),
            "name": "beaten by none",
            "line": line,
            "marker": marked,
        }
    ]
    if others:
        side = "middle right" if len(rows) <= _ALL_LABELLED else None
        traces.append({**_points(rows, others, unit_s, side), "name": "beaten by another", "marker": hollow})
    for trace, joined in zip(traces, (True, False), strict=False):
        text = "+text" if trace["text"] else ""
        trace["mode"] = ("lines+markers" if joined else "markers") + text
    longest, shortest = (pick(row["round_s"] for row in rows) / unit_s for pick in (max, min))
    room = 0.12 * (longest - shortest) or 0.5 * longest or 1.0
    xaxis = {"title": f"median round ({unit})", "range": [shortest - room, longest + room]}
    low, high = (pick(row["inclusion"] for row in rows) for pick in (min, max))
    margin = 0.15 * (high - low) or 0.05
    yaxis = {"title": "sessions that trained", "tickformat": ".0%", "range": [max(-0.03, low - margin), high + margin]}
    return figure_of(traces, {**layout_of(420, xaxis, yaxis), "showlegend": True})


def _points(rows: Sequence[Json], numbers: Sequence[int], unit_s: float, side: str | Sequence[str] | None) -> Figure:
    own = [rows[number] for number in numbers]
    return {
        "type": "scatter",
        "x": [row["round_s"] / unit_s for row in own],
        "y": [row["inclusion"] for row in own],
        "text": [short(str(row["label"]), 36) for row in own] if side else [],
        "textposition": side or "middle right",
        "textfont": {"size": 11, "color": "var(--ink)"},
        "customdata": [
            f"{row['label']}: {human_percent(row['inclusion'])} of sessions, {human_seconds(row['round_s'])} a round, "
            f"of the weakest class {human_percent(row['weakest_inclusion'])}"
            for row in own
        ],
        "hovertemplate": "%{customdata}",
        "cliponaxis": False,
    }
