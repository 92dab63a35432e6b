"""The charts and tables of a fleet: how clients' sessions ended, what they took, and which classes take part."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import NamedTuple

from edgefl.records import ACCURACY, Metric, Totals
from edgefl.report.chart import (
    WHOLE,
    Chart,
    Spec,
    category,
    clock_unit,
    layer,
    layered,
    legend,
    number,
    share,
    slots,
    stacked,
)
from edgefl.report.metric import best_of, metric_text, reaches
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.run_rows import Participation
from edgefl.report.tables import Column, PlainTable, text, under
from edgefl.report.timeline import Timelines, timelines
from edgefl.report.words import (
    STATUSES,
    USEFUL,
    clock_word,
    counted,
    counts_text,
    groups_of,
    in_order,
    look,
    lost_text,
    status_name,
    summed,
    taken_by_status,
    tier_label,
)
from edgefl.util.units import human_bytes, human_count, human_joules, human_percent, human_seconds

_RESOURCES = {
    "macs": ("MACs", human_count),
    "bytes": ("bytes sent", human_bytes),
    "energy_j": ("energy on devices", human_joules),
    "end_to_end_j": ("energy end to end", human_joules),
    "device_s": ("time of devices", human_seconds),
}
_BARS = 120
"""Up to so many rounds have a bar each; of more, a bar is the mean over several."""


def outcome_charts(summary: AnySummary, rounds: Sequence[RoundLine]) -> tuple[Chart, ...]:
    """Return how clients' turns ended, per round and per device class."""
    by_round = {line.round: counts for line in rounds if (counts := counted(line.groups))}
    titles = summary.titles
    by_device: dict[str, Counter[str]] = {device: Counter() for device in titles}
    for group in groups_of(rounds):
        by_device.setdefault(group.device, Counter())[group.status] += group.clients
    heads = (("outcomes-rounds", "Outcomes per round"), ("outcomes-classes", "Outcomes per device class"))
    if not by_round:
        return tuple(Chart(key, title, "No client was selected.", None) for key, title in heads)
    total = sum(by_round.values(), Counter())
    others = counts_text({status: n for status, n in total.items() if status != USEFUL}) or "none was refused"
    sentence = f"{total[USEFUL]:,} of {total.total():,} sessions trained; {others}."
    by_class = [(titles.get(device, device), counts) for device, counts in by_device.items()]
    never = [title for title, counts in by_class if counts.total() and not counts[USEFUL]]
    trained = f"Selected, but never trained: {', '.join(never)}." if never else "Every selected class trained at least once."
    turns = [(title, {status: (float(n), f"{n:,}") for status, n in counts.items()}) for title, counts in by_class]
    return (
        Chart(*heads[0], sentence, _over_rounds(by_round, "clients")),
        Chart(*heads[1], trained, _under_heads(turns, number("value", "sessions", **WHOLE))),
    )


def waste_charts(rounds: Sequence[RoundLine]) -> tuple[Chart, ...]:
    """Return how the resources that clients took split by outcome, over the run, and the time of devices round by round."""
    heads = (("waste", "Useful and wasted"), ("waste-rounds", "Time of devices per round"))
    taken = taken_by_status(rounds)
    total = summed(taken.values())
    if not total.device_s:
        return (Chart(*heads[0], "Nothing was sent to any client, so nothing was wasted.", None),)
    useful = taken.get(USEFUL, summed(()))
    of_waste = {status: work.device_s for status, work in taken.items() if status != USEFUL and work.device_s}
    most = max(of_waste, key=of_waste.__getitem__, default="")
    why = f", most of it in sessions that ended as {status_name(most)}" if len(of_waste) > 1 else ""
    sentence = f"{human_percent(1 - useful.device_s / total.device_s)} of the devices' time was wasted{why}."
    if not of_waste:
        sentence = "Nothing was wasted: the server used every update."
    bars = []
    for key, (name, human) in _RESOURCES.items():
        if whole := _amount(total, key):
            parts = {status: _amount(work, key) / whole for status, work in taken.items()}
            split = {status: (part, human_percent(part)) for status, part in parts.items()}
            wasted = human_percent(max(0.0, 1 - _amount(useful, key) / whole))
            bars.append((f"{name}: {human(whole)}, {wasted} wasted", split))
    shares = Chart(*heads[0], sentence, _under_heads(bars, share("value", "share", domain=[0, 1])))
    return (shares, Chart(*heads[1], *_time_by_round(rounds))) if len(rounds) > 1 else (shares,)


