"""The charts of a run's accuracy, each with a sentence that says what it shows, and the colours of its tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgefl.report.plot import Chart, Figure, Json, clock_unit, figure_of, layout_of
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_percent, human_seconds

TIER_COLOURS = 6
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
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
