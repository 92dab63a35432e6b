"""The three sentences of a comparison, and its ranking by accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.records import Metric
from edgefl.report.answer import Answer, points
from edgefl.report.comparison_budget import ranked
from edgefl.report.metric import metric_of, metric_text
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
    """Return the answer of a comparison."""
    labels = [row["label"] for row in summary["methods"]]
    metric, ranks, rows = metric_of(summary), ranks_of(summary), best_first(summary)
    budget = summary.get("under_budget") or {}
    target = budget.get("target_accuracy")
    reach = "" if target is None else f", and which reaches {human_percent(target)}"
    asked = (
        f"Which of {joined(labels)} has the best {metric.name} on {summary['dataset']}, given the same clients and rounds{reach}?"
    )
    if not ranks:
        return Answer(asked, "No run finished.", "Read the reasons below.")
    leaders = [label for label, rank in ranks.items() if rank == 1]
    told = [f"{row['label']} {metric_text(metric, row['accuracy']['mean'])}" for row in rows if row["accuracy"]]
    best = f"Seeds cannot tell {joined(leaders)} apart" if len(leaders) > 1 else f"{leaders[0]} is the best"
    found = f"{best}: {', '.join(told)}"
    advice = _advice(summary, rows, leaders, metric)
    if target is not None:
        reached = [row["label"] for row in budget["methods"] if row["to_target"] is not None]
        found += f"; {human_percent(target)} was reached by {joined(reached) if reached else 'none'}"
        if not reached:
            advice = f"Give more --rounds, or a lower --target-accuracy than {human_percent(target)}."
    return Answer(asked, f"{found}.", advice)


def _advice(summary: Json, rows: Sequence[Json], leaders: Sequence[str], metric: Metric) -> str:
    """Return which method to take, and what a cheaper one gives up."""
    done = [row for row in rows if row["accuracy"]]
    if max(len(row["seeds"]) for row in done) < 2 and len(done) > 1:
        unsure = " One seed does not decide it: repeat with --seeds 0,1,2."
    else:
        unsure = " More --seeds would tell the best apart." if len(leaders) > 1 else ""
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
        return f"Take {best['label']}: no other method takes {less}.{unsure}"
    saved, word, row = max(cheaper, key=lambda found: found[0])
    gap = abs(best["accuracy"]["mean"] - row["accuracy"]["mean"])
    loss = points(gap) if metric.share else metric_text(metric, gap)
    instead = f"{row['label']} to save {word}: it takes {human_percent(saved)} less for {loss} of {metric.name}"
    return f"Take {best['label']}, or {instead}.{unsure}"
