"""What deadlines, tiers and over-selection do to the time of rounds and to who takes part: a table, and a self-contained HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from edgefl.report.answer import Answer
from edgefl.report.chart import Chart, Json, Spec, clock_unit, layer, layered, legend, number, share
from edgefl.report.clock_draws import SURE, clock_sentence
from edgefl.report.learned import Shown, advice_by_accuracy, assumptions, learned_chart, learned_columns, shown
from edgefl.report.month_table import money_sentence, money_table, month_table, reach_table, span_sentence
from edgefl.report.page import facts, render_page
from edgefl.report.policies import PolicyOutcome, WhatIf
from edgefl.report.policy_advice import deadline_sentence, excluded_sentence, for_speed, left_out, speed_sentence
from edgefl.report.required import able_rows, missing_column, required_sentence, taken
from edgefl.report.run_charts import margin_facts
from edgefl.report.run_tables import inclusion_columns
from edgefl.report.tables import Column, PlainTable, shaded, text, under
from edgefl.report.words import NOT_VALIDATED, energy_trust, fleet_name, joined, tier_label
from edgefl.util.units import MISSING, human_count, human_percent, human_range, human_seconds
from edgefl.version import __version__


def whatif_table(result: WhatIf) -> PlainTable:
    """Return every figure of every policy, in the order asked for."""
    columns = (
        text("policy", "", "numbered"),
        Column("policy", "tiers", lambda row: ", ".join(map(tier_label, row.policy.tiers)) or MISSING, numeric=False),
        *_of("rounds", deadline_s="deadline", round_s="median"),
        Column("rounds", "within", lambda row: _within(result.clock_error, row.policy)),
        *_of("rounds", _tenths, rounds_per_hour="an hour"),
        *_of("selected", lambda value: f"{value:g}", over_selection="per wanted answer"),
        *_of("sessions trained", inclusion="of all", weakest_inclusion="of the weakest"),
        Column("weakest", "", lambda row: _weakest(result, row.policy), numeric=False),
        *_of("wasted", wasted_share="of time"),
        *_of(f"energy, {_energy(result.rows).partition(',')[0]}", energy_j="per update"),
        *_of("bytes", update_bytes="per update"),
        *_noise(result),
        *learned_columns(result),
        *missing_column(result),
    )
    best = front(result.rows)
    return PlainTable.of(
        columns,
        shown(result),
        (n in best for n in range(len(result.rows))),
        note=notes(result),
    )


def compact_whatif(result: WhatIf) -> PlainTable:
    """Return the table for a terminal: a line per policy, with a star if no other policy beats it."""
    best = front(result.rows)
    starred = [replace(row, star="*" if row.number - 1 in best else "") for row in shown(result)]
    columns = (
        Column("", "", lambda row: row.star, numeric=False, widest=1),
        text("policy", "", "label"),
        *_of("round", round_s=""),
        *_of("trained", inclusion=""),
        *_of("weakest", weakest_inclusion=""),
        *_of("wasted", wasted_share=""),
        *_of("per update", energy_j=""),
        *_of("an hour", _tenths, rounds_per_hour=""),
        Column("weakest is", "", lambda row: _weakest(result, row.policy), numeric=False),
        *_noise(result),
        *learned_columns(result)[:1],
        *missing_column(result),
    )
    note = f"* {footnote(result)}" if best else footnote(result)
    trust = f"Seconds of training are right within a factor of {result.clock_error:.3g}; energy is {_energy(result.rows)}."
    others = [of(result) for of in _TOLD]
    told = [note, *others, trust, fastest(result)]
    return PlainTable.of(columns, starred, note=" ".join(filter(None, told)))


def notes(result: WhatIf) -> str:
    """Return what a table of policies does not show by itself."""
    told = (of(result) for of in (footnote, *_TOLD))
    return " ".join(filter(None, told))


_TOLD = required_sentence, money_sentence, span_sentence, deadline_sentence, left_out


def fastest(result: WhatIf) -> str:
    """Return in how many draws of the clock's error each policy is the fastest; nothing without draws."""
    what = "fastest" if result.surrogate is None else "first at the target"
    return clock_sentence(result.clock, "“”").replace(" first in ", f" {what} in ")


