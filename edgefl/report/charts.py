"""The charts of a run's report, each with a sentence that says what it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.report.plot import Chart, Figure, Json, compared, figure_of, layout_of, short
from edgefl.report.tables import BUDGETS, tier_label
from edgefl.units import human_budget, human_bytes, human_count, human_percent, human_seconds

STATUSES = {"trained": "var(--trained)", "refused": "var(--refused)", "diverged": "var(--diverged)"}
TIER_COLOURS = 6
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_PARTS = {
    "parameter_bytes": ("parameters", "var(--part-0)"),
    "optimizer_bytes": ("optimizer", "var(--part-2)"),
    "step_bytes": ("activations and gradients", "var(--part-3)"),
}
_TRAFFIC = {"download_bytes": ("down", "var(--part-1)"), "upload_bytes": ("up", "var(--part-3)")}
# A class's name stands above its bars, where a phone has room for it.
_HEAD = {"x": 0, "xanchor": "left", "showarrow": False, "font": {"color": "var(--soft)"}}
_WIDEST_SHARE = 1.5
_MARKED_POINTS = 60


def tier_colour(summary: Json, tier: float) -> str:
    """Return the CSS variable of a tier's colour, the same in every chart: the largest tier has the first."""
    tiers = sorted((row["tier"] for row in summary["tiers"]), reverse=True)
    return f"var(--tier-{tiers.index(tier) % TIER_COLOURS})" if tier in tiers else "var(--soft)"


def of_clients(summary: Json) -> bool:
    """Whether accuracies are means over clients, each with its own model or labels; runs of older versions do not say."""
    return summary.get("accuracy_of") == "clients"


def accuracy_charts(summary: Json, rounds: Sequence[Json]) -> tuple[Chart, ...]:
    """Return accuracy over rounds, over bytes sent and over the simulated clock."""
    evaluated, sent_bytes, total_bytes = [], [], 0
    for record in rounds:
        total_bytes += record["download_bytes"] + record["upload_bytes"]
        if record["accuracy"]:
            evaluated.append(record)
            sent_bytes.append(total_bytes)
    unit, unit_s = clock_unit(max((record["clock_s"] for record in evaluated), default=0.0))
    axes: tuple[tuple[str, str, str, list[float], Json], ...] = (
        ("rounds", "Accuracy over rounds", "round", [record["round"] for record in evaluated], {}),
        (
            "bytes",
            "Accuracy over bytes sent",
            "bytes sent, down and up",
            sent_bytes,
            {"tickformat": "~s", "ticksuffix": "B"},
        ),
        (
            "clock",
            "Accuracy over simulated time",
            f"simulated time ({unit})",
            [r["clock_s"] / unit_s for r in evaluated],
            {},
        ),
    )
    if not evaluated:
        sentence = "No round was evaluated, so there is no accuracy to draw."
        return tuple(Chart(f"accuracy-{key}", title, sentence, None) for key, title, *_ in axes)
    sentences = (_accuracy_by_tier(summary, evaluated), *_close_to_best(summary, evaluated, sent_bytes))
    return tuple(
        Chart(
            f"accuracy-{key}",
            title,
            sentence,
            _accuracy_figure(summary, evaluated, x, {"title": label, **axis}),
        )
        for (key, title, label, x, axis), sentence in zip(axes, sentences, strict=True)
    )


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


def outcome_charts(summary: Json, rounds: Sequence[Json]) -> tuple[Chart, ...]:
    """Return how clients' turns ended, per round and per device class."""
    by_round: dict[str, Counter[str]] = {}
    by_device: dict[str, Counter[str]] = {item["device"]: Counter() for item in summary["classes"]}
    for record in rounds:
        for client in record["clients"]:
            by_round.setdefault(str(record["round"]), Counter())[client["status"]] += 1
            by_device.setdefault(client["device"], Counter())[client["status"]] += 1
    heads = (("outcomes-rounds", "Outcomes per round"), ("outcomes-classes", "Outcomes per device class"))
    if not by_round:
        return tuple(Chart(key, title, "No client was asked to train.", None) for key, title in heads)
    total = sum(by_round.values(), Counter())
    others = [f"{total[status]} {status}" for status in _statuses(total) if status != "trained" and total[status]]
    sentence = f"{total['trained']} of {total.total()} client turns trained; {', '.join(others) or 'none was refused'}."
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    by_class = [(titles.get(device, device), counts) for device, counts in by_device.items()]
    return (
        Chart(*heads[0], sentence, _outcomes_by_round(by_round)),
        Chart(*heads[1], _least_trained(by_class), _outcomes_by_class(by_class)),
    )


def _accuracy_figure(summary: Json, evaluated: Sequence[Json], x: Sequence[float], xaxis: Json) -> Figure:
    labels = {tier_label(row["tier"]): row["tier"] for row in sorted(summary["tiers"], key=lambda row: -row["tier"])}
    marked = "lines+markers" if len(x) <= _MARKED_POINTS else "lines"
    traces: list[Figure] = []
    for i, (label, tier) in enumerate(labels.items()):
        y = [record["accuracy"].get(label) for record in evaluated]
        marker = {"symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 7}
        traces.append(_line(f"tier {label}", x, y, marked, tier_colour(summary, tier), marker=marker))
    y = [record["accuracy"].get("global") for record in evaluated]
    name = "mean of clients" if of_clients(summary) else "global"
    traces.append(_line(name, x, y, "lines", "var(--ink)", dash="dot"))
    return figure_of(traces, layout_of(340, xaxis, {"title": "accuracy", "tickformat": ".0%"}))


def _line(name: str, x: Sequence[float], y: Sequence[Any], mode: str, colour: str, dash: str = "solid", **more: Any) -> Figure:
    line = {"color": colour, "width": 2, "dash": dash}
    trace = {"type": "scatter", "name": name, "x": x, "y": y, "mode": mode, "line": line, "connectgaps": True, **more}
    return {**trace, "hovertemplate": "%{y:.1%} at %{x:.4~s}"}


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
        {**_HEAD, "xshift": -60, "y": row, "text": f"{short(item['title'])} · {_class_tier(item)}"} for row, item in heads
    ]
    line = {"color": "var(--refused)", "width": 2, "dash": "dash"}
    limit = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": line}
    return figure_of([{**trace, "showlegend": False}], {**layout, "shapes": [limit], "bargap": 0.25})


