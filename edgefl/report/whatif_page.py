"""One self-contained HTML page on what-ifs: what deadlines, tiers and over-selection do to the time of rounds and to who takes part."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl import __version__
from edgefl.report.chart import Chart, Json, Spec, clock_unit, layer, layered, legend, number, share
from edgefl.report.class_tables import inclusion_columns
from edgefl.report.page import facts, render_page
from edgefl.report.tables import PlainTable, shaded, text, under
from edgefl.report.whatif_table import footnote, front, whatif_table
from edgefl.util.units import human_percent, human_seconds

_SHOWN = {"profile", "edgefl_version", "format"}
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
        about=facts(result, [key for key, value in result.items() if key not in _SHOWN and isinstance(value, str | int | float)]),
        chart=chart,
        table=whatif_table(result),
        inclusion=inclusion_table(result),
        note=footnote(result),
        edgefl_version=result.get("edgefl_version", __version__),
    )


def whatif_chart(result: Json) -> Chart:
    """Return inclusion over the time of a round, a point per policy, and the line of those that no other beats."""
    key, title = "whatif", "Who takes part, and how long it takes"
    rows = [row for row in result["rows"] if row["round_s"] is not None and row["inclusion"]]
    if not rows:
        return Chart(key, title, "No client trained under any policy, so there is nothing to draw.", None)
    idle = [str(row["label"]) for row in result["rows"] if row not in rows]
    left_out = f" Not drawn, because no client trains: {'; '.join(idle)}." if idle else ""
    return Chart(key, title, _sentence(rows) + left_out, _scatter(rows))


def inclusion_table(result: Json) -> PlainTable:
    """Return, per policy, the share of each class's selected sessions that trained."""
    rows, best = result["rows"], set(front(result["rows"]))
    columns = (
        text("policy", "", "label"),
        *under("median round", human_seconds, round_s=""),
        shaded("all", lambda row: row["inclusion"]),
        *inclusion_columns("inclusion_by_class", rows, result.get("titles") or {}),
    )
    return PlainTable.of(columns, rows, marked=(place in best for place in range(len(rows))))


def _sentence(rows: Sequence[Json]) -> str:
    best = [rows[number] for number in front(rows)]
    fastest, fullest = best[0], best[-1]
    first = f"{fastest['label']} has the shortest rounds, {human_seconds(fastest['round_s'])}, and {human_percent(fastest['inclusion'])}"
    if fastest is fullest:
        return f"{first} of sessions train: no policy includes more."
    more = f"{fullest['label']} includes most, {human_percent(fullest['inclusion'])}, in rounds of {human_seconds(fullest['round_s'])}"
    return f"{first} of sessions train; {more}."


def _scatter(rows: Sequence[Json]) -> Spec:
    unit, unit_s = clock_unit(max(row["round_s"] for row in rows))
    best = front(rows)
    points = [
        {
            "label": str(row["label"]),
            "time": row["round_s"] / unit_s,
            "inclusion": row["inclusion"],
            "series": "beaten by none" if place in best else "beaten by another",
            "told": f"{row['label']}: {human_percent(row['inclusion'])} of sessions, {human_seconds(row['round_s'])} a round, "
            f"of the weakest class {human_percent(row['weakest_inclusion'])}",
        }
        for place, row in enumerate(rows)
    ]
    joined = [points[place] for place in best]
    others = [point for place, point in enumerate(points) if place not in best]
    x = number("time", f"median round ({unit})", scale=_wide([point["time"] for point in points], 0.12))
    y = share("inclusion", "sessions that trained", **_wide([point["inclusion"] for point in points], 0.15))
    at = {"x": x, "y": y}
    fills = {"beaten by none": "var(--tier-0)"} | ({"beaten by another": "transparent"} if others else {})
    strokes = {name: "var(--tier-0)" if fill != "transparent" else "var(--soft)" for name, fill in fills.items()}
    dots = {**at, "fill": legend(fills, True), "stroke": legend(strokes, True), "tooltip": "told"}
    text, labelled = {"type": "text", "fontSize": 11, "limit": 220}, others if len(rows) <= _ALL_LABELLED else []
    return layered(
        360,
        layer({"type": "line", "color": "var(--tier-0)"}, joined, **at),
        layer({"type": "point", "size": 110, "strokeWidth": 2}, points, **dots),
        layer({**text, "align": "left", "baseline": "top", "dx": 6, "dy": 6}, joined[:1], **at, text="label"),
        layer({**text, "align": "right", "baseline": "bottom", "dx": -6, "dy": -6}, joined[1:], **at, text="label"),
        layer({**text, "align": "left", "baseline": "middle", "dx": 9}, labelled, **at, text="label"),
    )


def _wide(values: Sequence[float], part: float) -> Spec:
    """Return a scale with a margin around ``values`` for their labels: ``part`` of their range on either side."""
    margin = part * (max(values) - min(values)) or 0.5 * max(values)
    return {"domain": [min(values) - margin, max(values) + margin], "nice": False}
