"""One self-contained HTML page on several methods that trained the same clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgefl.report.compare_table import compare_table, mixed_accuracies, tiers_text
from edgefl.report.page import render_page
from edgefl.report.plot import Chart, Figure, Json, clock_unit, figure_of, layout_of
from edgefl.report.words import names
from edgefl.util.units import human_bytes, human_count, human_percent, human_seconds

_COLOURS = 6
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_MARKED_POINTS = 40


def compare_page(summary: Json) -> str:
    """Return the page of a comparison; the same comparison gives the same page.

    Args:
        summary: the content of ``compare.json``.
    """
    over = accuracy_charts(summary)
    per_tier = tier_chart(summary)
    rows = summary["methods"]
    return render_page(
        "compare.html.j2",
        [*over, per_tier],
        summary=summary,
        about=_about(summary),
        names=names([row["label"] for row in rows]),
        target=human_percent(summary["target_accuracy"]),
        table=compare_table(summary),
        colours=[colour(number) for number in range(len(rows))],
        over=over,
        per_tier=per_tier,
        warning=mixed_accuracies(summary),
        uncounted=[(row["label"], names(row["uncounted_ops"])) for row in rows if row["uncounted_ops"]],
        tiers=[(row["label"], row["title"], tiers_text(row), row["tiers_why"], _options(row)) for row in rows],
        failures=[(row["label"], failure["seed"], failure["reason"]) for row in rows for failure in row["failures"]],
    )


def colour(number: int) -> str:
    """Return the CSS variable of the colour of method ``number``, the same in every chart."""
    return f"var(--tier-{number % _COLOURS})"


def accuracy_charts(summary: Json) -> tuple[Chart, ...]:
    """Return accuracy over bytes, over MACs and over the simulated clock, a line per method and the range over seeds as its band."""
    points = [point for row in summary["methods"] for point in row["curve"]]
    unit, unit_s = clock_unit(max((point["simulated_s"] for point in points), default=0.0))
    kinds: tuple[tuple[str, str, str, float, Figure, Callable[[float], str]], ...] = (
        (
            "bytes",
            "Accuracy over bytes sent",
            "bytes sent, down and up",
            1.0,
            {"tickformat": "~s", "ticksuffix": "B"},
            human_bytes,
        ),
        ("macs", "Accuracy over computing", "MACs of all clients", 1.0, {"tickformat": "~s"}, human_count),
        ("simulated_s", "Accuracy over simulated time", f"simulated time ({unit})", unit_s, {}, human_seconds),
    )
    return tuple(
        Chart(
            f"compare-{key}",
            title,
            _cheapest(summary, key, human),
            _over(summary, key, scale, {"title": label, "rangemode": "tozero", **axis}) if points else None,
        )
        for key, title, label, scale, axis, human in kinds
    )


def tier_chart(summary: Json) -> Chart:
    """Return the final accuracy of every tier, a bar per method."""
    key, title = "compare-tiers", "Accuracy per tier"
    rows = summary["methods"]
    labels = sorted({label for row in rows for label in row["tier_accuracy"]}, key=float, reverse=True)
    if not labels:
        return Chart(key, title, "No method has trained a tier.", None)
    traces = []
    for number, row in enumerate(rows):
        own = [label for label in labels if label in row["tier_accuracy"]]
        found = [row["tier_accuracy"][label] for label in own]
        trace: Figure = {
            "type": "bar",
            "name": row["label"],
            "x": [f"tier {label}" for label in own],
            "marker": {"color": colour(number)},
        }
        trace |= {"y": [of["mean"] for of in found], "hovertemplate": "%{y:.1%}", "legendgroup": row["label"]}
        shapes = ["/" if label in row["untrained_tiers"] else "" for label in own]
        trace["marker"]["pattern"] = {"shape": shapes, "fillmode": "overlay", "fgcolor": "var(--card)"}
        if any(of["sd"] is not None for of in found):
            trace["error_y"] = {
                "type": "data",
                "array": [of["sd"] or 0.0 for of in found],
                "color": "var(--soft)",
                "thickness": 1.5,
            }
        if own:
            traces.append(trace)
    xaxis = {
        "type": "category",
        "showgrid": False,
        "categoryorder": "array",
        "categoryarray": [f"tier {label}" for label in labels],
    }
    layout = layout_of(340, xaxis, {"title": "accuracy", "tickformat": ".0%", "rangemode": "tozero"})
    return Chart(
        key, title, _weakest(rows), figure_of(traces, {**layout, "barmode": "group", "bargap": 0.25, "showlegend": True})
    )


def _over(summary: Json, key: str, scale: float, xaxis: Json) -> Figure:
    traces: list[Figure] = []
    for number, row in enumerate(summary["methods"]):
        curve = row["curve"]
        if not curve:
            continue
        x = [point[key] / scale for point in curve]
        if len(row["seeds"]) > 1:
            traces.append(_band(number, row["label"], x, curve))
        look = {"color": colour(number), "width": 2, "dash": _DASHES[number // _COLOURS % len(_DASHES)]}
        marker = {"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 6}
        mode = "lines+markers" if len(x) <= _MARKED_POINTS else "lines"
        line = {
            "type": "scatter",
            "name": row["label"],
            "legendgroup": row["label"],
            "mode": mode,
            "line": look,
            "marker": marker,
        }
        traces.append({**line, "x": x, "y": [p["accuracy"] for p in curve], "hovertemplate": "%{y:.1%} at %{x:.4~s}"})
    layout = layout_of(380, xaxis, {"title": "accuracy", "tickformat": ".0%"})
    limit = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": summary["target_accuracy"],
        "y1": summary["target_accuracy"],
    }
    limit |= {"layer": "below", "line": {"color": "var(--soft)", "width": 1, "dash": "dash"}}
    return figure_of(traces, {**layout, "shapes": [limit], "showlegend": True})


def _band(number: int, label: str, x: Sequence[float], curve: Sequence[Json]) -> Figure:
    outline = [point["highest"] for point in curve] + [point["lowest"] for point in reversed(curve)]
    area = {"type": "scatter", "name": label, "legendgroup": label, "x": [*x, *reversed(x)], "y": outline, "mode": "lines"}
    line = {"color": colour(number), "width": 0}
    return {
        **area,
        "line": line,
        "fill": "toself",
        "fillcolor": colour(number),
        "opacity": 0.18,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _cheapest(summary: Json, key: str, human: Callable[[float], str]) -> str:
    """Return which method reached the target with least of ``key``, and which took most."""
    spent = {row["label"]: row["to_target"][key] for row in summary["methods"] if row["to_target"]}
    if not spent:
        return "No run came to an end, so there is no accuracy to draw."
    target = human_percent(summary["target_accuracy"])
    least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    sentence = f"{least} reaches {target}, which all methods reach, with least: {human(spent[least])}"
    if spent[least] == spent[most]:
        return f"{sentence}."
    times = f", {spent[most] / spent[least]:.3g} times as much" if spent[least] else ""
    return f"{sentence}; {most} takes most: {human(spent[most])}{times}."


def _weakest(rows: Sequence[Mapping[str, Any]]) -> str:
    trained = [
        (row["label"], label, of["mean"])
        for row in rows
        for label, of in row["tier_accuracy"].items()
        if label not in row["untrained_tiers"]
    ]
    hatched = " Hatched: tiers that nobody trained." if any(row["untrained_tiers"] for row in rows) else ""
    if not trained:
        return f"No tier was trained in every run.{hatched}"
    weakest: dict[str, tuple[float, str]] = {}
    for method, label, accuracy in trained:
        weakest[method] = min(weakest.get(method, (2.0, "")), (accuracy, label))
    worst, best = min(weakest, key=weakest.__getitem__), max(weakest, key=weakest.__getitem__)
    sentence = f"The weakest is tier {weakest[worst][1]} of {worst}, {human_percent(weakest[worst][0])}"
    return f"{sentence}; {best} has the best weakest tier, {human_percent(weakest[best][0])}.{hatched}"


def _about(summary: Json) -> list[tuple[str, str]]:
    keys = (
        *("fleet", "model", "dataset", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size"),
        *("objective", "server_optimizer", "codec"),
    )
    pairs = [(key.replace("_", " "), str(summary[key])) for key in keys if summary[key] is not None]
    tiers = summary["tiers"] if isinstance(summary["tiers"], str) else ", ".join(f"{tier:g}" for tier in summary["tiers"])
    return [*pairs, ("tiers", tiers), ("seeds", ", ".join(map(str, summary["seeds"])))]


def _options(row: Json) -> str:
    return ", ".join(f"{key} = {value}" for key, value in row["options"].items()) or "none"
