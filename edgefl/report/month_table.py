"""The tables of what the days of a calendar take of each class of devices, and of who takes part, under each policy of a what-if."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgefl.report.device_month import DAYS, device_months, rounds_per_day
from edgefl.report.policies import ClassReach, WhatIf
from edgefl.report.tables import Column, PlainTable, Row, text, under
from edgefl.report.words import joined
from edgefl.util.units import human_bytes, human_count, human_joules, human_money, human_percent, human_seconds

_REMEDIES = {
    "late": "a longer deadline, a smaller tier or less over-selection",
    "refused": "a smaller tier, or a larger budget of what it lacks",
    "interrupted": "a smaller tier, or hours in which its owners leave it alone",
    "dropped": "a smaller tier, or a better link",
}
"""Status of lost sessions → what would change it."""
_SELDOM = 0.05
"""If more than this share of devices is never asked, there are too few sessions."""


def month_table(result: WhatIf) -> PlainTable | None:
    """Return what a month takes of one device, a row per policy and class; None without a calendar."""
    rows = list(_month_rows(result))
    if not rows:
        return None
    columns = (
        text("policy", "", "policy"),
        text("device class", "", "class"),
        *under("rounds", human_count, rounds="a day"),
        *under("of one device, in a month", human_count, sessions="sessions", updates="useful updates"),
        *under("bytes of one device, in a month", human_bytes, bytes="mean", bytes_median="median", bytes_p90="90th percentile"),
        *((text("bytes", "metered", "metered"),) if any(row["metered"] for row in rows) else ()),
        *under("of one device, in a day", human_joules, daily_j="joules"),
        *under("of one device, in a day", human_percent, battery="of its battery"),
        *under("of one device, in a month", human_seconds, device_s="time"),
    )
    return PlainTable.of(columns, rows)


def _month_rows(result: WhatIf) -> Iterator[Row]:
    titles = result.titles
    for number, row in enumerate(result.rows, start=1):
        for device, month in device_months(row).items():
            use, reach = row.uses[device], row.reach[device]
            daily_j = None if month.energy_j is None else month.energy_j / DAYS
            battery_j, whole = use.battery_j, reach.days >= DAYS
            yield {
                "policy": f"{number}: {row.label}",
                "class": titles.get(device, device),
                "rounds": rounds_per_day(row),
                **vars(month),
                "bytes_median": reach.bytes_median if whole else None,
                "bytes_p90": reach.bytes_p90 if whole else None,
                "metered": "yes" if use.metered else "",
                "daily_j": daily_j,
                "battery": None if battery_j is None or daily_j is None else daily_j / battery_j,
            }


def money_table(result: WhatIf) -> PlainTable | None:
    """Return what a month of the whole fleet costs under each policy; None without prices."""
    rows = [
        {"policy": f"{n}: {row.label}", **vars(row.money)} for n, row in enumerate(result.rows, start=1) if row.money is not None
    ]
    if not rows:
        return None
    columns = text("policy", "", "policy"), *under("in a month", human_money, data="metered bytes", energy="energy of devices")
    return PlainTable.of(
        (*columns, *under("in a month", human_money, server="server", total=f"all, {rows[0]['currency']}")), rows
    )


def money_sentence(result: WhatIf) -> str:
    """Return what a month costs under the cheapest policy, and under the dearest; nothing without prices."""
    known = [
        (row.money.total, row.label, row.money.currency)
        for row in result.rows
        if row.money is not None and row.money.total is not None
    ]
    if not known:
        return ""
    (least, cheap, currency), (most, dear, _) = (of(known, key=lambda one: one[0]) for of in (min, max))
    told = f"A month of the fleet costs {human_money(least, currency)} under “{cheap}”"
    return f"{told}." if most == least else f"{told}, and {human_money(most, currency)} under “{dear}”."


def reach_table(result: WhatIf) -> PlainTable | None:
    """Return which share of each class takes part within the simulated days, a row per policy and class; None without a calendar."""
    titles, rows = result.titles, list[Row]()
    for number, row in enumerate(result.rows, start=1):
        for device, reach in row.reach.items():
            use, clients = row.uses[device], row.uses[device].clients
            if clients:
                shares = {"trained": reach.trained / clients, "never": 1 - reach.asked / clients}
                told = {"policy": f"{number}: {row.label}", "class": titles.get(device, device)}
                out = row.inclusion_by_class.get(device) == 0 and not use.sessions  # without a session, and not by chance
                change = "a largest tier above 0" if out else _change(reach, shares)
                rows.append({**told, **shares, "days": reach.updates_days, "change": change})
    if not rows:
        return None
    columns = (
        text("policy", "", "policy"),
        text("device class", "", "class"),
        *under("devices", human_percent, trained="that trained", never="never asked"),
        Column(f"{human_count(result.target_updates)} useful updates", "after", lambda row: _days(row["days"])),
        text("the others would take part with", "", "change"),
    )
    return PlainTable.of(columns, rows)


def _days(days: float | None) -> str:
    return "never" if days is None else human_seconds(days * 86_400)


def _change(reach: ClassReach, shares: Mapping[str, float]) -> str:
    """Return what would let more devices of a class take part."""
    seldom = ["more rounds a day, or more clients a round"] if shares["never"] > _SELDOM else []
    worst = max(reach.lost, key=lambda status: reach.lost[status], default=None)
    lost = [_REMEDIES[worst]] if worst in _REMEDIES and 1 - shares["never"] - shares["trained"] > _SELDOM else []
    return "; ".join(seldom + lost)


def span_sentence(result: WhatIf) -> str:
    """Return which days were simulated, and under which policies a day has no time for the rounds that were asked for."""
    if not result.calendar:
        return ""
    rows = [(row.days, row) for row in result.rows if row.days is not None]
    days = [of for of, _ in rows]
    told = f"Simulated: {_days(min(days))}" + (f" to {_days(max(days))}" if max(days) > 1.01 * min(days) else "")
    told += f", from {rows[0][1].began} to {max(rows, key=lambda pair: pair[0])[1].ended}."
    if min(days) < DAYS:
        told += f" Medians of a month, and who takes part in one, need {DAYS} days: give more --rounds."
    asked = result.rounds_per_day
    short = [(row, n) for of, row in rows if asked and (n := rounds_per_day(row)) is not None and n < 0.99 * asked and of >= 1]
    if not short:
        return told
    few = joined([f"“{row.label}” ({human_count(round(n, 1))})" for row, n in short])
    return f"{told} A day has no time for {human_count(asked)} rounds under {few}: months are of as many as fit."