def weakest_sentence(rows: Sequence[Participation], metric: Metric = ACCURACY) -> str:
    """Return the accuracy of the least represented class, by useful sessions over its share of the population."""
    useful = sum(row.used for row in rows)
    present = [row for row in rows if row.clients and row.share > 0]
    if not useful or not present:
        return "No client's update was used, so no class took part."
    if len(rows) == 1:
        return f"{rows[0].title} is the only device class: it has all {useful:,} useful sessions."
    sign = 1 if metric.better == "higher" else -1
    # Among equals the one whose tier is the worst, or has no accuracy.
    weakest = min(
        present, key=lambda row: (row.used / useful / row.share, row.accuracy is not None, sign * (row.accuracy or 0.0))
    )
    own = human_percent(weakest.used / useful)
    shares = f"{human_percent(weakest.share)} of the population, {own} of {useful:,} useful sessions"
    sentence = f"{weakest.title} is the least represented class: {shares}"
    known = [row.accuracy for row in rows if row.accuracy is not None and row.used]
    if weakest.tier is None:
        return f"{sentence}. It fits no tier."
    if not weakest.used:
        return f"{sentence}. Its tier, {tier_label(weakest.tier)}, learned nothing from it."
    tier = f"Its tier, {tier_label(weakest.tier)}, "
    if weakest.accuracy is None or not known:
        return f"{sentence}."
    best = best_of(metric)(known)
    points = f"{100 * (best - weakest.accuracy):.1f} points below" if metric.share else f"worse than {metric_text(metric, best)},"
    than = "the best of all classes" if reaches(metric, weakest.accuracy, best) else f"{points} the best class's"
    return f"{sentence}. {tier}reaches {metric_text(metric, weakest.accuracy)}, {than}."


def participation_chart(rows: Sequence[Participation], metric: Metric = ACCURACY) -> Chart:
    """Return each class's share of the population beside its share of the sessions that the server used."""
    key, title = "participation", "Share of the population, share of useful sessions"
    useful = sum(row.used for row in rows)
    if not useful:
        return Chart(key, title, "No client's update was used, so no class took part.", None)
    places = slots([(row.title, [""]) for row in rows])
    looks = {"of the population": "transparent", "of useful sessions": "var(--tier-0)"}
    strokes = dict(zip(looks, ("var(--ink)", "var(--tier-0)"), strict=True))
    dots, joints = [], []
    for row, (slot,) in zip(rows, places.of, strict=True):
        pair = (row.share, row.used / useful)
        joints.append({"slot": slot, "share": pair[0], "other": pair[1]})
        for series, value in zip(looks, pair, strict=True):
            told = f"{row.title}: {human_percent(value)} {series}"
            dots.append({"slot": slot, "series": series, "share": value, "told": told})
    most = 1.05 * max(value for row in rows for value in (row.share, row.used / useful))
    x = share("share", "share", domain=[-0.02 * most, most], nice=False)
    line = {"type": "rule", "color": "var(--soft)", "strokeWidth": 2}
    point = {"type": "point", "size": 130, "strokeWidth": 2}
    encoded = {"x": x, "y": places.y, "fill": legend(looks), "stroke": legend(strokes), "tooltip": "told"}
    spec = layered({"step": 26}, layer(line, joints, x=x, x2="other", y=places.y), layer(point, dots, **encoded), places.heads)
    return Chart(key, title, weakest_sentence(rows, metric), spec)


def _amount(work: Totals, key: str) -> float:
    """Return how much of a resource was taken, 0 if that is unknown."""
    return float(work.download_bytes + work.upload_bytes if key == "bytes" else getattr(work, key) or 0.0)


def _looks(statuses: set[str]) -> dict[str, str]:
    """Return name → fill of statuses in their order: a plain colour, or the pattern of a wasted status."""
    patterns = {status: f"url(#status-{status if status in STATUSES else 'unknown'})" for status in in_order(statuses)}
    return {status_name(status): url if look(status).pattern else look(status).colour for status, url in patterns.items()}


def _under_heads(bars: Sequence[tuple[str, Mapping[str, tuple[float, str]]]], x: Spec) -> Spec:
    """Return a bar under each heading, split by status; a part is its length and how people read it."""
    places = slots([(head, [""]) for head, _ in bars])
    rows = [
        {"slot": slot, "series": status_name(status), "value": value, "told": f"{head}, {status_name(status)}: {text}"}
        for (head, split), (slot,) in zip(bars, places.of, strict=True)
        for status, (value, text) in split.items()
    ]
    looks = _looks({USEFUL}.union(*(split for _, split in bars)))
    return layered({"step": 26}, stacked(rows, looks, True, x=x, y=places.y), places.heads)


def _time_by_round(rounds: Sequence[RoundLine]) -> tuple[str, Spec]:
    found = {line.round: {status: work.device_s for status, work in taken_by_status([line]).items()} for line in rounds}
    all_s = {number: sum(taken.values()) for number, taken in found.items()}
    unit, unit_s = clock_unit(max(all_s.values()))
    wasted = [(1 - taken.get(USEFUL, 0.0) / all_s[number], number) for number, taken in found.items() if all_s[number]]
    worst, number = max(wasted, key=lambda pair: pair[0])
    sentence = f"In the median round {human_percent(max(0.0, median(part for part, _ in wasted)))} of it was wasted"
    sentence += f"; most in round {number}: {human_percent(worst)}." if worst > 0 else "."
    scaled = {number: {status: value / unit_s for status, value in taken.items()} for number, taken in found.items()}
    return sentence, _over_rounds(scaled, f"time of devices ({unit})")


