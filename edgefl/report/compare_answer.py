"""The three sentences of a comparison."""

from collections.abc import Sequence

from edgefl.records import Metric
from edgefl.report.answer import DIVERGED, LOWER_RATE, RISING, Answer, diverged_share, late_gain, many_diverged, points
from edgefl.report.clock_draws import SURE
from edgefl.report.comparison import ComparisonSummary, MethodResult, Spread
from edgefl.report.comparison_budget import BudgetSummary, Estimate
from edgefl.report.metric import metric_text
from edgefl.report.verdict_words import budget_text, leaders, limited, measure, nothing_fits, one_seed, standing, sure
from edgefl.report.words import joined
from edgefl.util.units import human_bytes, human_joules, human_percent, human_seconds

COSTS = {"bytes": ("bytes", human_bytes), "simulated_s": ("time", human_seconds), "energy_j": ("energy", human_joules)}
"""What a method spends, and its word."""


def best_first(summary: ComparisonSummary) -> list[MethodResult]:
    """Return the methods of a comparison in the order of the verdict, those without a finished run last."""
    order = [row.label for row in summary.verdict.methods]
    return sorted(summary.methods, key=lambda row: order.index(row.label))


def known_costs(summary: ComparisonSummary) -> list[str]:
    """Return the costs that are known of every method with a finished run."""
    return [key for key in COSTS if all(getattr(row, key) for row in summary.methods if row.score)]


def answer_of_comparison(summary: ComparisonSummary) -> Answer:
    """Return the answer of a comparison: under its budget, if it has one, else at the end of its runs."""
    verdict, metric, rows = summary.verdict, summary.metric, summary.verdict.methods
    within, target = limited(summary), verdict.target_accuracy
    given = f"within {budget_text(verdict.budget)}" if within else "given the same clients and rounds"
    reach = "" if target is None else f", and which reaches {human_percent(target)}"
    labels = joined(row.label for row in summary.methods)
    asked = f"Which of {labels} has the best {measure(summary)} on {summary.dataset} {given}{reach}?"
    if not any(row.seeds for row in rows):
        return Answer(asked, "No run finished.", "Read the reasons below.")
    if not standing(summary):
        needs = "; ".join(f"{row.label}: {nothing_fits(row)}" for row in rows if row.first)
        return Answer(asked, "No method has an evaluated round within the budget.", f"Give a larger budget: {needs}.")
    outside = [row.label for row in rows if row.seeds and not row.accuracy]
    found = [_found(summary, metric), *([f"the budget is too small for {joined(outside)}"] if outside else [])]
    if lost := [f"{diverged_share(row.statuses)} of {row.label}" for row in summary.methods if many_diverged(row.statuses)]:
        what = f"of sessions, {joined(lost)} {DIVERGED}"
        return Answer(asked, f"{'; '.join(found)}.", f"{LOWER_RATE}, and compare again: {what}.")
    if target is not None:
        reached = _reached(verdict)
        found.append(
            f"{human_percent(target)} was reached {'within it ' if within else ''}by {joined(reached) if reached else 'none'}"
        )
        if not reached:
            more = "a larger budget" if within and any(row.reached for row in rows) else "more --rounds"
            return Answer(
                asked, f"{'; '.join(found)}.", f"Give {more}, or a lower --target-accuracy than {human_percent(target)}."
            )
    return Answer(asked, f"{'; '.join(found)}.", _to_do(summary, metric, within))


def _found(summary: ComparisonSummary, metric: Metric) -> str:
    """Return who is the best, and what every method has."""
    rows, first = standing(summary), leaders(summary)
    told = ", ".join(f"{row.label} {metric_text(metric, _mean(row.accuracy))}" for row in rows)
    refused = [f"{row.label} refuses {human_percent(row.refused)} of clients" for row in rows if row.refused]
    if len(rows) > 1 and one_seed(rows):
        best = f"{rows[0].label} has the best value of one seed"
    else:
        best = f"Seeds cannot tell {joined(first)} apart" if len(first) > 1 else f"{first[0]} is the best"
    return "; ".join([f"{best}: {told}", *refused])


