"""The charts of how clients' parts in rounds ended, and of what they took: useful, and wasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from edgefl.report.plot import HEAD, Chart, Figure, Json, clock_unit, figure_of, layout_of, short
from edgefl.report.statuses import USEFUL, bar_of, by_status, groups_of, in_order, sessions_of, status_name, summed
from edgefl.report.tables import Column, PlainTable, under
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

_FEW = 10


def outcome_charts(summary: Json, rounds: Sequence[Json]) -> tuple[Chart, ...]:
    """Return how clients' turns ended, per round and per device class."""
    by_round = {record["round"]: counts for record in rounds if (counts := sessions_of(record))}
    by_device: dict[str, Counter[str]] = {item["device"]: Counter() for item in summary["classes"]}
    for record in rounds:
        for group in groups_of(record):
            by_device.setdefault(group["device"], Counter())[group["status"]] += group["clients"]
    heads = (("outcomes-rounds", "Outcomes per round"), ("outcomes-classes", "Outcomes per device class"))
    if not by_round:
        return tuple(Chart(key, title, "No client was asked to train.", None) for key, title in heads)
    total = sum(by_round.values(), Counter())
    others = [f"{total[status]:,} {status_name(status)}" for status in in_order(total) if status != USEFUL]
    sentence = f"{total[USEFUL]:,} of {total.total():,} client turns trained; {', '.join(others) or 'none was refused'}."
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    by_class = [(titles.get(device, device), counts) for device, counts in by_device.items()]
    series = {status: [counts[status] for counts in by_round.values()] for status in in_order({USEFUL, *total})}
    return (
        Chart(*heads[0], sentence, _over_rounds(list(by_round), series, "clients")),
        Chart(*heads[1], _least_trained(by_class), _outcomes_by_class(by_class)),
    )


def waste_charts(rounds: Sequence[Json]) -> tuple[Chart, ...]:
    """Return which part of what clients took ended how, over the run, and the time of devices round by round."""
    heads = (("waste", "Useful and wasted"), ("waste-rounds", "Time of devices per round"))
    taken = _taken(rounds)
    total = summed(taken.values())
    if not total["device_s"]:
        return (Chart(*heads[0], "Nothing was sent to any client, so nothing was taken.", None),)
    wasted = 1 - taken.get(USEFUL, summed(()))["device_s"] / total["device_s"]
    of_waste = {status: work["device_s"] for status, work in taken.items() if status != USEFUL and work["device_s"]}
    most = max(of_waste, key=of_waste.__getitem__, default=None)
    why = f", the largest part with clients that were {_ended(most)}" if most and len(of_waste) > 1 else ""
    sentence = f"{human_percent(wasted)} of the time that devices spent led to nothing{why}."
    if not of_waste:
        sentence = "All that clients took was of use: every update of theirs was used."
    whole = Chart(*heads[0], sentence, _shares(taken))
    return (whole, Chart(*heads[1], *_by_round(rounds))) if len(rounds) > 1 else (whole,)


def waste_table(rounds: Sequence[Json]) -> PlainTable:
    """Return what clients of each status took over the run, with what was useful and wasted in all."""
    taken = _taken(rounds)
    rows = [{"what": status_name(status), **work} for status, work in taken.items()]
    wasted = summed(work for status, work in taken.items() if status != USEFUL)
    rows += [{"what": "all that was wasted", **wasted}, {"what": "all", **summed(taken.values())}]
    # Runs of older versions know nothing of the network's path.
    known = {"energy_j": "on devices"} | ({"end_to_end_j": "end to end"} if rows[-1]["end_to_end_j"] else {})
    columns = (
        Column("sessions that ended", "", lambda row: str(row["what"]), numeric=False),
        *under("sessions", human_count, clients=""),
        *under("MACs", human_count, macs=""),
        *under("bytes", human_bytes, download_bytes="down", upload_bytes="up"),
        *under("energy", human_joules, **known),
        *under("time of devices", human_seconds, device_s=""),
    )
    return PlainTable.of(columns, rows)


def _taken(rounds: Sequence[Json]) -> dict[str, dict[str, Any]]:
    return {status: work for status, work in by_status(rounds).items() if status != "refused"}


def _ended(status: str) -> str:
    return {"crashed": "gone in a crash", "diverged": "lost to divergence"}.get(status, status_name(status))


def _amount(work: Mapping[str, Any], key: str) -> float:
    return float(work["download_bytes"] + work["upload_bytes"] if key == "bytes" else work[key])


