"""One self-contained HTML page on several methods that trained the same clients, and the tables of a comparison."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from edgefl.records import ACCURACY, Metric
from edgefl.report.chart import Chart, Json, Spec, category, clock_unit, colour, layer, layered, legend, lines, number
from edgefl.report.compare_answer import COSTS, answer_of_comparison, best_first, fronts_of, ranks_of
from edgefl.report.compare_page_budget import budget_notes, budget_table, budget_text, class_table, front_charts, winner
from edgefl.report.metric import metric_axis, metric_of, metric_text
from edgefl.report.page import facts, render_page
from edgefl.report.tables import Column, PlainTable, Row, human_of, text, under
from edgefl.report.words import NOT_VALIDATED, names, tier_label
from edgefl.util.units import MISSING, human_bytes, human_count, human_percent, human_seconds

_METHOD = text("method", "", "label")


def compare_table(summary: Row) -> PlainTable:
    """Return every figure of every method of a comparison, the most accurate first; ``summary`` is the content of ``compare.json``."""
    tiers, metric = {label: label for label in _tier_labels(summary)}, metric_of(summary)
    columns = (
        _METHOD,
        _rank(summary),
        Column("tiers", "", tiers_text, numeric=False),
        *_result(summary),
        *under(f"{metric.name} per tier", partial(mean_sd, metric=metric), "tier_accuracy", **tiers),
        *_means("bytes in all", download_bytes="down", upload_bytes="up"),
        *_means("spent in all", macs="MACs", simulated_s="simulated time", energy_j="energy"),
        *under("parameters per tier", human_count, "params", **tiers),
        *_on_fronts(summary),
        Column("runs", "seeds", _seeds),
        *_means("runs", host_s="this computer's time"),
    )
    return PlainTable.of(columns, best_first(summary))


def key_table(summary: Row) -> PlainTable:
    """Return what decides between the methods, the most accurate first."""
    columns = (
        _METHOD,
        _rank(summary),
        Column("tiers", "", tiers_text, numeric=False),
        *_result(summary),
        *_means("in all", bytes="bytes", macs="MACs", simulated_s="time", energy_j="energy"),
        Column("on the Pareto front", "", lambda row: names(COSTS[key][0] for key in fronts_of(summary).get(row["label"], ()))),
    )
    return PlainTable.of(columns, best_first(summary))


def compact_comparison(summary: Row) -> PlainTable:
    """Return the table that ends a comparison in a terminal."""
    columns = (
        _METHOD,
        Column("method", "tiers", tiers_text, numeric=False),
        *_result(summary),
        *_means("in all", bytes="bytes", macs="MACs", simulated_s="time", energy_j="energy"),
        Column("parameters", "largest", lambda row: human_count(max(row["params"].values(), default=None))),
        Column("parameters", "smallest", lambda row: human_count(min(row["params"].values(), default=None))),
    )
    return PlainTable.of(columns, best_first(summary), note=footnote(summary), stacked=True)


def _rank(summary: Row) -> Column:
    ranks = ranks_of(summary)
    counts = Counter(ranks.values())

    def text(row: Row) -> str:
        rank = ranks.get(row["label"])
        return MISSING if rank is None else f"{rank} =" if counts[rank] > 1 else str(rank)

    return Column("rank", "", text)


def _on_fronts(summary: Row) -> tuple[Column, ...]:
    """Return whether no other method is at least as accurate for less, a column per cost."""
    fronts = fronts_of(summary)

    def column(key: str, word: str) -> Column:
        return Column("on the Pareto front", word, lambda row: "yes" if key in fronts.get(row["label"], ()) else MISSING)

    return tuple(column(key, word) for key, (word, _) in COSTS.items())


def setting_table(summary: Row) -> PlainTable:
    """Return the tiers and options that each method was given."""
    columns = (
        _METHOD,
        text("is", "", "title"),
        Column("tiers", "", tiers_text, numeric=False),
        Column("why these", "", lambda row: str(row["tiers_why"]), numeric=False, wraps=True),
        Column("options of its own", "", lambda row: names([f"{k} = {v}" for k, v in row["options"].items()]), False, wraps=True),
    )
    return PlainTable.of(columns, summary["methods"])


def mean_sd(found: Row | None, metric: Metric = ACCURACY) -> str:
    """Return a mean with its standard deviation over seeds: ``91.2 ± 0.4 %``."""
    if found is None:
        return MISSING
    if not metric.share:
        return metric_text(metric, found["mean"]) + ("" if found["sd"] is None else f" ± {found['sd']:.2g}")
    return human_percent(found["mean"]) if found["sd"] is None else f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f} %"


def tiers_text(row: Row) -> str:
    """Return a method's tiers as a list for people."""
    return ", ".join(map(tier_label, row["tiers"])) or MISSING