def _of(group: str, human: Callable[[Any], str] | None = None, **heads: str) -> tuple[Column, ...]:
    """Return columns of figures of a policy."""
    return under(group, human, "policy", **heads)


def _energy(rows: Sequence[PolicyOutcome]) -> str:
    """Return how far the energy per update can be trusted, or that it is unknown under every policy with an update."""
    used = [row.energy_j for row in rows if row.inclusion]
    return energy_trust(None) if used and not any(used) else NOT_VALIDATED


def _noise(result: WhatIf) -> tuple[Column, ...]:
    """Return the columns of noise and of the ε that it spends, if a policy has some."""
    if not any(row.epsilon is not None for row in result.rows):
        return ()
    plain = "{:.4g}".format
    return (*_of("ε", plain, epsilon="of all rounds"), *_of("noise", plain, noise_multiplier="over the clip"))


def front(rows: Sequence[PolicyOutcome]) -> list[int]:
    """Return the numbers of the policies that no other beats in both time and inclusion, from the shortest round on.

    Policies that are equal in both do not beat each other. A policy under which no client trains is left out.
    """
    points = [(row.round_s, row.inclusion, n) for n, row in enumerate(rows) if row.round_s is not None and row.inclusion]
    found: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or point[1] > found[-1][1] or point[:2] == found[-1][:2]:
            found.append(point)
    return [n for *_, n in found]


def footnote(result: WhatIf) -> str:
    """Return the policies that no other beats; those that are equal in both time and inclusion are named together."""
    equal: dict[tuple[float | None, float], list[str]] = {}
    for row in (result.rows[n] for n in front(result.rows)):
        equal.setdefault((row.round_s, row.inclusion), []).append(f"“{row.label}”")
    labels = "; ".join(joined(names) + " (equal in both)" * (len(names) > 1) for names in equal.values())
    return (
        f"The best compromises between short rounds and many trained sessions: {labels}."
        if labels
        else "No client trained under any policy."
    )


def _tenths(value: float | None) -> str:
    return human_count(None if value is None else round(value, 1))


def _weakest(result: WhatIf, row: PolicyOutcome) -> str:
    return MISSING if row.weakest is None else result.titles.get(row.weakest, row.weakest)


_SHOWN = {
    *("profile", "surrogate", "edgefl_version", "format", "clock_error", "clock_margin", "clock", "fleet_title", "required"),
    *("rounds_per_day", "target_updates"),
}
_NARROW_PX, _HEIGHT_PX = 230, 360
"""The plot on a phone."""


def render(result: WhatIf) -> str:
    """Return the page of a what-if; the same result gives the same page."""
    return render_page(
        "whatif.html.j2",
        profile=_fleet(result),
        about=[
            *facts(result, [key for key, of in vars(result).items() if key not in _SHOWN and isinstance(of, str | int | float)]),
            *margin_facts(result.clock_margin),
        ],
        answer=answer_of_whatif(result),
        chart=whatif_chart(result),
        learned=learned_chart(result),
        assumes=assumptions(result),
        table=whatif_table(result),
        inclusion=inclusion_table(result),
        month=month_table(result),
        money=money_table(result),
        reach=reach_table(result),
        calendar=result.calendar,
        note=" ".join(filter(None, [notes(result), fastest(result)])),
        edgefl_version=__version__,
    )


