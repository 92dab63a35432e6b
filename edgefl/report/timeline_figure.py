"""How one round on the simulated clock is drawn: bars for download, training and upload, and a marker where a client was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.report.plot import HEAD, Figure, clock_unit, figure_of, layout_of, short
from edgefl.report.statuses import USEFUL, look, status_name
from edgefl.util.units import human_seconds

Json = Mapping[str, Any]
_PHASES = (("download", "var(--part-1)"), ("training", "var(--part-2)"), ("upload", "var(--part-3)"))
_CUT = 3.0
"""A chart ends at so many times the round: a straggler would make all others too short to see."""


@dataclass(frozen=True)
class Line:
    """One client's part: seconds since the round began, and of each phase; ``how`` says what it took."""

    client: int
    device: str
    how: str
    status: str
    start_s: float
    phases_s: tuple[float, float, float]

    @property
    def end_s(self) -> float:
        """When it was done, or lost."""
        return self.start_s + sum(self.phases_s)


def shown_s(record: Json, lines: Sequence[Line]) -> float:
    """Return where the chart of a round ends: where its last line does, unless that is a straggler."""
    longest_s = max(line.end_s for line in lines)
    round_s = record.get("round_s") or 0.0
    return min(longest_s, _CUT * round_s) if round_s else longest_s


def is_step(record: Json) -> bool:
    """Whether the server steps whenever enough clients answered: they begin when they are free, and deadlines are their own."""
    return any(client.get("staleness") is not None for client in record.get("clients", ()))


def deadline_shown(record: Json, end_s: float) -> float | None:
    """Return the deadline of a round, None where there is none, or none near enough to be drawn."""
    deadline_s = None if is_step(record) else record.get("deadline_s")
    return deadline_s if deadline_s is not None and deadline_s <= 2 * max(end_s, record.get("round_s") or 0.0) else None


def timeline_figure(summary: Json, record: Json, lines: Sequence[Line], end_s: float) -> Figure:
    """Return the lines of a round under the names of their classes, each class from early to late."""
    order = [item["device"] for item in summary["classes"]]
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    devices = sorted({line.device for line in lines}, key=lambda d: (order.index(d) if d in order else len(order), d))
    rows: list[tuple[float, Line]] = []
    heads, row = [], 0.0
    for device in devices:
        heads.append({**HEAD, "y": row, "text": short(titles.get(device, device))})
        own = sorted((line for line in lines if line.device == device), key=lambda line: (line.end_s, line.client))
        rows += [(row + 1 + place, line) for place, line in enumerate(own)]
        row += len(own) + 1.3
    deadline_s, round_s = deadline_shown(record, end_s), record.get("round_s") or 0.0
    widest_s = max(end_s, round_s, deadline_s or 0.0)
    unit, unit_s = clock_unit(widest_s)
    limits = [("the round closes", round_s, "solid"), ("deadline", deadline_s, "dash")]
    if deadline_s and abs(deadline_s - round_s) <= 1e-3 * deadline_s:
        limits = [("the round closes at its deadline", round_s, "dash")]
    traces = [*_bars(rows, unit_s), *(_limit(name, at / unit_s, row, dash) for name, at, dash in limits if at is not None)]
    labelled = [(place, line) for place, line in rows if line.status != USEFUL]
    if labelled:
        traces.append(_ends(labelled, end_s, unit_s))
    # Reasons are written to the right of where lines end: they need room there.
    ends_s = max((min(line.end_s, end_s) for _, line in labelled), default=0.0)
    left = min(0.0, *(line.start_s for line in lines)) / unit_s
    right = max(widest_s * 1.03, ends_s * 1.25) / unit_s
    yaxis = {
        "tickvals": [place for place, _ in rows],
        "ticktext": [f"{line.client}" for _, line in rows],
        "tickfont": {"size": 11, "color": "var(--soft)"},
        "range": [row - 0.3, -0.8],
        "showgrid": False,
    }
    xaxis = {"title": f"time in the round ({unit})", "range": [left, right]}
    layout = layout_of(round(130 + 21 * row), xaxis, yaxis)
    return figure_of(traces, {**layout, "barmode": "overlay", "showlegend": True, "annotations": heads})


def _bars(rows: Sequence[tuple[float, Line]], unit_s: float) -> list[Figure]:
    """Return two traces per phase: what was useful, which the legend shows, and what led to nothing, with its outcome's pattern."""
    useful = [(place, line) for place, line in rows if line.status == USEFUL]
    wasted = [(place, line) for place, line in rows if line.status != USEFUL]
    return [
        {**_phase(own, phase, unit_s), "showlegend": own is useful, "legendgroup": f"{phase}"}
        for own in (useful, wasted)
        for phase in range(len(_PHASES))
    ]


def _phase(rows: Sequence[tuple[float, Line]], phase: int, unit_s: float) -> Figure:
    name, colour = _PHASES[phase]
    shapes = [look(line.status).pattern for _, line in rows]
    pattern = {"shape": shapes, "fillmode": "overlay", "fgcolor": "var(--ink)", "size": 6, "solidity": 0.15}
    return {
        "type": "bar",
        "name": name,
        "orientation": "h",
        "width": 0.7,
        # Without any line the legend still says what the shade means.
        "y": [place for place, _ in rows] or [None],
        "x": [line.phases_s[phase] / unit_s for _, line in rows] or [None],
        "base": [(line.start_s + sum(line.phases_s[:phase])) / unit_s for _, line in rows] or [0],
        "marker": {"color": colour, "line": {"color": "var(--soft)", "width": 0.5}, "pattern": pattern},
        "customdata": [_told(line, name, line.phases_s[phase]) for _, line in rows],
        "hovertemplate": "%{customdata}",
    }


def _told(line: Line, phase: str, length_s: float) -> str:
    told = ", ".join(filter(None, [f"client {line.client}", line.how, status_name(line.status)]))
    return f"{told}: {phase} {human_seconds(length_s)}"


def _ends(rows: Sequence[tuple[float, Line]], end_s: float, unit_s: float) -> Figure:
    """Return a marker where each line ends that led to nothing, with the reason."""
    looks = [look(line.status) for _, line in rows]
    cut = [line.end_s > end_s for _, line in rows]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [min(line.end_s, end_s) / unit_s for _, line in rows],
        "y": [place for place, _ in rows],
        "text": [
            status_name(line.status) + (f", {human_seconds(line.end_s)}" if beyond else "")
            for (_, line), beyond in zip(rows, cut, strict=True)
        ],
        "textposition": "middle right",
        "textfont": {"size": 11, "color": "var(--ink)"},
        "marker": {"symbol": [of.symbol for of in looks], "color": [of.colour for of in looks], "size": 9},
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _limit(name: str, at: float, bottom: float, dash: str) -> Figure:
    line = {"color": "var(--ink)" if dash == "solid" else "var(--refused)", "width": 1.5, "dash": dash}
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": [at, at],
        "y": [-0.8, bottom],
        "line": line,
        "hoverinfo": "name",
    }