def _outcomes_by_round(by_round: Mapping[str, Counter[str]]) -> Figure:
    rounds = [int(number) for number in by_round]
    counted = list(by_round.values())
    traces = [{**_status(status), "x": rounds, "y": [counts[status] for counts in counted]} for status in _statuses(*counted)]
    layout = layout_of(300, {"title": "round"}, {"title": "clients", "rangemode": "tozero"})
    return figure_of(traces, {**layout, "bargap": 0.1, "showlegend": True})


def _outcomes_by_class(by_class: Sequence[tuple[str, Counter[str]]]) -> Figure:
    rows = list(range(len(by_class)))
    counted = [counts for _, counts in by_class]
    traces = [
        {**_status(status), "orientation": "h", "y": rows, "x": [counts[status] for counts in counted]}
        for status in _statuses(*counted)
    ]
    yaxis = {"showticklabels": False, "showgrid": False, "range": [len(rows) - 0.5, -0.8]}
    layout = layout_of(110 + 56 * len(rows), {"title": "client turns"}, yaxis)
    names = [{**_HEAD, "y": row - 0.48, "text": short(title)} for row, (title, _) in enumerate(by_class)]
    return figure_of(traces, {**layout, "showlegend": True, "annotations": names, "bargap": 0.55})


def _statuses(*counted: Counter[str]) -> list[str]:
    """Return the statuses that occur, the known ones first; those never seen are left out, except "trained"."""
    seen = {"trained"}.union(*counted)
    return [*(status for status in STATUSES if status in seen), *sorted(seen.difference(STATUSES))]


def _status(status: str) -> Figure:
    # Hatching keeps the rarer statuses apart without colour.
    pattern = {
        "shape": "" if status in ("trained", "refused") else "/",
        "fillmode": "overlay",
        "fgcolor": "var(--card)",
    }
    return {"type": "bar", "name": status, "marker": {"color": STATUSES.get(status, "var(--soft)"), "pattern": pattern}}


def _class_colour(summary: Json, item: Json) -> str:
    return "var(--refused)" if item["tier"] is None else tier_colour(summary, item["tier"])


def _class_tier(item: Json) -> str:
    return "no tier" if item["tier"] is None else f"tier {tier_label(item['tier'])}"


def clock_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit for an axis that goes to ``longest_s``, and its seconds.

    >>> clock_unit(100), clock_unit(7200)
    (('s', 1.0), ('min', 60.0))
    """
    return ("s", 1.0) if longest_s < 180 else ("min", 60.0) if longest_s < 3 * 3600 else ("h", 3600.0)


def _accuracy_by_tier(summary: Json, evaluated: Sequence[Json]) -> str:
    accuracy = dict(evaluated[-1]["accuracy"])
    whole, when = human_percent(accuracy.pop("global", None)), f"After round {evaluated[-1]['round']}"
    if of_clients(summary):
        sentence = f"{when} clients are right on {whole} of held-out samples of their own, in the mean"
    else:
        sentence = f"{when} the global model is right on {whole} of held-out samples"
    if not accuracy:
        return f"{sentence}."
    label, worst = min(accuracy.items(), key=lambda pair: float(pair[1]))
    return f"{sentence}, the weakest tier ({label}) on {human_percent(worst)}."


def _close_to_best(summary: Json, evaluated: Sequence[Json], sent_bytes: Sequence[int]) -> tuple[str, str]:
    """Return what it took, in bytes and in simulated time, to come within one point of the best global accuracy."""
    reached = [record["accuracy"].get("global") or 0.0 for record in evaluated]
    first = next(i for i, value in enumerate(reached) if value >= max(reached) - 0.01)
    record = evaluated[first]
    who = "The clients' mean" if of_clients(summary) else "The global model"
    claim = f"{who} came within one point of its best ({human_percent(max(reached))}) after"
    return (
        f"{claim} {human_bytes(sent_bytes[first])}, of {human_bytes(sent_bytes[-1])} sent in all.",
        f"{claim} {human_seconds(record['clock_s'])} of simulated time, in round {record['round']}.",
    )


def _tightest(bars: Sequence[tuple[float, Json, Json]]) -> str:
    _, item, entry = max(bars, key=lambda bar: float(bar[2]["share"]))
    budget = BUDGETS.get(entry["budget"], entry["budget"])
    return f"The tightest is the {budget} of {item['title']}: {human_percent(entry['share'])} of it is needed."


def _least_trained(by_class: Sequence[tuple[str, Counter[str]]]) -> str:
    never = [title for title, counts in by_class if counts.total() and not counts["trained"]]
    if never:
        return f"Asked, but never trained: {', '.join(never)}."
    return "Every class that was asked trained at least once."