def answer_of_whatif(result: WhatIf) -> Answer:
    """Return the answer of a what-if: the fastest and the most inclusive policy, and the one with most updates in an hour."""
    rows = result.rows
    count = f"each of {len(rows)} policies" if len(rows) > 1 else "this policy"
    asked = f"How fast are rounds of {result.method} on {_fleet(result)}, and who takes part, under {count}?"
    if not any(row.round_s is not None and row.inclusion for row in rows):
        return Answer(asked, "No client trained under any policy.", "Give a longer deadline or smaller tiers.")
    known = able_rows(result)
    if not known:
        return Answer(asked, required_sentence(result), "Relax a requirement, or give other policies.")
    if result.required is not None and (taken(result) or len(known) == 1):
        row = taken(result) or known[0]
        return Answer(asked, required_sentence(result), f"Take “{row.label}”.{excluded_sentence(result, row)}{_unsure(result)}")
    if (chosen := advice_by_accuracy(result)) is not None:
        return Answer(asked, chosen[0], chosen[1] + _unsure(result) if len(rows) > 1 else _ALONE)
    if len(rows) == 1:
        return Answer(asked, _alone(result, known[0]), _ALONE)
    best = for_speed(result, known)
    fair = max(known, key=lambda row: (row.weakest_inclusion or 0.0, row.inclusion))
    advice = speed_sentence(result, known)
    if not fair.weakest_inclusion:
        needs = left_out(result) or f"No policy includes {_weakest(result, fair)}."
        return Answer(asked, _sentence(known), f"{advice}. {needs}{_unsure(result)}")
    if fair.label == best.label:
        return Answer(asked, _sentence(known), f"{advice}, and no policy includes its weakest class more.{_unsure(result)}")
    weakest = f"{_weakest(result, fair)}: {human_percent(fair.weakest_inclusion)} of its sessions train"
    return Answer(asked, _sentence(known), f"{advice}; take “{fair.label}” to include {weakest}.{_unsure(result)}")


def _unsure(result: WhatIf) -> str:
    """Return that the clock's error decides which policy is the fastest, and what to measure; nothing if it does not."""
    clock = result.clock
    if clock is None or clock.decides is None or max(clock.first.values(), default=0.0) >= SURE:
        return ""
    return f" {fastest(result)}"


_ALONE = "Give other policies to choose from, by --deadlines, --tiers or --over-selections."


def _alone(result: WhatIf, row: PolicyOutcome) -> str:
    """Return what came out of the only policy."""
    found = f"A round takes {human_seconds(row.round_s)}, and {human_percent(row.inclusion)} of sessions train"
    return f"{found}; {_weakest(result, row)} takes part least: {human_percent(row.weakest_inclusion)} of its sessions train."


def _fleet(result: WhatIf) -> str:
    """Return the fleet's name for people: its title, or what a result without titles was asked for."""
    return fleet_name(result.profile, result.fleet_title)


def whatif_chart(result: WhatIf) -> Chart:
    """Return inclusion over the time of a round, a point per policy, and the line of those that no other beats."""
    key, title = "whatif", "Who takes part, and how long it takes"
    rows = [row for row in shown(result) if row.policy.round_s is not None and row.policy.inclusion]
    if not rows:
        return Chart(key, title, "No client trained under any policy, so there is nothing to draw.", None)
    idle = [row.label for row in result.rows if row.round_s is None or not row.inclusion]
    left_out = f" Not drawn, because no client trains: {'; '.join(idle)}." if idle else ""
    return Chart(key, title, _sentence([row.policy for row in rows]) + left_out, _scatter(rows))


def inclusion_table(result: WhatIf) -> PlainTable:
    """Return, per policy, the share of each class's selected sessions that trained."""
    rows, best = shown(result), set(front(result.rows))
    columns = (
        text("policy", "", "numbered"),
        *_of("median round", human_seconds, round_s=""),
        shaded("all", lambda row: row.policy.inclusion),
        *inclusion_columns(lambda row: row.policy.inclusion_by_class, rows, result.titles),
    )
    return PlainTable.of(columns, rows, marked=(place in best for place in range(len(rows))))