def mixed_accuracies(summary: Row) -> str:
    """Return a warning if some accuracies are of global models and some are means over clients, else nothing."""
    by_kind: dict[str, list[str]] = {}
    for row in summary["methods"]:
        if row["seeds"]:
            by_kind.setdefault(row["accuracy_of"], []).append(row["label"])
    if len(by_kind) < 2:
        return ""
    return (
        f"Not one kind of accuracy: of {', '.join(by_kind['clients'])} it is the mean over clients, each with a model of its own on "
        f"held-out samples of its own; of {', '.join(by_kind['global'])} it is the global model's on all held-out samples."
    )


def footnote(summary: Row) -> str:
    """Return the warnings that belong below the table: unlike accuracies, failures, untrained tiers, uncounted operations."""
    notes = [mixed_accuracies(summary)]
    for row in summary["methods"]:
        notes += [f"{row['label']}, seed {f['seed']}: failed: {f['reason'].splitlines()[0]}" for f in row["failures"]]
        if row["untrained_tiers"]:
            notes.append(f"{row['label']}: no client trained tier {', '.join(row['untrained_tiers'])}")
        if row["uncounted_ops"]:
            notes.append(f"{row['label']}: not counted, so no budget can be claimed met: {', '.join(row['uncounted_ops'])}")
    return "\n".join(note for note in notes if note)


def _result(summary: Row) -> tuple[Column, ...]:
    metric = metric_of(summary)
    group = f"until {metric_text(metric, summary['target_accuracy'])}"
    after = Column(metric.name, "after training", lambda row: mean_sd(row.get("accuracy_after_training"), metric))
    epsilon = Column("ε", "", lambda row: MISSING if row.get("epsilon") is None else f"{row['epsilon']:.3g}")
    return (
        Column(metric.name, "", lambda row: mean_sd(row["accuracy"], metric)),
        *([after] if any(row.get("accuracy_after_training") for row in summary["methods"]) else []),
        *under(metric.name, lambda value: value or MISSING, accuracy_of="of"),
        *([epsilon] if any(row.get("epsilon") is not None for row in summary["methods"]) else []),
        *under(group, lambda value: MISSING if value is None else str(value), "to_target", round="round"),
        *under(group, outer="to_target", bytes="bytes", macs="MACs", simulated_s="time"),
    )


def _tier_labels(summary: Row) -> list[str]:
    return sorted({label for row in summary["methods"] for label in row["tier_accuracy"]}, key=float, reverse=True)


def _means(group: str, **heads: str) -> tuple[Column, ...]:
    return tuple(column for key, head in heads.items() for column in under(group, human_of(key), key, mean=head))


def _seeds(row: Row) -> str:
    failed = [failure["seed"] for failure in row["failures"]]
    return names(row["seeds"]) + (f" (failed: {names(failed)})" if failed else "")


