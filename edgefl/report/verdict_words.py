"""The verdict of a comparison in words: every sentence is made from ``verdict`` of ``compare.json``, and from nothing else."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from edgefl.records import Metric
from edgefl.report.clock_draws import SURE, clock_sentence
from edgefl.report.comparison_budget import BudgetSummary, ClassWithin, Estimate, WithinBudget
from edgefl.report.metric import spread_text
from edgefl.report.paired import LEVEL
from edgefl.report.ranks import Pair
from edgefl.report.run_budget import RunBudget
from edgefl.report.words import joined
from edgefl.util.units import MISSING, human_bytes, human_joules, human_percent, human_seconds


class Judged(Protocol):
    """Methods that were compared: their verdict, and what is under the names of accuracy."""

    @property
    def verdict(self) -> BudgetSummary: ...  # noqa: D102

    @property
    def metric(self) -> Metric: ...  # noqa: D102


class Limited(NamedTuple):
    """What a budget limits: its ``key`` in the budget, its name, and how its values are written."""

    key: str
    word: str
    human: Callable[[float | None], str]


LIMITED = {
    "simulated_s": Limited("s", "time", human_seconds),
    "client_bytes": Limited("bytes", "bytes", human_bytes),
    "client_j": Limited("j", "energy", human_joules),
}
_MEASURES = {"clients": "mean {} over clients", "worst": "{} of the worst class", "global": "global {}"}
OTHER_QUESTION = "--tier-assignment uniform --conditions ideal --deadline-s 1000h"
"""Options with which equal clients train equal tiers of every method."""


def measure(summary: Judged) -> str:
    """Return what methods are ranked by, such as "accuracy of the worst class"."""
    metric = summary.metric
    return _MEASURES[summary.verdict.rank_by].format(metric.name) if metric.share else metric.name


def budget_text(budget: RunBudget) -> str:
    """Return a budget for people.

    >>> budget_text(RunBudget(s=600, bytes=100e6)), budget_text(RunBudget())
    ('10 min 00 s and 100 MB a client', 'no budget')
    """
    limits = [(of.human(limit), of) for of in LIMITED.values() if (limit := getattr(budget, of.key)) is not None]
    parts = [text if of.key == "s" else f"{text} a client" for text, of in limits]
    return joined(parts) if parts else "no budget"


def limited(summary: Judged) -> bool:
    """Whether a comparison has a budget."""
    return any(summary.verdict.budget.limits)


def where(summary: Judged) -> str:
    """Return at which rounds methods are compared."""
    return f"within {budget_text(summary.verdict.budget)}" if limited(summary) else "at the end of the runs"


def standing(summary: Judged) -> list[WithinBudget]:
    """Return the methods that have a rank, best first."""
    return [row for row in summary.verdict.methods if row.rank is not None]


def leaders(summary: Judged) -> list[str]:
    """Return the methods of the first rank: one, or those that tie."""
    return [row.label for row in standing(summary) if row.rank == 1]


def one_seed(rows: Sequence[WithinBudget]) -> bool:
    """Whether several methods have one seed only, so that nothing is decided."""
    return len(rows) > 1 and max(len(row.seeds) for row in rows) < 2


def sure(summary: Judged) -> bool:
    """Whether one method is the best by the seeds and, if clocks matter, also by them."""
    clock, first = summary.verdict.clock, leaders(summary)
    by_clock = clock is None or (first and clock.first.get(first[0], 0.0) >= SURE)
    return len(first) == 1 and bool(by_clock)


def score_text(summary: Judged, found: Estimate | None) -> str:
    """Return what a method is ranked by with its standard error: ``91.2 ± 0.4 % (SE)``."""
    known = found is not None and found.error is not None
    return spread_text(summary.metric, found) + " (SE)" * known


def winner(summary: Judged) -> str:
    """Return the sentence that names the best method, or those that tie for it, with the figures of the test that decides."""
    rows = standing(summary)
    if not rows:
        return "No method has an evaluated round within the budget."
    best, first = rows[0], leaders(summary)
    figure = f"{measure(summary)} {score_text(summary, best.accuracy)}"
    if len(rows) == 1:
        return f"{best.label} is the only method with a result {where(summary)}: {figure}."
    if one_seed(rows):
        return f"{best.label} has the best {figure} {where(summary)}, with one seed, which decides nothing."
    if len(first) > 1:
        return f"{joined(first)} are tied {where(summary)}: {figure} for {best.label}; {_differs(summary, first[0], first[1])}."
    return f"{best.label} is the best {where(summary)}: {figure}; {_differs(summary, best.label, rows[1].label)}."


def _differs(summary: Judged, above: str, below: str) -> str:
    """Return the difference of two methods with its interval and p value."""
    pair = pair_of(summary, above, below)
    if pair is None:
        return f"{below} has no seed in common with it"
    if pair.error is None:
        return f"the difference to {below} is {difference_text(summary, pair)}, at one common seed"
    count = len(summary.verdict.pairs)
    p = p_text(pair.corrected_p)
    test = f"p {p if p.startswith('<') else f'= {p}'} by {test_text(pair)}" + (
        f", corrected for {count} pairs" if count > 1 else ""
    )
    interval = interval_text(summary, pair)
    return f"the difference to {below} is {difference_text(summary, pair)}, 95 % interval {interval}, {test}"


def pair_of(summary: Judged, above: str, below: str) -> Pair | None:
    """Return the pair of two methods, None if they have no seed in common."""
    return next((of for of in summary.verdict.pairs if (of.above, of.below) == (above, below)), None)


def test_text(pair: Pair) -> str:
    """Return the test of a pair: its name, and how many seeds it has; a dash with a single seed."""
    return MISSING if pair.p is None else f"{pair.test} of {pair.seeds} seeds"


def p_text(p: float | None) -> str:
    """Return a p value.

    >>> p_text(0.0321), p_text(0.00004), p_text(1.0), p_text(None)
    ('0.032', '< 0.001', '1.000', '–')
    """
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def difference_text(summary: Judged, pair: Pair) -> str:
    """Return the mean difference of a pair, in points of accuracy."""
    return f"{100 * pair.mean:.1f} points" if summary.metric.share else f"{pair.mean:.4g}"


def interval_text(summary: Judged, pair: Pair) -> str:
    """Return the interval of the difference of a pair."""
    if pair.low is None or pair.high is None:
        return MISSING
    unit = 100 if summary.metric.share else 1
    form = "{:+.1f} to {:+.1f}" if unit == 100 else "{:+.3g} to {:+.3g}"
    return form.format(unit * pair.low, unit * pair.high).replace("-", "−")


def verdict_notes(summary: Judged) -> list[str]:
    """Return what a reader of the verdict must know: clocks, refused clients, single seeds, ends, needs, and targets not reached."""
    found = summary.verdict
    rows, target = found.methods, found.target_accuracy
    notes = [clock_sentence(found.clock), *(served_sentence(row) for row in standing(summary) if row.refused)]
    if one_seed(standing(summary)):
        notes.append("one seed gives no error, so the order is not decided; give more --seeds")
    for row in rows:
        if row.first and row.accuracy is None:
            fits = sum(round_ is not None for round_ in row.rounds)
            some = f"fits in {fits} of {len(row.rounds)} seeds" if fits else "nothing fits"
            notes.append(f"{row.label}: {some}: {nothing_fits(row)}")
        elif row.ended_at is not None:
            notes.append(f"{row.label}: ended early, at {human_percent(row.ended_at)} of the budget")
        if target is not None and row.best and row.to_target is None:
            notes.append(f"{row.label}: {human_percent(target)} {seldom(row)}; best {score_text(summary, row.best)}")
    return [note for note in notes if note]


def served_sentence(row: WithinBudget) -> str:
    """Return which share of clients a method refuses, and what these have instead."""
    refused = [of for of in row.classes if of.refused]
    instead = {of.title: _run_instead(of) for of in refused}
    using = [f"{title} runs tier {joined(labels)}" for title, labels in instead.items() if labels]
    using += [f"{title} has no model and counts as 0" for title, labels in instead.items() if not labels]
    return f"{row.label}: {human_percent(row.refused)} of clients are refused; {joined(using)}"


def _run_instead(of: ClassWithin) -> list[str]:
    """Return the tiers that refused clients of a class run, in the runs that refuse it; where clients draw their tiers, in all runs."""
    without = [runs for tier, runs in zip(of.tiers, of.runs, strict=True) if tier is None] or of.runs
    return list(dict.fromkeys(label for runs in without for label in runs))


def nothing_fits(row: WithinBudget) -> str:
    """Return what the first evaluated round of a method takes, as the reason for its row."""
    first = row.first or {}
    time, *used = (of.human(first[axis]) for axis, of in LIMITED.items() if first[axis] is not None)
    return f"the first evaluated round ends after {time}, {' and '.join(used)} a client"


def seldom(row: WithinBudget) -> str:
    """Return in how many runs a method reached the target accuracy, if not in all."""
    return f"reached in {row.reached} of {len(row.seeds)} seeds" if row.reached else "not reached"


def rule_text(summary: Judged) -> str:
    """Return the rule of the verdict: which rounds count, what is ranked, and when methods tie."""
    counts = "its last evaluated round within the whole budget" if limited(summary) else "its last round"
    rule = f"Of each run counts {counts}; nothing is interpolated. Methods are ranked by the {measure(summary)}"
    if summary.metric.share and summary.verdict.rank_by != "global":
        rule += (
            ": each client counts with the model of the tier that it gets. A refused client counts with the smallest trained tier that it "
            "can run, or as 0 without one"
        )
    level = f"{100 * LEVEL:g} %"
    return (
        f"{rule}. Methods are tied unless p, by paired differences and after Holm's correction for all pairs, is below {level}."
    )
