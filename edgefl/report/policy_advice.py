"""Which policy of a what-if to take: the cheapest of those that are about as fast as the fastest, and what leaves out a class."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.report.policies import ClassNeed, PolicyOutcome, WhatIf
from edgefl.report.words import joined, tier_label
from edgefl.util.units import human_bytes, human_count, human_joules, human_percent, human_seconds

ABOUT = 0.1
"""Policies whose speeds, or costs, differ by less than this share are about equal."""
_COSTS = {
    "energy_j": ("per useful update", human_joules),
    "update_bytes": ("per useful update", human_bytes),
    "wasted_share": ("of the devices' time wasted", human_percent),
}


def updates_per_hour(result: WhatIf, row: PolicyOutcome) -> float:
    """Return how many updates the server uses in an hour of simulated time."""
    return row.updates / (row.rounds or result.rounds) * (row.rounds_per_hour or 0.0)


def for_speed(result: WhatIf, known: Sequence[PolicyOutcome]) -> PolicyOutcome:
    """Return the policy to take for speed: of those about as fast as the fastest, one that no cheaper one replaces.

    A policy is about as fast if it has nearly as many useful updates an hour, or if the difference is within those between rounds.
    """
    fastest = max(known, key=lambda row: (updates_per_hour(result, row), row.inclusion))
    able = [row for row in known if _about_as_fast(result, row, fastest)]
    taken = fastest
    for row in sorted(able, key=lambda row: -updates_per_hour(result, row)):
        if _cheaper(row, taken):
            taken = row
    return taken


def _about_as_fast(result: WhatIf, row: PolicyOutcome, fastest: PolicyOutcome) -> bool:
    rate, most = updates_per_hour(result, row), updates_per_hour(result, fastest)
    high, low = row.updates_per_hour_high, fastest.updates_per_hour_low
    return rate >= (1 - ABOUT) * most or (high is not None and low is not None and high >= low)


def _cheaper(row: PolicyOutcome, other: PolicyOutcome) -> bool:
    """Return whether a policy costs about as much as another one in everything, and clearly less in something."""
    pairs = [(getattr(row, key), getattr(other, key)) for key in _COSTS]
    known = [(own, its) for own, its in pairs if own is not None and its is not None]
    return all(own <= its * (1 + ABOUT) for own, its in known) and any(own < its * (1 - ABOUT) for own, its in known)


def speed_sentence(result: WhatIf, known: Sequence[PolicyOutcome]) -> str:
    """Return the policy to take for speed, and what the fastest one costs more if it is another one."""
    taken = for_speed(result, known)
    fastest = max(known, key=lambda row: (updates_per_hour(result, row), row.inclusion))
    rate, most = updates_per_hour(result, taken), updates_per_hour(result, fastest)
    low, high = taken.updates_per_hour_low, taken.updates_per_hour_high
    ends = () if low is None or high is None else (human_count(round(low)), human_count(round(high)))
    within = f" ({' to '.join(ends)})" if len(set(ends)) == 2 else ""
    told = f"Take “{taken.label}” for speed: about {human_count(round(rate))} useful updates an hour{within}"
    if fastest is taken:
        return told
    pairs = [
        (what, human(getattr(fastest, key)), human(getattr(taken, key)))
        for key, (what, human) in _COSTS.items()
        if _costs(key, fastest, taken)
    ]
    costs = joined([f"{its} instead of {own} {what}" for what, its, own in pairs])
    return f"{told}; “{fastest.label}” has {human_percent(most / rate - 1)} more, for {costs}"


def _costs(key: str, row: PolicyOutcome, other: PolicyOutcome) -> bool:
    own, its = getattr(row, key), getattr(other, key)
    return own is not None and its is not None and own > its * (1 + ABOUT)


def excluded_sentence(result: WhatIf, row: PolicyOutcome) -> str:
    """Return which classes a policy leaves out although others include them, as a sentence after others; nothing if it leaves out none."""
    shares = [other.inclusion_by_class for other in result.rows]
    out = [device for device, share in row.inclusion_by_class.items() if share == 0 and any(of.get(device) for of in shares)]
    titles = result.titles
    return f" No session of {joined([titles.get(device, device) for device in out])} trains under it." if out else ""


def left_out(result: WhatIf) -> str:
    """Return the classes that train under no policy, and what they would need; nothing if there is none."""
    titles, limits = result.titles, [row.deadline_s for row in result.rows]
    given = [limit for limit in limits if limit is not None]
    longest_s = max(given, default=None) if len(given) == len(limits) else None
    return " ".join(_need(titles.get(device, device), need, longest_s) for device, need in result.needs.items())


def _need(title: str, need: ClassNeed, longest_s: float | None) -> str:
    told = f"No policy includes {title}: "
    if need.short:
        return f"{told}{need.short}. Give it a smaller tier, or leave the class out of the fleet."
    takes = f"a session of tier {tier_label(need.tier)} takes {human_seconds(need.session_s)}, "
    takes += f"{human_seconds(need.link_s)} of it on {need.link}"
    if longest_s is not None and need.session_s > longest_s:
        slow = "a faster link" if need.link_s > need.session_s / 2 else "a faster device"
        return f"{told}{takes}. It needs a deadline above that, a smaller tier, or {slow}."
    return (
        f"{told}{takes}, which is within the deadline, but other answers end the round. Ask only as many clients as are wanted."
    )


def deadline_sentence(result: WhatIf) -> str:
    """Return under which policies the deadline decided nothing, and what over-selection leaves out; nothing where it decided."""
    idle = [row for row in result.rows if row.ended_by_deadline == 0]
    if not idle:
        return ""
    labels = joined([f"“{row.label}”" for row in idle])
    told = f"The deadline decided nothing under {labels}: every round ended before it."
    most = max(row.over_selection for row in idle)
    if most > 1:
        told += f" With {most:g} clients asked per wanted answer, at most {human_percent(1 / most)} of the sessions can train,"
        told += " and the slowest do not."
    return told