def compare_page(summary: Json) -> str:
    """Return the page of a comparison, from its ``compare.json``; the same comparison gives the same page."""
    rows = summary["methods"]
    return render_page(
        "compare.html.j2",
        summary=summary,
        about=_about(summary),
        answer=answer_of_comparison(summary),
        command="mkdir again && cp comparison.toml again && edgefl compare --out again --resume",
        names=names([row["label"] for row in rows]),
        target=metric_text(metric_of(summary), summary["target_accuracy"]),
        metric=metric_of(summary).name,
        asked=_asked(summary),
        key_figures=key_table(summary),
        table=compare_table(summary),
        colours=[_colours(summary)[row["label"]] for row in best_first(summary)],
        runs=[(row["label"], row["seeds"]) for row in rows if row["seeds"]],
        over=accuracy_charts(summary),
        per_tier=tier_chart(summary),
        warning=mixed_accuracies(summary),
        uncounted=[(row["label"], names(row["uncounted_ops"])) for row in rows if row["uncounted_ops"]],
        tiers=setting_table(summary),
        tier_colours=[_colours(summary)[row["label"]] for row in rows],
        failures=[(row["label"], failure["seed"], failure["reason"]) for row in rows for failure in row["failures"]],
    )


def _asked(summary: Json) -> Mapping[str, Any] | None:
    """Return what the page says of a budget or of an accuracy that was asked for; None if neither was."""
    if (found := summary["under_budget"]) is None:
        return None
    colours = _colours(summary)
    return {
        "budget": budget_text(found["budget"]),
        "winner": winner(summary),
        "notes": budget_notes(summary).splitlines(),
        "table": budget_table(summary),
        "colours": [colours[row["label"]] for row in found["methods"]],
        "classes": class_table(summary),
        "charts": front_charts(summary, colours),
    }


def accuracy_charts(summary: Json) -> tuple[Chart, ...]:
    """Return accuracy over bytes, over MACs and over the simulated clock, a line per method and the range over seeds as its band."""
    curves = [(row["label"], point) for row in summary["methods"] for point in row["curve"]]
    unit, unit_s = clock_unit(max((point["simulated_s"] for _, point in curves), default=0.0))
    metric = metric_of(summary)
    title = metric.name.capitalize()
    kinds: tuple[tuple[str, Spec, Callable[[float], str]], ...] = (
        (f"{title} over bytes sent", number("bytes", "bytes sent, down and up", "~s", "B"), human_bytes),
        (f"{title} over computing", number("macs", "MACs of all clients", "~s"), human_count),
        (f"{title} over simulated time", number("simulated_s", f"simulated time ({unit})"), human_seconds),
    )
    rows = [
        {
            **point,
            "series": label,
            "simulated_s": point["simulated_s"] / unit_s,
            "told": f"{label}: {metric_text(metric, point['accuracy'])} after {human_bytes(point['bytes'])}, "
            f"{human_count(point['macs'])} MACs and {human_seconds(point['simulated_s'])}",
        }
        for label, point in curves
    ]
    return tuple(
        Chart(f"compare-{x['field']}", title, _cheapest(summary, x["field"], human), _over(summary, rows, x) if rows else None)
        for title, x, human in kinds
    )


def _over(summary: Json, rows: Sequence[Json], x: Spec) -> Spec:
    colours = _colours(summary)
    several = {row["label"] for row in summary["methods"] if len(row["seeds"]) > 1}
    y = metric_axis(metric_of(summary), zero=False)
    target = {"type": "rule", "color": "var(--soft)", "strokeDash": [6, 4]}
    banded = [row for row in rows if row["series"] in several]
    band = {"x": x, "y": {**y, "field": "lowest"}, "y2": "highest", "color": legend(colours)}
    return layered(
        300,
        layer(target, [{}], y={"datum": summary["target_accuracy"]}),
        *lines(rows, colours, x, y),
        layer({"type": "area", "opacity": 0.18}, banded, **band),
    )