def _over_rounds(by_round: Mapping[int, Mapping[str, float]], title: str) -> Spec:
    """Return bars stacked by status, a bar per round; of very many rounds, a bar is the mean over several of them."""
    numbers = list(by_round)
    several = -(-len(numbers) // _BARS)
    looks = _looks({USEFUL}.union(*by_round.values()))
    statuses = in_order({USEFUL}.union(*by_round.values()))
    rows = []
    for start in range(0, len(numbers), several):
        some = [by_round[number] for number in numbers[start : start + several]]
        for status in statuses:
            value = fmean(split.get(status, 0) for split in some)
            told = f"{value:,.4g} {status_name(status)} in round {numbers[start]}"
            rows.append({"round": numbers[start], "series": status_name(status), "value": value, "told": told})
    label = f"round (a bar is the mean over {several})" if several > 1 else "round"
    x, y = category("round", label, numbers[::several]), number("value", title, tickCount=5)
    return layered(230, stacked(rows, looks, True, x=x, y=y))


class FleetView(NamedTuple):
    """What a page shows of a run's fleet, part by part; ``meanings`` says what the statuses are that occur."""

    clock: str
    timelines: Timelines
    participation: Chart
    participation_table: PlainTable
    outcomes: tuple[Chart, ...]
    waste: tuple[Chart, ...]
    waste_table: PlainTable
    meanings: tuple[tuple[str, str], ...]


def fleet_view(summary: AnySummary, rounds: Sequence[RoundLine]) -> FleetView:
    """Return what a page shows of a run's fleet; the rounds list their clients or not."""
    rows, metric = summary.participation, summary.metric
    seen = {status for row in rows for status, count in row.statuses.items() if count}
    return FleetView(
        clock=clock_word(rounds),
        timelines=timelines(summary, rounds),
        participation=participation_chart(rows, metric),
        participation_table=participation_table(rows, metric),
        outcomes=outcome_charts(summary, rounds),
        waste=waste_charts(rounds),
        waste_table=waste_table(rounds),
        meanings=tuple((status_name(status), of.meaning) for status, of in STATUSES.items() if status in seen),
    )


def useful_card(summary: AnySummary) -> list[tuple[str, str, str]]:
    """Return the share of the devices' time whose updates were used; nothing if no client was sent anything."""
    useful_s, all_s = summary.useful.device_s, summary.useful.device_s + summary.wasted.device_s
    return [("Useful work", human_percent(useful_s / all_s), "of the time that devices spent")] if all_s else []


def participation_table(rows: Sequence[Participation], metric: Metric = ACCURACY) -> PlainTable:
    """Return who took part, a row per device class."""

    def part(some: float, of: float) -> str:
        return human_percent(some / of if of else None)

    columns = [
        text("device class", "", "title"),
        *under("population", clients="clients", share="share"),
        *under("sessions", sessions="all"),
        Column("sessions", "trained", lambda row: part(row.used, row.sessions)),
        *under("sessions", lambda count: human_count(count or 0), "statuses", late="late", refused="refused"),
        Column("sessions", "lost", lambda row: lost_text(row.statuses) or "none", numeric=False),
        *under("clients that trained", distinct=""),
        Column("clients that trained", "of the class", lambda row: part(row.distinct, row.clients)),
        Column("energy on devices", "useful", lambda row: _joules(row.useful, row.wasted)),
        Column("energy on devices", "wasted", lambda row: _joules(row.wasted, row.useful)),
        *under("tier", lambda tier: "none" if tier is None else tier_label(tier), tier=""),
        *(
            under("tier", partial(metric_text, metric), accuracy=metric.name)
            if any(row.accuracy is not None for row in rows)
            else ()
        ),
    ]
    return PlainTable.of(columns, rows)


def _joules(own: Totals, other: Totals) -> str:
    """Return the energy of useful or wasted sessions; no session of a device whose energy is unknown is no figure, not 0 J."""
    unknown = other.energy_j is None and not own.clients
    return human_joules(None if unknown else own.energy_j)


class _Work(NamedTuple):
    ended: str
    took: Totals


def waste_table(rounds: Sequence[RoundLine]) -> PlainTable:
    """Return what clients of each status took over the run, with what was useful and wasted in all."""
    taken = taken_by_status(rounds)
    wasted = summed(work for status, work in taken.items() if status != USEFUL)
    whole = summed(taken.values())
    if whole.energy_j is None and not wasted.clients:  # no figure, not 0 J
        wasted = replace(wasted, energy_j=None, end_to_end_j=None)
    shown = {**{status_name(status): work for status, work in taken.items()}, "all wasted": wasted, "all": whole}
    columns = (
        text("sessions that ended", "", "ended"),
        *under("sessions", outer="took", clients=""),
        *under("MACs", outer="took", macs=""),
        *under("bytes", outer="took", download_bytes="down", upload_bytes="up"),
        *under("energy", outer="took", energy_j="on devices", end_to_end_j="end to end"),
        *under("time of devices", outer="took", device_s=""),
    )
    return PlainTable.of(columns, map(_Work._make, shown.items()))
