"""The charts of what a run's tiers cost and of how much of each budget its device classes use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.report.charts import tier_colour
from edgefl.report.plot import HEAD, Chart, Figure, Json, compared, figure_of, layout_of, short
from edgefl.report.words import BUDGETS, tier_label
from edgefl.util.units import human_budget, human_bytes, human_count, human_percent

_PARTS = {
    "parameter_bytes": ("parameters", "var(--part-0)"),
    "optimizer_bytes": ("optimizer", "var(--part-2)"),
    "step_bytes": ("activations and gradients", "var(--part-3)"),
}
_TRAFFIC = {"download_bytes": ("down", "var(--part-1)"), "upload_bytes": ("up", "var(--part-3)")}
_WIDEST_SHARE = 1.5


def cost_charts(summary: Json) -> tuple[Chart, ...]:
    """Return what each tier computes in a step, holds while it trains, and sends in a round."""
    tiers = sorted(summary["tiers"], key=lambda row: row["tier"])
    if not tiers:
        sentence = "The run has no tier, so there is no cost to draw."
        return tuple(Chart(f"cost-{key}", key.capitalize(), sentence, None) for key in ("compute", "memory", "traffic"))
    names = [f"tier {tier_label(row['tier'])}" for row in tiers]
    macs = [row["macs_train_step"] for row in tiers]
    colours = [tier_colour(summary, row["tier"]) for row in tiers]
    compute = _bars(names, {"": (macs, colours)}, [human_count(value) for value in macs], "MACs in a training step", "")
    tiers = [
        {**row, "step_bytes": row["training_memory_bytes"] - row["parameter_bytes"] - row["optimizer_bytes"]} for row in tiers
    ]
    memory_bytes, traffic_bytes = (_sums(tiers, keys) for keys in (_PARTS, _TRAFFIC))
    memory = _bars(names, _stacks(tiers, _PARTS), list(map(human_bytes, memory_bytes)), "bytes held while training", "B")
    traffic = _bars(names, _stacks(tiers, _TRAFFIC), list(map(human_bytes, traffic_bytes)), "bytes in a round", "B")
    step = f"a training step at a batch of {summary['batch_size']}"
    sentences = (
        compared(tiers, macs, "computes", f"MACs in {step}", human_count),
        compared(tiers, memory_bytes, "holds", f"at the peak of {step}", human_bytes),
        compared(tiers, traffic_bytes, "moves", "per client and round", human_bytes),
    )
    return (
        Chart("cost-compute", "Compute", sentences[0], compute),
        Chart("cost-memory", "Memory", sentences[1], memory),
        Chart("cost-traffic", "Traffic", sentences[2], traffic),
    )


def budget_chart(summary: Json) -> Chart:
    """Return how much of each of its budgets every device class uses, with a line at all of it."""
    key, title = "budget-use", "Budget use per device class"
    bars, heads, row = [], [], 0.0
    for item in summary["classes"]:
        entries = budget_entries(item)
        if entries:
            heads.append((row, item))
            bars += [(row + 1 + i, item, entry) for i, entry in enumerate(entries)]
            row += len(entries) + 1.5
    if not bars:
        return Chart(key, title, "No device class of this run has a budget.", None)
    return Chart(key, title, _tightest(bars), _budget_figure(summary, bars, heads))


def budget_entries(item: Json) -> list[Json]:
    """Return the budgets of a device class; of a class without a tier, those that refused its smallest tier."""
    if item["budgets"]:
        return [entry for entry in item["budgets"] if entry["share"] is not None]
    smallest = min((refusal["tier"] for refusal in item["refusals"]), default=None)
    refusals = {refusal["budget"]: refusal for refusal in item["refusals"] if refusal["tier"] == smallest}
    return [{**entry, "share": entry["need"] / entry["have"]} for entry in refusals.values() if entry["have"] > 0]


def _stacks(tiers: Sequence[Json], parts: Mapping[str, tuple[str, str]]) -> dict[str, tuple[list[int], str]]:
    return {name: ([row[key] for row in tiers], colour) for key, (name, colour) in parts.items()}


def _sums(tiers: Sequence[Json], parts: Mapping[str, tuple[str, str]]) -> list[int]:
    return [sum(row[key] for key in parts) for row in tiers]


def _bars(
    names: Sequence[str], stacks: Mapping[str, tuple[Sequence[int], Any]], totals: Sequence[str], label: str, unit: str
) -> Figure:
    """Return vertical stacked bars with the total written on top of each."""
    bar = {"type": "bar", "x": names, "hovertemplate": f"%{{y:.3s}}{unit}"}
    traces: list[Figure] = [
        {**bar, "name": name, "y": values, "marker": {"color": colour}} for name, (values, colour) in stacks.items()
    ]
    tops = [sum(values) for values in zip(*(values for values, _ in stacks.values()), strict=True)]
    labels = {"type": "scatter", "x": names, "y": tops, "text": totals, "mode": "text", "textposition": "top center"}
    traces.append({**labels, "showlegend": False, "hoverinfo": "skip", "cliponaxis": False})
    yaxis = {"title": label, "tickformat": "~s", "ticksuffix": unit, "range": [0, 1.12 * max(*tops, 1)]}
    return figure_of(traces, {**layout_of(340, {"type": "category", "showgrid": False}, yaxis), "showlegend": len(stacks) > 1})


def _budget_figure(summary: Json, bars: Sequence[tuple[float, Json, Json]], heads: Sequence[tuple[float, Json]]) -> Figure:
    """Return horizontal bars, one per class and budget under the class's name, cut where they leave the chart."""
    widest = min(max(1.1, *(entry["share"] for _, _, entry in bars)) * 1.02, _WIDEST_SHARE)
    rows = [row for row, _, _ in bars]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": rows,
        "x": [min(entry["share"], widest) for _, _, entry in bars],
        "text": [human_percent(entry["share"]) for _, _, entry in bars],
        "textposition": ["inside" if entry["share"] > 0.75 * widest else "outside" for _, _, entry in bars],
        "insidetextanchor": "start",
        "insidetextfont": {"color": "var(--on-colour)"},
        "outsidetextfont": {"color": "var(--ink)"},
        "textangle": 0,
        "cliponaxis": False,
        "marker": {"color": [_class_colour(summary, item) for _, item, _ in bars]},
        "customdata": [
            f"{item['title']}: {human_budget(entry['budget'], entry['need'])} of "
            f"{human_budget(entry['budget'], entry['have'])} {BUDGETS.get(entry['budget'], entry['budget'])}"
            for _, item, entry in bars
        ],
        "hovertemplate": "%{customdata}",
    }
    yaxis = {
        "tickvals": rows,
        "ticktext": [BUDGETS.get(entry["budget"], entry["budget"]) for _, _, entry in bars],
        "range": [max(rows) + 0.8, min(row for row, _ in heads) - 0.6],
        "showgrid": False,
        "ticklabelstandoff": 6,
    }
    xaxis = {"title": "share of the budget used", "tickformat": ".0%", "range": [0, widest], "dtick": 0.5}
    layout = layout_of(round(90 + 26 * (max(rows) + 1)), xaxis, yaxis)
    layout["annotations"] = [
        {**HEAD, "xshift": -60, "y": row, "text": f"{short(item['title'])} · {_class_tier(item)}"} for row, item in heads
    ]
    line = {"color": "var(--refused)", "width": 2, "dash": "dash"}
    limit = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": line}
    return figure_of([{**trace, "showlegend": False}], {**layout, "shapes": [limit], "bargap": 0.25})


def _class_colour(summary: Json, item: Json) -> str:
    return "var(--refused)" if item["tier"] is None else tier_colour(summary, item["tier"])


def _class_tier(item: Json) -> str:
    return "no tier" if item["tier"] is None else f"tier {tier_label(item['tier'])}"


def _tightest(bars: Sequence[tuple[float, Json, Json]]) -> str:
    _, item, entry = max(bars, key=lambda bar: float(bar[2]["share"]))
    budget = BUDGETS.get(entry["budget"], entry["budget"])
    return f"The tightest is the {budget} of {item['title']}: {human_percent(entry['share'])} of it is needed."