def tier_chart(summary: Json) -> Chart:
    """Return the final accuracy of every tier, a bar per method; bars of tiers that no client trained are hatched."""
    metric, methods = metric_of(summary), summary["methods"]
    key, title = "compare-tiers", f"{metric.name.capitalize()} per tier"
    if not (labels := _tier_labels(summary)):
        return Chart(key, title, "No method has trained a tier.", None)
    rows = [
        {
            "tier": f"tier {label}",
            "series": row["label"],
            "accuracy": of["mean"],
            "untrained": label in row["untrained_tiers"],
            "told": f"{row['label']}, tier {label}: {metric_text(metric, of['mean'])}",
            **({} if of["sd"] is None else {"low": of["mean"] - of["sd"], "high": of["mean"] + of["sd"]}),
        }
        for row in methods
        for label, of in row["tier_accuracy"].items()
    ]
    colours, y = _colours(summary), metric_axis(metric)
    beside = {"field": "series", "type": "nominal", "scale": {"domain": list(colours)}}
    at = {"x": category("tier", None, [f"tier {label}" for label in labels]), "xOffset": beside}
    hatched, spread = [row for row in rows if row["untrained"]], [row for row in rows if "low" in row]
    spec = layered(
        260,
        layer("bar", rows, **at, y=y, fill=legend(colours, True), tooltip="told"),
        layer({"type": "bar", "fill": "url(#untrained)"}, hatched, **at, y=y, tooltip="told"),
        layer({"type": "rule", "color": "var(--soft)", "strokeWidth": 1.5}, spread, **at, y={**y, "field": "low"}, y2="high"),
    )
    return Chart(key, title, _weakest(methods, metric), spec)


def _colours(summary: Json) -> dict[str, str]:
    return {row["label"]: colour(number) for number, row in enumerate(summary["methods"])}


def _cheapest(summary: Json, key: str, human: Callable[[float], str]) -> str:
    """Return which method reached the target with least of ``key``, and which took most."""
    metric = metric_of(summary)
    spent = {row["label"]: row["to_target"][key] for row in summary["methods"] if row["to_target"]}
    if not spent:
        return f"No run came to an end, so there is no {metric.name} to draw."
    target = metric_text(metric, summary["target_accuracy"])
    least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    sentence = f"{least} reaches {target}, which all methods reach, with least: {human(spent[least])}"
    if spent[least] == spent[most]:
        return f"{sentence}."
    times = f", {spent[most] / spent[least]:.3g} times as much" if spent[least] else ""
    return f"{sentence}; {most} takes most: {human(spent[most])}{times}."


def _weakest(rows: Sequence[Mapping[str, Any]], metric: Metric) -> str:
    weakest = {
        row["label"]: min(trained, key=lambda pair: pair[0] if metric.better == "higher" else -pair[0])
        for row in rows
        if (trained := [(of["mean"], tier) for tier, of in row["tier_accuracy"].items() if tier not in row["untrained_tiers"]])
    }
    hatched = " Hatched: tiers that no client trained." if any(row["untrained_tiers"] for row in rows) else ""
    if not weakest:
        return f"No tier was trained in every run.{hatched}"
    ends = (min, max) if metric.better == "higher" else (max, min)
    worst, best = (end(weakest, key=weakest.__getitem__) for end in ends)
    sentence = f"The weakest is tier {weakest[worst][1]} of {worst}, {metric_text(metric, weakest[worst][0])}"
    return f"{sentence}; {best} has the best weakest tier, {metric_text(metric, weakest[best][0])}.{hatched}"


def _about(summary: Json) -> list[tuple[str, str]]:
    keys = (
        *("fleet", "model", "dataset", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size"),
        *("objective", "server_optimizer", "codec"),
    )
    tiers = summary["tiers"] if isinstance(summary["tiers"], str) else ", ".join(f"{tier:g}" for tier in summary["tiers"])
    trust = [(key, str(summary[key])) for key in ("adversary", "defence") if summary.get(key)]
    return [
        *facts(summary, keys),
        *trust,
        ("tiers", tiers),
        ("seeds", ", ".join(map(str, summary["seeds"]))),
        ("energy", NOT_VALIDATED),
    ]
