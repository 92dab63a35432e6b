"""What a comparison shows of its verdict: the ranking, what each device class gets, the pairs, and the best method of every budget."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from edgefl.records import ACCURACY
from edgefl.report.chart import Chart, Spec, clock_unit, layer, layered, lines, number
from edgefl.report.comparison_budget import BudgetSummary, ClassWithin, Estimate, Step, WithinBudget
from edgefl.report.metric import metric_axis, metric_text, spread_text
from edgefl.report.tables import Column, PlainTable, Row
from edgefl.report.verdict_words import (
    LIMITED,
    Judged,
    budget_text,
    difference_text,
    interval_text,
    limited,
    measure,
    p_text,
    seldom,
    test_text,
    verdict_notes,
)
from edgefl.report.words import joined, tier_label
from edgefl.util.units import MISSING, human_count, human_percent

_FAR = 5
"""A budget of more than so many times what was spent is not drawn: the curves would be a line at the left edge."""


def budget_table(summary: Judged) -> PlainTable:
    """Return the methods under the budget, best first."""
    found = summary.verdict
    target, rows = found.target_accuracy, found.methods
    group = ("in budget" if limited(summary) else "at the end") + error_label(rows)
    classes = f"device classes{error_label(rows)}"
    columns = [
        Column("method", "", lambda row: str(row.label), numeric=False),
        Column("method", "rank", lambda row: rank_text(row, rows)),
        *accuracy_columns(summary, group, found.rank_by),
        Column(group, "clients refused", lambda row: human_percent(row.refused)),
        Column(group, "round", _rounds),
        *([Column(group, "limit", _limit, numeric=False)] if limited(summary) else []),
        *(_until(target, error_label(rows)) if target is not None else ()),
        Column(classes, "least trained", _least_trained),
        *(
            Column("best for some", of.word, _on_front(axis), numeric=False)
            for axis, of in LIMITED.items()
            if _known(found, axis)
        ),
    ]
    title = f"Within {budget_text(found.budget)}" if limited(summary) else "At the end of the runs"
    return PlainTable.of(columns, rows, title=title, note="\n".join(verdict_notes(summary)), stacked=True)


def accuracy_columns(summary: Judged, group: str, rank_by: str) -> tuple[Column, ...]:
    """Return what methods are ranked by, and the other accuracies beside it; a metric that is no accuracy is of global models only."""
    if not (metric := summary.metric).share:
        return (Column(group, metric.name, lambda row: mean_error(row.accuracy, lambda value: metric_text(metric, value))),)
    heads = {"clients": "mean over clients", "worst": "worst class", "global": f"global {metric.name}"}
    order = sorted(heads, key=lambda key: key != rank_by)
    return tuple(Column(group, heads[key], _accuracy(f"{key}_accuracy")) for key in order)


def _accuracy(key: str) -> Callable[[WithinBudget], str]:
    return lambda row: mean_error(getattr(row, key))


def error_label(rows: Sequence[WithinBudget]) -> str:
    """Return what ± is in a group of columns: the standard error over seeds, where there are several.

    >>> error_label([WithinBudget(label="a", seeds=(0,))]), error_label([WithinBudget(label="a", seeds=(0, 1))])
    ('', ', ± SE')
    """
    return ", ± SE" if max((len(row.seeds) for row in rows), default=0) > 1 else ""


def class_table(summary: Judged) -> PlainTable:
    """Return per method and device class its tiers, the accuracy of what its clients run, and the share of them that had trained."""
    methods = summary.verdict.methods
    rows = [(row, of) for row in methods for of in row.classes]
    error = error_label(methods)
    columns = (
        Column("method", "", lambda pair: str(pair[0].label), numeric=False),
        Column("device class", "", lambda pair: str(pair[1].title), numeric=False),
        Column("clients", "", lambda pair: human_count(pair[1].clients)),
        Column("tier", "", lambda pair: class_tiers(pair[1])),
        Column(f"accuracy of what it gets{error}", "", lambda pair: mean_error(pair[1].accuracy)),
        Column(f"clients that trained{error}", "", lambda pair: mean_error(pair[1].trained_share)),
    )
    return PlainTable.of(columns, rows)


def assignment_table(summary: Judged) -> PlainTable:
    """Return the tier of each device class under every method; runs on other fleets may lack a class, or have other numbers of it."""
    methods = [row for row in summary.verdict.methods if row.classes]
    classes = [{of.device: of for of in row.classes} for row in methods]
    devices = dict.fromkeys(device for by_device in classes for device in by_device)
    lines_ = [[by_device.get(device) for by_device in classes] for device in devices]
    columns = (
        Column("device class", "", lambda line: str(_present(line)[0].title), numeric=False),
        Column("clients", "", lambda line: joined(dict.fromkeys(human_count(of.clients) for of in _present(line)))),
        *(Column(row.label, "", _tiers_of(place), numeric=False) for place, row in enumerate(methods)),
    )
    return PlainTable.of(columns, lines_)


def _present(line: Sequence[ClassWithin | None]) -> list[ClassWithin]:
    return [of for of in line if of is not None]


def _tiers_of(place: int) -> Callable[[Sequence[ClassWithin | None]], str]:
    return lambda line: MISSING if (of := line[place]) is None else class_tiers(of)


def pair_table(summary: Judged) -> PlainTable:
    """Return the difference of every two methods, with its test."""
    pairs = summary.verdict.pairs
    columns = (
        Column("better mean", "", lambda row: str(row.above), numeric=False),
        Column("than", "", lambda row: str(row.below), numeric=False),
        Column("difference", "", lambda row: difference_text(summary, row)),
        Column("95 % interval", "", lambda row: interval_text(summary, row)),
        Column("p", "", lambda row: p_text(row.p)),
        Column("p, corrected", "", lambda row: p_text(row.corrected_p)),
        Column("test", "", test_text, numeric=False),
        Column(
            "verdict",
            "",
            lambda row: "better" if row.decided else "tied" if row.p is not None else "one seed",
            numeric=False,
        ),
    )
    return PlainTable.of(columns, pairs)


def class_tiers(of: ClassWithin) -> str:
    """Return the tier of a device class, or all of them where it is not the same with every seed's data.

    >>> one = Estimate.of([0.5])
    >>> class_tiers(ClassWithin("a", "A", 2, (0.25, 0.5, 0.25), (("0.25",), ("0.5",), ("0.25",)), one, 0.0, one))
    '0.25 / 0.5'
    >>> class_tiers(ClassWithin("a", "A", 2, (None, None), (("0.25",), ()), one, 0.0, one))
    'refused, runs 0.25 / refused, no model'
    """
    return " / ".join(dict.fromkeys(map(_tier_of, of.tiers, of.runs)))


def _tier_of(tier: float | None, runs: Sequence[str]) -> str:
    if tier is None:
        return f"refused, runs {joined(runs)}" if runs else "refused, no model"
    label = tier_label(tier)
    return label if label in runs else f"{label}, not trained" + (f", runs {joined(runs)}" if runs else "")


def mean_error(found: Estimate | None, human: Callable[[float], str] = human_percent) -> str:
    """Return a mean with its standard error over seeds: ``91.2 ± 0.4 %``; that of a cost is in percent of its mean.

    >>> mean_error(Estimate(0.9124, 0.004, ())), mean_error(Estimate(60.0, 3.0, ()), human_count)
    ('91.2 ± 0.4 %', '60 ± 5 %')
    """
    if found is None or human is human_percent:
        return spread_text(ACCURACY, found)
    if found.error is None:
        return human(found.mean)
    return f"{human(found.mean)} ± {100 * found.error / found.mean if found.mean else 0:.2g} %"


def front_charts(summary: Judged, colours: Mapping[str, str]) -> tuple[Chart, ...]:
    """Return accuracy over time, bytes and energy: a step line per method, the best of them dashed, and the budget as a rule."""
    found = summary.verdict
    longest_s = max((step.cost for row in found.methods for step in _steps(row, "simulated_s")), default=0.0)
    limit_s = found.budget.s or 0.0
    unit, unit_s = clock_unit(max(longest_s, limit_s if limit_s <= _FAR * longest_s else 0.0))
    title = measure(summary).capitalize()
    xs = {
        "simulated_s": (f"{title} and time", number("simulated_s", f"simulated time ({unit})"), unit_s),
        "client_bytes": (
            f"{title} and bytes of a client",
            number("client_bytes", "bytes of a client, down and up", "~s", "B"),
            1.0,
        ),
        "client_j": (f"{title} and energy of a client", number("client_j", "joules of a client", "~s", "J"), 1.0),
    }
    return tuple(
        Chart(f"front-{axis}", title, front_text(summary, axis), _front_chart(summary, axis, colours, x, per))
        for axis, (title, x, per) in xs.items()
        if _known(found, axis)
    )


def _steps(row: WithinBudget, axis: str) -> Sequence[Step]:
    return (row.steps or {}).get(axis, ())


def _known(found: BudgetSummary, axis: str) -> bool:
    """Whether it is known what every method used of ``axis``."""
    return all(axis in row.steps for row in found.methods if row.steps is not None)


def front_text(summary: Judged, axis: str) -> str:
    """Return which method has the best mean up to which cost, within a budget if there is one."""
    _, word, human = LIMITED[axis]
    metric, front = summary.metric, summary.verdict.fronts[axis]
    if not front:
        return "No evaluated round is within the budget."
    # Methods that coincide, because every device fits the whole network, share their points.
    same = [list(points) for _, points in itertools.groupby(front, key=lambda point: (point.cost, point.accuracy))]
    owned = [(joined(point.label for point in points), points[0]) for points in same]
    stretches = [next(points) for _, points in itertools.groupby(owned, key=lambda pair: pair[0])]
    best, top = owned[-1]
    one = len(same[-1]) == 1
    last = f"With the whole budget, {best}" if limited(summary) else f"At the end, {best}"
    last += f" {'has' if one else 'have'} the best mean, {metric_text(metric, top.accuracy)}, from {human(top.cost)} on."
    if len(stretches) == 1:
        return f"{best} {'has' if one else 'have'} the best mean for every budget of {word}. {last}"
    if len(stretches) > 4:
        return (
            f"{joined(dict.fromkeys(point.label for point in front))} each have the best mean for some budget of {word}. {last}"
        )
    steps = ", then ".join(f"{owner} from {human(point.cost)}" for owner, point in stretches)
    return f"Best mean for a budget of {word}: {steps}. {last}"


def _front_chart(summary: Judged, axis: str, colours: Mapping[str, str], x: Spec, per: float) -> Spec:
    """Return accuracy over ``axis``, whose values are divided by ``per``."""
    human, metric, found = LIMITED[axis].human, summary.metric, summary.verdict
    rows: list[Row] = [
        {
            axis: step.cost / per,
            "accuracy": step.accuracy,
            "series": row.label,
            "told": f"{row.label}: {metric_text(metric, step.accuracy)} from {human(step.cost)} on",
        }
        for row in found.methods
        for step in _steps(row, axis)
    ]
    steps = [{axis: point.cost / per, "accuracy": point.accuracy} for point in found.fronts[axis]]
    limit, target = getattr(found.budget, LIMITED[axis].key), found.target_accuracy
    y = metric_axis(metric, zero=False)
    rule = {"type": "rule", "color": "var(--soft)", "strokeDash": [2, 3], "strokeWidth": 2}
    near = limit is not None and limit / per <= _FAR * max((row[axis] for row in rows), default=0.0)
    rules = [layer(rule, [{axis: limit / per}], x=x)] if near else []
    rules += [layer(rule, [{"accuracy": target}], y=y)] if target is not None else []
    front = {"type": "line", "interpolate": "step-after", "color": "var(--ink)", "strokeWidth": 2.5, "strokeDash": [5, 3]}
    looks = {label: colours[label] for label in colours if any(row["series"] == label for row in rows)}
    line, points = lines(rows, looks, x, y)
    stepped = {**line, "mark": {"type": "line", "interpolate": "step-after"}}
    return layered(260, *rules, stepped, points, layer(front, steps, x=x, y=y))


def rank_text(row: WithinBudget, rows: Sequence[WithinBudget]) -> str:
    """Return the rank of a method; a rank that several share ends with "="."""
    if row.rank is None:
        return MISSING
    return f"{row.rank} =" if sum(other.rank == row.rank for other in rows) > 1 else str(row.rank)


def _on_front(axis: str) -> Callable[[WithinBudget], str]:
    return lambda row: "yes" if axis in row.fronts else MISSING


def _rounds(row: WithinBudget) -> str:
    rounds = [round_ for round_ in row.rounds if round_ is not None]
    if not rounds:
        return "nothing fits" if row.rounds else MISSING
    low, high = min(rounds), max(rounds)
    return str(low) if low == high else f"{low}–{high}"


def _limit(row: WithinBudget) -> str:
    ended = [] if row.ended_at is None else [f"none ({human_percent(row.ended_at)} used)"]
    return ", ".join([LIMITED[axis].word for axis in row.limited_by] + ended) or MISSING


def _until(target: float, error: str) -> tuple[Column, ...]:
    group = f"until {human_percent(target)}{error}"
    costs: dict[str, tuple[str, Callable[[float | None], str]]] = {axis: (of.word, of.human) for axis, of in LIMITED.items()}
    costs["macs"] = "MACs", human_count

    def text(key: str) -> Callable[[WithinBudget], str]:
        def written(row: WithinBudget) -> str:
            if row.to_target is None:
                return seldom(row) if row.best and key == "simulated_s" else MISSING
            return mean_error(row.to_target[key], costs[key][1])

        return written

    return tuple(Column(group, word, text(key)) for key, (word, _) in costs.items())


def _least_trained(row: WithinBudget) -> str:
    found = [of.trained_share for of in row.classes]
    return mean_error(min(found, key=lambda one: one.mean)) if found else MISSING
