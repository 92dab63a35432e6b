"""The three sentences of a comparison, and its ranking by accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.records import Metric
from edgefl.report.answer import DIVERGED, LOWER_RATE, RISING, Answer, diverged_share, late_gain, many_diverged, points
from edgefl.report.compare_page_budget import budget_text, nothing_fits
from edgefl.report.comparison_budget import ranked
from edgefl.report.metric import metric_of, metric_text
from edgefl.report.run_budget import RunBudget
from edgefl.report.words import joined
from edgefl.util.units import human_bytes, human_joules, human_percent, human_seconds

Json = Mapping[str, Any]

COSTS = {"bytes": ("bytes", human_bytes), "simulated_s": ("time", human_seconds), "energy_j": ("energy", human_joules)}
"""What a method spends, and its word."""


def ranks_of(summary: Json) -> dict[str, int]:
    """Return label → rank by final accuracy, best first; methods that seeds cannot tell apart share a rank. Failed ones have none.

    Accuracies of global models and means over clients are ranked together, although the page warns of it.
    """
    sign = 1 if metric_of(summary).better == "higher" else -1
    values = {
        row["label"]: {seed: sign * value for seed, value in zip(row["seeds"], row["accuracy"]["values"], strict=True)}
        for row in summary["methods"]
        if row["accuracy"]
    }
    return ranked(values)


def best_first(summary: Json) -> list[Json]:
    """Return the methods of a comparison, the most accurate first and those without a finished run last."""
    order = list(ranks_of(summary))
    return sorted(summary["methods"], key=lambda row: order.index(row["label"]) if row["label"] in order else len(order))


def known_costs(summary: Json) -> list[str]:
    """Return the costs that are known of every method with a finished run."""
    return [key for key in COSTS if all(row[key] for row in summary["methods"] if row["accuracy"])]


def fronts_of(summary: Json) -> dict[str, tuple[str, ...]]:
    """Return label → the costs against which no other method is at least as accurate for less."""
    rows = [row for row in summary["methods"] if row["accuracy"]]
    sign = 1 if metric_of(summary).better == "higher" else -1

    def beaten(row: Json, key: str) -> bool:
        own = sign * row["accuracy"]["mean"], -row[key]["mean"]
        others = ((sign * other["accuracy"]["mean"], -other[key]["mean"]) for other in rows)
        return any(pair != own and pair[0] >= own[0] and pair[1] >= own[1] for pair in others)

    known = known_costs(summary)
    return {row["label"]: tuple(key for key in known if not beaten(row, key)) for row in rows}


def answer_of_comparison(summary: Json) -> Answer:
    """Return the answer of a comparison: under its budget, if it has one, else at the end of its runs."""
    under = summary.get("under_budget") or {}
    limited, target = any(under.get("budget", {}).values()), under.get("target_accuracy")
    metric, rows = metric_of(summary), under["methods"] if limited else best_first(summary)
    given = f"within {budget_text(under['budget'])}" if limited else "given the same clients and rounds"
    reach = "" if target is None else f", and which reaches {human_percent(target)}"
    labels = joined(row["label"] for row in summary["methods"])
    asked = f"Which of {labels} has the best {metric.name} on {summary['dataset']} {given}{reach}?"
    ranks = {row["label"]: row["rank"] for row in rows if row["rank"]} if limited else ranks_of(summary)
    if not any(row["seeds"] for row in rows):
        return Answer(asked, "No run finished.", "Read the reasons below.")
    if not ranks:
        needs = "; ".join(f"{row['label']}: {nothing_fits(row)}" for row in rows if row["first"])
        return Answer(asked, "No method has an evaluated round within the budget.", f"Give a larger budget: {needs}.")
    leaders = [label for label, rank in ranks.items() if rank == 1]
    told = [f"{row['label']} {metric_text(metric, row['accuracy']['mean'])}" for row in rows if row["accuracy"]]
    best = f"Seeds cannot tell {joined(leaders)} apart" if len(leaders) > 1 else f"{leaders[0]} is the best"
    outside = [row["label"] for row in rows if row["seeds"] and not row["accuracy"]]
    found = [f"{best}: {', '.join(told)}", *([f"the budget is too small for {joined(outside)}"] if outside else [])]
    if lost := [
        f"{diverged_share(row['statuses'])} of {row['label']}" for row in summary["methods"] if many_diverged(row["statuses"])
    ]:
        what = f"of sessions, {joined(lost)} {DIVERGED}"
        return Answer(asked, f"{'; '.join(found)}.", f"{LOWER_RATE}, and compare again: {what}.")
    if target is not None:
        reached = _reached(under)
        found.append(
            f"{human_percent(target)} was reached {'within it ' if limited else ''}by {joined(reached) if reached else 'none'}"
        )
        if not reached:
            more = "a larger budget" if limited and any(row["reached"] for row in rows) else "more --rounds"
            return Answer(
                asked, f"{'; '.join(found)}.", f"Give {more}, or a lower --target-accuracy than {human_percent(target)}."
            )
    advice = f"Take {joined(leaders)}." if limited else _advice(summary, rows, leaders, metric)
    rising = "" if limited else _rising(rows, metric)
    return Answer(asked, f"{'; '.join(found)}.", advice + _unsure(rows, leaders) + rising)


def _reached(under: Json) -> list[str]:
    """Return the methods that reached the target accuracy within the budget, and in how many seeds if some did not."""
    budget, found = RunBudget(**under["budget"]), []
    for row in under["methods"]:
        if row["to_target"] is not None:
            most = {key: None if cost is None else max(cost["values"]) for key, cost in row["to_target"].items()}
            found += [] if budget.exceeded_by(most) else [row["label"]]
        elif row["reached"] and not budget.limits:
            found.append(f"{row['label']} in {row['reached']} of {len(row['seeds'])} seeds")
    return found


def _unsure(rows: Sequence[Json], leaders: Sequence[str]) -> str:
    """Return that seeds do not decide which method is best, or nothing."""
    done = [row for row in rows if row["accuracy"]]
    if max(len(row["seeds"]) for row in done) < 2 and len(done) > 1:
        return " One seed does not decide it: repeat with --seeds 0,1,2."
    return " More --seeds would tell the best apart." if len(leaders) > 1 else ""


def _rising(rows: Sequence[Json], metric: Metric) -> str:
    """Return the method whose accuracy still rises most at the end, as the order of the methods may change; nothing if none does."""
    curves = {row["label"]: [point["accuracy"] for point in row["curve"]] for row in rows if len(row["curve"]) > 1}
    if not metric.share or not curves:
        return ""
    (gain, when), label = max((late_gain(reached), label) for label, reached in curves.items())
    return f" Train longer before you choose: {label} still rose by {points(gain)} in the last {when}." if gain > RISING else ""


def _advice(summary: Json, rows: Sequence[Json], leaders: Sequence[str], metric: Metric) -> str:
    """Return which method to take, and what a cheaper one gives up."""
    done = [row for row in rows if row["accuracy"]]
    among = [row for row in done if row["label"] in leaders]
    best = min(among, key=lambda row: row["bytes"]["mean"])
    known = known_costs(summary)
    cheaper = [
        (1 - row[key]["mean"] / best[key]["mean"], COSTS[key][0], row)
        for row in done
        for key in known
        if row is not best and best[key]["mean"] and row[key]["mean"] < best[key]["mean"]
    ]
    if not cheaper:
        less = "fewer bytes, less time or less energy" if "energy_j" in known else "fewer bytes or less time"
        return f"Take {best['label']}: no other method takes {less}."
    saved, word, row = max(cheaper, key=lambda found: found[0])
    return (
        f"Take {best['label']}, or {row['label']} to save {word}: it takes {human_percent(saved)} less{_gap(best, row, metric)}."
    )


def _gap(best: Json, other: Json, metric: Metric) -> str:
    """Return what the other method gives up against the best one; among methods that seeds cannot tell apart, its mean may be better."""
    worse = (best["accuracy"]["mean"] - other["accuracy"]["mean"]) * (1 if metric.better == "higher" else -1)
    size = points(abs(worse)) if metric.share else metric_text(metric, abs(worse))
    if worse > 0:
        return f" for {size} of {metric.name}"
    return f", and its {metric.name} is {size} better" if worse < 0 else f" at the same {metric.name}"
