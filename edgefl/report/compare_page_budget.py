"""What a comparison shows of a budget: the ranking, device classes, and accuracy over each budget with its Pareto front."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgefl.report.chart import Chart, Json, Spec, clock_unit, layer, layered, lines, number, share
from edgefl.report.run_budget import AXES
from edgefl.report.tables import Column, PlainTable, Row
from edgefl.report.words import joined, tier_label
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds

_WORDS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "simulated_s": ("time", human_seconds),
    "client_bytes": ("bytes", human_bytes),
    "client_j": ("energy", human_joules),
}


_FAR = 5
"""A budget of more than so many times what was spent is not drawn: the curves would be a line at the left edge."""
_LIMIT_OF = dict(zip(AXES, ("s", "bytes", "j"), strict=True))


def budget_text(budget: Row) -> str:
    """Return a budget for people.

    >>> budget_text({"s": 600, "bytes": 100e6, "j": None}), budget_text({"s": None, "bytes": None, "j": None})
    ('10 min 00 s and 100 MB a client', 'no budget')
    """
    human = (human_seconds, human_bytes, human_joules)
    limits = [(write(budget[key]), key) for key, write in zip(("s", "bytes", "j"), human, strict=True) if budget[key] is not None]
    parts = [text if key == "s" else f"{text} a client" for text, key in limits]
    return joined(parts) if parts else "no budget"


def nothing_fits(row: Row) -> str:
    """Return what the first evaluated round of a method takes, as the reason for its row."""
    time, *used = (human(row["first"][axis]) for axis, (_, human) in _WORDS.items() if row["first"][axis] is not None)
    return f"the first evaluated round ends after {time}, {' and '.join(used)} a client"


def budget_table(summary: Row) -> PlainTable:
    """Return the methods under the budget, best first; ``summary`` is the content of ``compare.json``, with a budget or a target."""
    found = summary["under_budget"]
    limited = any(found["budget"].values())
    target = found["target_accuracy"]
    rows = found["methods"]
    group = "in budget" if limited else "at the end"
    columns = [
        Column("method", "", lambda row: str(row["label"]), numeric=False),
        Column("method", "rank", lambda row: _rank(row, rows)),
        Column(group, "accuracy", lambda row: mean_error(row["accuracy"])),
        Column(group, "round", _rounds),
        *([Column(group, "limit", _limit, numeric=False)] if limited else []),
        *(_until(target) if target is not None else ()),
        Column("device classes", "least", lambda row: _of_classes(row, min)),
        Column("device classes", "most", lambda row: _of_classes(row, max)),
        Column("device classes", "least trained", _least_trained),
        *(Column("on front", word, _on_front(axis), numeric=False) for axis, (word, _) in _WORDS.items() if _known(found, axis)),
    ]
    title = f"Within {budget_text(found['budget'])}" if limited else "At the end of the runs"
    return PlainTable.of(columns, rows, title=title, note=budget_notes(summary), stacked=True)


def class_table(summary: Row) -> PlainTable:
    """Return per method and device class its tiers, their accuracy within the budget, and the share of clients that had trained."""
    rows = [{"label": row["label"], **of} for row in summary["under_budget"]["methods"] for of in row["classes"]]
    columns = (
        Column("method", "", lambda row: str(row["label"]), numeric=False),
        Column("device class", "", lambda row: str(row["title"]), numeric=False),
        Column("clients", "", lambda row: human_count(row["clients"])),
        Column("tier", "", class_tiers),
        Column("accuracy of the tier", "", lambda row: mean_error(row["accuracy"])),
        Column("clients that trained", "", lambda row: mean_error(row["trained_share"])),
    )
    return PlainTable.of(columns, rows)


def class_tiers(row: Row) -> str:
    """Return the tier of a device class, or all of them where it is not the same with every seed's data.

    >>> class_tiers({"tiers": [0.25, 0.5, 0.25]}), class_tiers({"tiers": [1.0, 1.0]}), class_tiers({"tiers": [None]})
    ('0.25 / 0.5', '1', '–')
    """
    return " / ".join(MISSING if tier is None else tier_label(tier) for tier in dict.fromkeys(row["tiers"]))


def mean_error(found: Row | None, human: Callable[[float], str] = human_percent) -> str:
    """Return a mean with its standard error over seeds: ``91.2 ± 0.4 %``; that of a cost is in percent of its mean.

    >>> mean_error({"mean": 0.9124, "error": 0.004}), mean_error({"mean": 60.0, "error": 3.0}, human_seconds)
    ('91.2 ± 0.4 %', '1 min 00 s ± 5 %')
    """
    if found is None:
        return MISSING
    if found["error"] is None:
        return human(found["mean"])
    if human is human_percent:
        return f"{100 * found['mean']:.1f} ± {100 * found['error']:.1f} %"
    return f"{human(found['mean'])} ± {100 * found['error'] / found['mean'] if found['mean'] else 0:.2g} %"


def budget_notes(summary: Row) -> str:
    """Return what a reader of the ranking must know: ties, single seeds, early ends, what does not fit, targets that are not reached."""
    found = summary["under_budget"]
    rows, target = found["methods"], found["target_accuracy"]
    notes = []
    for rank in dict.fromkeys(row["rank"] for row in rows if row["rank"] is not None):
        tied = [row["label"] for row in rows if row["rank"] == rank]
        if len(tied) > 1:
            paired = max(len(row["seeds"]) for row in rows if row["rank"] == rank) > 1
            near = (
                f"each is within two standard errors of {tied[0]}, by paired differences" if paired else "their accuracy is equal"
            )
            notes.append(f"a tie: {joined(tied)}; {near}")
    if sum(row["rank"] is not None for row in rows) > 1 and max(len(row["seeds"]) for row in rows) < 2:
        notes.append("one seed gives no error, so the order is not decided; give more --seeds")
    for row in rows:
        if row["first"] and row["accuracy"] is None:
            fits = sum(round_ is not None for round_ in row["rounds"])
            some = f"fits in {fits} of {len(row['rounds'])} seeds" if fits else "nothing fits"
            notes.append(f"{row['label']}: {some}: {nothing_fits(row)}")
        elif row["ended_at"] is not None:
            notes.append(f"{row['label']}: ended early, at {human_percent(row['ended_at'])} of the budget")
        if target is not None and row["best"] and row["to_target"] is None:
            notes.append(f"{row['label']}: {human_percent(target)} {_seldom(row)}; best {mean_error(row['best'])}")
    return "\n".join(notes)


def winner(summary: Row) -> str:
    """Return the sentence that names the best method, or those that tie for it."""
    found = summary["under_budget"]
    best = [row for row in found["methods"] if row["rank"] == 1]
    if not best:
        return "No method has an evaluated round within the budget."
    where = f"within {budget_text(found['budget'])}" if any(found["budget"].values()) else "at the end of the runs"
    figure = mean_error(best[0]["accuracy"])
    if len(best) == 1:
        return f"{best[0]['label']} is the most accurate {where}: {figure}."
    return f"{joined(row['label'] for row in best)} tie for the best accuracy {where}: {figure} for {best[0]['label']}."


def front_charts(summary: Row, colours: Mapping[str, str]) -> tuple[Chart, ...]:
    """Return accuracy over time, bytes and energy: a line per method, the Pareto front as a step line, and the budget as a rule."""
    found = summary["under_budget"]
    limited = any(found["budget"].values())
    longest_s = max((point["simulated_s"] for row in found["methods"] for point in row["curve"]), default=0.0)
    limit_s = found["budget"]["s"] or 0.0
    unit, unit_s = clock_unit(max(longest_s, limit_s if limit_s <= _FAR * longest_s else 0.0))
    xs = {
        "simulated_s": ("Accuracy and time", number("simulated_s", f"simulated time ({unit})"), unit_s),
        "client_bytes": (
            "Accuracy and bytes of a client",
            number("client_bytes", "bytes of a client, down and up", "~s", "B"),
            1.0,
        ),
        "client_j": ("Accuracy and energy of a client", number("client_j", "joules of a client", "~s", "J"), 1.0),
    }
    return tuple(
        Chart(
            f"front-{axis}", title, front_text(found["fronts"][axis], axis, limited), _front_chart(found, axis, colours, x, per)
        )
        for axis, (title, x, per) in xs.items()
        if _known(found, axis)
    )


def _known(found: Json, axis: str) -> bool:
    """Whether it is known what every method used of ``axis``."""
    return all(point[axis] is not None for row in found["methods"] for point in row["curve"])


def front_text(front: Sequence[Json], axis: str, limited: bool = True) -> str:
    """Return which method is best up to which cost, within a budget if the comparison is ``limited``."""
    word, human = _WORDS[axis]
    if not front:
        return "No evaluated round is within the budget."
    # Methods that coincide, because every device fits the whole network, share their points.
    same = [list(points) for _, points in itertools.groupby(front, key=lambda point: (point["cost"], point["accuracy"]))]
    owned = [(joined(point["label"] for point in points), points[0]) for points in same]
    stretches = [next(points) for _, points in itertools.groupby(owned, key=lambda pair: pair[0])]
    best, top = owned[-1]
    one = len(same[-1]) == 1
    have, reached = "has" if one else "have", f"{human_percent(top['accuracy'])}, with {human(top['cost'])}"
    last = f"{best} {have} the best accuracy{' within the budget' if limited else ''}, {reached}."
    if len(stretches) == 1:
        return f"{best} {'is' if one else 'are'} best for every budget of {word}. {last}"
    if len(stretches) > 4:
        return f"{joined(dict.fromkeys(point['label'] for point in front))} are on the front of accuracy against {word}. {last}"
    steps = ", then ".join(f"{owner} from {human(point['cost'])}" for owner, point in stretches)
    return f"Best for a budget of {word}: {steps}. {last}"


def _front_chart(found: Json, axis: str, colours: Mapping[str, str], x: Spec, per: float) -> Spec:
    """Return accuracy over ``axis``, whose values are divided by ``per``."""
    human = _WORDS[axis][1]
    rows = [
        {
            axis: point[axis] / per,
            "accuracy": point["accuracy"],
            "series": row["label"],
            "told": f"{row['label']}, round {point['round']}: {human_percent(point['accuracy'])} with {human(point[axis])}",
        }
        for row in found["methods"]
        for point in row["curve"]
    ]
    steps = [{axis: point["cost"] / per, "accuracy": point["accuracy"]} for point in found["fronts"][axis]]
    limit, target = found["budget"][_LIMIT_OF[axis]], found["target_accuracy"]
    y = share("accuracy", "accuracy", zero=False)
    rule = {"type": "rule", "color": "var(--soft)", "strokeDash": [2, 3], "strokeWidth": 2}
    near = limit is not None and limit / per <= _FAR * max((row[axis] for row in rows), default=0.0)
    rules = [layer(rule, [{axis: limit / per}], x=x)] if near else []
    rules += [layer(rule, [{"accuracy": target}], y=y)] if target is not None else []
    front = {"type": "line", "interpolate": "step-after", "color": "var(--ink)", "strokeWidth": 2.5, "strokeDash": [5, 3]}
    looks = {label: colours[label] for label in colours if any(row["series"] == label for row in rows)}
    return layered(260, *rules, *lines(rows, looks, x, y), layer(front, steps, x=x, y=y))


def _rank(row: Row, rows: Sequence[Row]) -> str:
    if row["rank"] is None:
        return MISSING
    return f"{row['rank']} =" if sum(other["rank"] == row["rank"] for other in rows) > 1 else str(row["rank"])


def _seldom(row: Row) -> str:
    """Return in how many runs a method reached the target accuracy, if not in all."""
    return f"reached in {row['reached']} of {len(row['seeds'])} seeds" if row["reached"] else "not reached"


def _on_front(axis: str) -> Callable[[Row], str]:
    return lambda row: "yes" if axis in row["fronts"] else MISSING


def _rounds(row: Row) -> str:
    rounds = [round_ for round_ in row["rounds"] if round_ is not None]
    if not rounds:
        return "nothing fits" if row["rounds"] else MISSING
    low, high = min(rounds), max(rounds)
    return str(low) if low == high else f"{low}–{high}"


def _limit(row: Row) -> str:
    ended = [] if row["ended_at"] is None else [f"none ({human_percent(row['ended_at'])} used)"]
    return ", ".join([_WORDS[axis][0] for axis in row["limited_by"]] + ended) or MISSING


def _until(target: float) -> tuple[Column, ...]:
    group = f"until {human_percent(target)}"
    human: dict[str, Callable[[Any], str]] = {**{axis: write for axis, (_, write) in _WORDS.items()}, "macs": human_count}

    def text(key: str) -> Callable[[Row], str]:
        def written(row: Row) -> str:
            if row["to_target"] is None:
                return _seldom(row) if row["best"] and key == "simulated_s" else MISSING
            return mean_error(row["to_target"][key], human[key])

        return written

    heads = {"simulated_s": "time", "client_bytes": "bytes", "client_j": "energy", "macs": "MACs"}
    return tuple(Column(group, head, text(key)) for key, head in heads.items())


def _of_classes(row: Row, pick: Callable[..., Json]) -> str:
    found = [of["accuracy"] for of in row["classes"] if of["accuracy"]]
    return mean_error(pick(found, key=lambda accuracy: accuracy["mean"])) if found else MISSING


def _least_trained(row: Row) -> str:
    found = [of["trained_share"] for of in row["classes"]]
    return mean_error(min(found, key=lambda one: one["mean"])) if found else MISSING
