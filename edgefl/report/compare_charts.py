"""The charts of a comparison: accuracy over what was spent, and the accuracy of every tier."""

from collections.abc import Callable, Sequence

from edgefl.records import Metric
from edgefl.report.chart import Chart, Json, Spec, category, clock_unit, colour, layer, layered, legend, lines, number
from edgefl.report.compare_tables import tier_labels
from edgefl.report.comparison import ComparisonSummary, MethodResult
from edgefl.report.metric import metric_axis, metric_text
from edgefl.report.verdict_words import measure
from edgefl.util.units import human_bytes, human_count, human_seconds


def accuracy_charts(summary: ComparisonSummary) -> tuple[Chart, ...]:
    """Return accuracy over bytes, over MACs and over the simulated clock, a line per method and the range over seeds as its band."""
    curves = [(row.label, point) for row in summary.methods for point in row.curve]
    unit, unit_s = clock_unit(max((point.simulated_s for _, point in curves), default=0.0))
    metric = summary.metric
    title = measure(summary).capitalize()
    kinds: tuple[tuple[str, Spec, Callable[[float], str]], ...] = (
        (f"{title} over bytes sent", number("bytes", "bytes sent, down and up", "~s", "B"), human_bytes),
        (f"{title} over computing", number("macs", "MACs of all clients", "~s"), human_count),
        (f"{title} over simulated time", number("simulated_s", f"simulated time ({unit})"), human_seconds),
    )
    rows = [
        {
            **vars(point),
            "series": label,
            "simulated_s": point.simulated_s / unit_s,
            "told": f"{label}: {metric_text(metric, point.accuracy)} after {human_bytes(point.bytes)}, "
            f"{human_count(point.macs)} MACs and {human_seconds(point.simulated_s)}",
        }
        for label, point in curves
    ]
    return tuple(
        Chart(f"compare-{x['field']}", title, _cheapest(summary, x["field"], human), _over(summary, rows, x) if rows else None)
        for title, x, human in kinds
    )


def _over(summary: ComparisonSummary, rows: Sequence[Json], x: Spec) -> Spec:
    colours = colours_of(summary)
    several = {row.label for row in summary.methods if len(row.seeds) > 1}
    y = metric_axis(summary.metric, zero=False)
    target = {"type": "rule", "color": "var(--soft)", "strokeDash": [6, 4]}
    banded = [row for row in rows if row["series"] in several]
    band = {"x": x, "y": {**y, "field": "lowest"}, "y2": "highest", "color": legend(colours)}
    return layered(
        300,
        layer(target, [{}], y={"datum": summary.target_accuracy}),
        *lines(rows, colours, x, y),
        layer({"type": "area", "opacity": 0.18}, banded, **band),
    )


def tier_chart(summary: ComparisonSummary) -> Chart:
    """Return the final accuracy of every tier that some client trained, a bar per method."""
    metric, methods = summary.metric, summary.methods
    key, title = "compare-tiers", f"{metric.name.capitalize()} per tier"
    if not (labels := tier_labels(summary)):
        return Chart(key, title, "No client trained a tier.", None)
    rows = [
        {
            "tier": f"tier {label}",
            "series": row.label,
            "accuracy": of.mean,
            "told": f"{row.label}, tier {label}: {metric_text(metric, of.mean)}",
            **({} if of.sd is None else {"low": of.mean - of.sd, "high": of.mean + of.sd}),
        }
        for row in methods
        for label, of in row.tier_accuracy.items()
    ]
    colours, y = colours_of(summary), metric_axis(metric)
    beside = {"field": "series", "type": "nominal", "scale": {"domain": list(colours)}}
    at = {"x": category("tier", None, [f"tier {label}" for label in labels]), "xOffset": beside}
    spread = [row for row in rows if "low" in row]
    spec = layered(
        260,
        layer("bar", rows, **at, y=y, fill=legend(colours, True), tooltip="told"),
        layer({"type": "rule", "color": "var(--soft)", "strokeWidth": 1.5}, spread, **at, y={**y, "field": "low"}, y2="high"),
    )
    error = " The rules are ± one standard deviation over seeds." if spread else ""
    return Chart(key, title, _weakest(methods, metric) + error, spec)


def colours_of(summary: ComparisonSummary) -> dict[str, str]:
    """Return label → colour of the methods of a comparison, the same in every chart and table."""
    return {row.label: colour(number) for number, row in enumerate(summary.methods)}


def _cheapest(summary: ComparisonSummary, key: str, human: Callable[[float], str]) -> str:
    """Return which method reached the target with least of ``key``, and which took most."""
    metric = summary.metric
    spent = {row.label: getattr(row.to_target, key) for row in summary.methods if row.to_target}
    if not spent:
        return f"No run came to an end, so there is no {metric.name} to draw."
    target = metric_text(metric, summary.target_accuracy)
    least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    sentence = f"{least} reaches {target}, which all methods reach, with least: {human(spent[least])}"
    if spent[least] == spent[most]:
        return f"{sentence}."
    times = f", {spent[most] / spent[least]:.3g} times as much" if spent[least] else ""
    return f"{sentence}; {most} takes most: {human(spent[most])}{times}."


def _weakest(rows: Sequence[MethodResult], metric: Metric) -> str:
    weakest = {
        row.label: min(trained, key=lambda pair: pair[0] if metric.better == "higher" else -pair[0])
        for row in rows
        if (trained := [(of.mean, tier) for tier, of in row.tier_accuracy.items()])
    }
    ends = (min, max) if metric.better == "higher" else (max, min)
    worst, best = (end(weakest, key=weakest.__getitem__) for end in ends)
    sentence = f"The weakest is tier {weakest[worst][1]} of {worst}, {metric_text(metric, weakest[worst][0])}"
    return f"{sentence}; {best} has the best weakest tier, {metric_text(metric, weakest[best][0])}."
