"""The charts of a dry run: how long rounds last, over the run and over the day, and what each policy does to inclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from edgefl.report.plot import Chart, Figure, clock_unit, figure_of, layout_of
from edgefl.report.share_table import Cell, ShareRow, ShareTable, devices_of, least_included
from edgefl.report.words import tier_label
from edgefl.util.units import human_percent, human_seconds

Json = Mapping[str, Any]
_MANY = 100


def round_chart(rounds: Sequence[Json]) -> Chart:
    """Return how long each round lasted, with a word on how long the server waited before."""
    key, title = "rounds", "How long rounds last"
    if not rounds:
        return Chart(key, title, "No round was played.", None)
    lasted, waited = [r["round_s"] for r in rounds], [r.get("waited_s") or 0.0 for r in rounds]
    typical, longest = median(lasted), max(lasted)
    sentence = f"The median round lasts {human_seconds(typical)}, the longest {human_seconds(longest)}"
    sentence += f"; the server waited {human_seconds(sum(waited))} in all for clients to become eligible." if any(waited) else "."
    unit, unit_s = clock_unit(longest)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": [record["round"] for record in rounds],
        "y": [value_s / unit_s for value_s in lasted],
        "line": {"color": "var(--tier-0)", "width": 1 if len(rounds) > _MANY else 2},
        "hovertemplate": f"%{{y:.4~g}} {unit} in round %{{x}}",
    }
    layout = layout_of(300, {"title": "round"}, {"title": f"simulated time ({unit})", "rangemode": "tozero"})
    return Chart(key, title, sentence, figure_of([trace], {**layout, "showlegend": False}))


def hour_chart(summary: Json, rounds: Sequence[Json]) -> Chart | None:
    """Return rounds by the hour of day at which the server asked for clients; None where hours make no difference."""
    if summary.get("availability", "always") == "always":
        return None
    hours: dict[int, list[tuple[float, float]]] = {}
    for record in rounds:
        waited_s = record.get("waited_s") or 0.0
        asked_s = record["clock_s"] - record["round_s"] - waited_s
        hour = int((asked_s / 3600 + (summary.get("start_hour") or 0)) % 24)
        hours.setdefault(hour, []).append((waited_s, record["round_s"]))
    if len(hours) < 2:
        return None
    x = sorted(hours)
    means = {name: [fmean(pair[i] for pair in hours[hour]) for hour in x] for i, name in ((0, "waiting"), (1, "the round"))}
    both = [sum(pair) for pair in zip(*means.values(), strict=True)]
    unit, unit_s = clock_unit(max(both))
    worst, best = (x[both.index(pick(both))] for pick in (max, min))
    sentence = f"Asked for at {best} o'clock, a round is there after {human_seconds(min(both))} in the mean, waiting included"
    sentence += f"; at {worst} o'clock it takes {human_seconds(max(both))}."
    looks = {"waiting": ("var(--part-3)", "/"), "the round": ("var(--tier-0)", "")}
    traces: list[Figure] = []
    for name, (colour, shape) in looks.items():
        pattern = {"shape": shape, "fillmode": "overlay", "fgcolor": "var(--ink)", "solidity": 0.2}
        bars = {"type": "bar", "name": name, "x": x, "y": [s / unit_s for s in means[name]], "hovertemplate": "%{y:.4~g}"}
        traces.append({**bars, "marker": {"color": colour, "pattern": pattern}})
    xaxis = {"title": "hour of day", "range": [-0.6, 23.6], "dtick": 3, "showgrid": False}
    layout = layout_of(300, xaxis, {"title": f"mean time ({unit})", "rangemode": "tozero"})
    return Chart("hours", "Over the day", sentence, figure_of(traces, {**layout, "bargap": 0.15, "showlegend": True}))


def policy_table(policies: Sequence[Json], titles: Mapping[str, str]) -> ShareTable:
    """Return what each assignment of tiers does: to rounds, and to each class's sessions that trained."""
    devices = devices_of([row["inclusion"] for row in policies], titles)
    rows = [
        ShareRow(
            (
                Cell(row["policy"]),
                Cell(", ".join(map(tier_label, row["tiers"]))),
                Cell(human_seconds(row["round_s"])),
                Cell.of(row["useful_share"]),
                *(Cell.of(row["inclusion"].get(device)) for device in devices),
            )
        )
        for row in policies
    ]
    heads = ("tier assignment", "tiers", "median round", "useful share", *(titles.get(device, device) for device in devices))
    return ShareTable(heads, tuple(rows))


def policy_sentence(policies: Sequence[Json], titles: Mapping[str, str]) -> str:
    """Return which assignment serves its weakest class best, and which worst."""
    found = [(row["policy"], least) for row in policies if (least := least_included(row["inclusion"]))]
    if not found:
        return "No class had a session under any assignment."
    (best, (device, share)), (worst, (lost, lost_share)) = (pick(found, key=lambda pair: pair[1][1]) for pick in (max, min))
    sentence = f"Under “{best}” the class that takes least part is {titles.get(device, device)}"
    sentence += f": {human_percent(share)} of its sessions train"
    if share == lost_share:
        return f"{sentence}; no assignment does better, none worse."
    return f"{sentence}; under “{worst}” it is {titles.get(lost, lost)}, with {human_percent(lost_share)}."