def _to_do(summary: ComparisonSummary, metric: Metric, within: bool) -> str:
    """Return which method to take, and what would make the choice sure."""
    rows, first = standing(summary), leaders(summary)
    if not within:
        return _advice(summary, first, metric) + _unsure(summary) + _rising(best_first(summary), metric)
    if len(first) == 1 or len(rows) == 1:
        return f"Take {first[0]}.{_unsure(summary)}"
    return f"Take any of {joined(first)}, as far as these seeds tell.{_unsure(summary)}"


def _reached(verdict: BudgetSummary) -> list[str]:
    """Return the methods that reached the target accuracy within the budget, and in how many seeds if some did not."""
    budget, found = verdict.budget, list[str]()
    for row in verdict.methods:
        if row.to_target is not None:
            most = {key: None if cost is None else max(cost.values) for key, cost in row.to_target.items()}
            found += [] if budget.exceeded_by(most) else [row.label]
        elif row.reached and not budget.limits:
            found.append(f"{row.label} in {row.reached} of {len(row.seeds)} seeds")
    return found


def _unsure(summary: ComparisonSummary) -> str:
    """Return what does not decide which method is the best, and what would: seeds, or a measurement; nothing if all does."""
    rows, first, clock = standing(summary), leaders(summary), summary.verdict.clock
    if one_seed(rows):
        return " One seed does not decide it: repeat with --seeds 0,1,2."
    seeds = " More --seeds would tell the best apart." if len(first) > 1 else ""
    if sure(summary) or clock is None or clock.decides is None or max(clock.first.values(), default=0.0) >= SURE:
        return seeds
    device = clock.titles[clock.decides]
    share = human_percent(clock.first.get(rows[0].label, 0.0))
    return f"{seeds} The clock may be wrong, and {rows[0].label} is first in {share} of draws only: measure {device}."


def _rising(rows: Sequence[MethodResult], metric: Metric) -> str:
    """Return the method whose accuracy still rises most at the end, as the order of the methods may change; nothing if none does."""
    curves = {row.label: [point.accuracy for point in row.curve] for row in rows if len(row.curve) > 1}
    if not metric.share or not curves:
        return ""
    (gain, when), label = max((late_gain(reached), label) for label, reached in curves.items())
    return f" Train longer before you choose: {label} still rose by {points(gain)} in the last {when}." if gain > RISING else ""


def _advice(summary: ComparisonSummary, first: Sequence[str], metric: Metric) -> str:
    """Return which method to take, and what a cheaper one gives up."""
    done = [row for row in best_first(summary) if row.score]
    among = [row for row in done if row.label in first]
    best = min(among, key=lambda row: _mean(row.bytes))
    known = known_costs(summary)
    most = {key: _mean(getattr(best, key)) for key in known}
    cheaper = [
        (1 - cost / most[key], COSTS[key][0], row)
        for row in done
        for key in known
        if row is not best and most[key] and (cost := _mean(getattr(row, key))) < most[key]
    ]
    if not cheaper:
        less = "fewer bytes, less time or less energy" if "energy_j" in known else "fewer bytes or less time"
        return f"Take {best.label}: no other method takes {less}."
    saved, word, row = max(cheaper, key=lambda found: found[0])
    return f"Take {best.label}, or {row.label} to save {word}: it takes {human_percent(saved)} less{_gap(best, row, metric)}."


def _mean(found: Spread | Estimate | None) -> float:
    """Return the mean of a figure that every method with a finished run, or with a rank, has."""
    assert found is not None
    return found.mean


def _gap(best: MethodResult, other: MethodResult, metric: Metric) -> str:
    """Return what the other method gives up against the best one; among methods that seeds cannot tell apart, its mean may be better."""
    worse = (_mean(best.score) - _mean(other.score)) * (1 if metric.better == "higher" else -1)
    size = points(abs(worse)) if metric.share else metric_text(metric, abs(worse))
    if worse > 0:
        return f" for {size} of {metric.name}"
    return f", and its {metric.name} is {size} better" if worse < 0 else f" at the same {metric.name}"