def _shares(taken: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return a bar of 100 % for each resource, split by status, with its total above."""
    total = summed(taken.values())
    keys = [key for key in _RESOURCES if _amount(total, key)]
    rows = list(range(len(keys)))
    traces, useful = [], taken.get(USEFUL, summed(()))
    for status, work in taken.items():
        shares = [_amount(work, key) / _amount(total, key) for key in keys]
        traces.append({**bar_of(status), "orientation": "h", "y": rows, "x": shares, "hovertemplate": "%{x:.1%}"})
    heads = []
    for row, key in enumerate(keys):
        name, human = _RESOURCES[key]
        wasted = human_percent(max(0.0, 1 - _amount(useful, key) / _amount(total, key)))
        heads.append({**HEAD, "y": row - 0.48, "text": f"{name}: {human(_amount(total, key))}, {wasted} wasted"})
    xaxis = {"title": "share", "tickformat": ".0%", "range": [0, 1]}
    yaxis = {"showticklabels": False, "showgrid": False, "range": [len(rows) - 0.5, -0.8]}
    layout = layout_of(110 + 52 * len(rows), xaxis, yaxis)
    return figure_of(traces, {**layout, "showlegend": True, "annotations": heads, "bargap": 0.55})


def _by_round(rounds: Sequence[Json]) -> tuple[str, Figure]:
    found = [_taken([record]) for record in rounds]
    longest_s = max(sum(work["device_s"] for work in taken.values()) for taken in found)
    unit, unit_s = clock_unit(longest_s)
    statuses = in_order({USEFUL}.union(*found))
    zero = summed(())
    series = {status: [taken.get(status, zero)["device_s"] / unit_s for taken in found] for status in statuses}
    shares = []
    for record, taken in zip(rounds, found, strict=True):
        all_s = sum(work["device_s"] for work in taken.values())
        shares += [(1 - taken.get(USEFUL, zero)["device_s"] / all_s, record["round"])] if all_s else []
    worst, number = max(shares, key=lambda pair: pair[0])
    sentence = f"In the median round {human_percent(max(0.0, median(share for share, _ in shares)))} of it was wasted"
    sentence += f"; most in round {number}: {human_percent(worst)}." if worst > 0 else "."
    return sentence, _over_rounds([record["round"] for record in rounds], series, f"time of devices ({unit})")


def _over_rounds(rounds: Sequence[int], series: Mapping[str, Sequence[float]], label: str) -> Figure:
    """Return bars stacked by status, a bar per round; of very many rounds, a bar is the mean over several of them."""
    several = -(-len(rounds) // _BARS)
    starts = range(0, len(rounds), several)
    traces: list[Figure] = []
    for status, values in series.items():
        means = [fmean(values[start : start + several]) for start in starts] if several > 1 else list(values)
        bars = {"x": [rounds[start] for start in starts], "y": means, "hovertemplate": "%{y:.4~g} in round %{x}"}
        traces.append({**bar_of(status), **bars})
    step = {"dtick": 1} if len(rounds) <= _FEW else {}
    title = f"round (a bar is the mean over {several})" if several > 1 else "round"
    layout = layout_of(300, {"title": title, **step}, {"title": label, "rangemode": "tozero"})
    return figure_of(traces, {**layout, "bargap": 0.1, "showlegend": True})


def _outcomes_by_class(by_class: Sequence[tuple[str, Counter[str]]]) -> Figure:
    rows = list(range(len(by_class)))
    counted = [counts for _, counts in by_class]
    traces = [
        {**bar_of(status), "orientation": "h", "y": rows, "x": [counts[status] for counts in counted]}
        for status in in_order({USEFUL}.union(*counted))
    ]
    yaxis = {"showticklabels": False, "showgrid": False, "range": [len(rows) - 0.5, -0.8]}
    layout = layout_of(110 + 56 * len(rows), {"title": "client turns"}, yaxis)
    names = [{**HEAD, "y": row - 0.48, "text": short(title)} for row, (title, _) in enumerate(by_class)]
    return figure_of(traces, {**layout, "showlegend": True, "annotations": names, "bargap": 0.55})


def _least_trained(by_class: Sequence[tuple[str, Counter[str]]]) -> str:
    never = [title for title, counts in by_class if counts.total() and not counts[USEFUL]]
    if never:
        return f"Asked, but never trained: {', '.join(never)}."
    return "Every class that was asked trained at least once."