def _within(error: float, row: PolicyOutcome) -> str:
    """Return the range of a median round: it is widest if the round were training alone, and no round outlasts its deadline."""
    if row.round_s is None:
        return MISSING
    longest_s = min(row.round_s * error, row.deadline_s or float("inf"))
    return human_range(row.round_s / error, max(longest_s, row.round_s)) or MISSING


def _sentence(rows: Sequence[PolicyOutcome]) -> str:
    best = [rows[number] for number in front(rows)]
    fastest, fullest = best[0], max(best, key=lambda row: row.inclusion)  # of equal ones, the first
    first = f"“{fastest.label}” has the shortest rounds, {human_seconds(fastest.round_s)}, and {human_percent(fastest.inclusion)}"
    if fastest is fullest:
        return f"{first} of sessions train: no policy includes more."
    more = f"“{fullest.label}” includes most, {human_percent(fullest.inclusion)}, in rounds of {human_seconds(fullest.round_s)}"
    return f"{first} of sessions train; {more}."


def _scatter(rows: Sequence[Shown]) -> Spec:
    known = [(row.policy.round_s or 0.0, row.number, row.policy) for row in rows]
    unit, unit_s = clock_unit(max(round_s for round_s, *_ in known))
    best = front([of for *_, of in known])
    points: list[dict[str, Any]] = [
        {
            "label": of.label,
            "number": n,
            "time": round_s / unit_s,
            "inclusion": of.inclusion,
            "series": "beaten by none" if place in best else "beaten by another",
            "told": f"{of.label}: {human_percent(of.inclusion)} of sessions, {human_seconds(round_s)} a round, "
            f"of the weakest class {human_percent(of.weakest_inclusion)}",
        }
        for place, (round_s, n, of) in enumerate(known)
    ]
    joined = [points[place] for place in best]
    others = len(best) < len(points)
    x = number("time", f"median round ({unit})", scale=_wide([point["time"] for point in points], 0.2))
    y = share("inclusion", "sessions that trained", **_wide([point["inclusion"] for point in points], 0.15, most=1.03))
    at = {"x": x, "y": y}
    fills = {"beaten by none": "var(--tier-0)"} | ({"beaten by another": "transparent"} if others else {})
    strokes = {name: "var(--tier-0)" if fill != "transparent" else "var(--soft)" for name, fill in fills.items()}
    dots = {**at, "fill": legend(fills, True), "stroke": legend(strokes, True), "tooltip": "told"}
    text = {"type": "text", "fontSize": 12, "align": "left", "baseline": "bottom", "dx": 9, "dy": -6}
    return layered(
        _HEIGHT_PX,
        layer({"type": "line", "color": "var(--tier-0)"}, joined, **at),
        layer({"type": "point", "size": 110, "strokeWidth": 2}, points, **dots),
        layer(text, _numbers(points, x["scale"]["domain"], y["scale"]["domain"]), **at, text="numbers"),
    )


def _numbers(points: Sequence[Json], wide: Sequence[float], high: Sequence[float]) -> Sequence[Json]:
    """Return the numbers of the policies beside their points; points that are too close for it share a text."""
    found: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda point: (point["time"], point["inclusion"])):
        for other in found:
            near = abs(other["time"] - point["time"]) * _NARROW_PX / (wide[1] - wide[0]) < 14 + 7 * len(other["numbers"])
            if near and abs(other["inclusion"] - point["inclusion"]) * _HEIGHT_PX / (high[1] - high[0]) < 18:
                other["numbers"] += f", {point['number']}"
                break
        else:
            found.append({"time": point["time"], "inclusion": point["inclusion"], "numbers": str(point["number"])})
    return found


def _wide(values: Sequence[float], part: float, most: float = float("inf")) -> Spec:
    """Return a scale with a margin around ``values`` for their labels, ``part`` of their range on either side, within 0 and ``most``."""
    margin = part * (max(values) - min(values)) or 0.5 * max(values)
    return {"domain": [max(0.0, min(values) - margin), min(most, max(values) + margin)], "nice": False}
