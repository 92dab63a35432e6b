"""The three sentences that open every page: the question, the result and the advice. Each is computed from the page's records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.records import Shortfall
from edgefl.report.metric import metric_text, reaches
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import ClassRow
from edgefl.report.section import sections_of
from edgefl.report.tier_notes import leave_out
from edgefl.report.words import (
    USEFUL,
    budget_name,
    clock_word,
    counted,
    fleet_name,
    groups_of,
    joined,
    need_have,
    of_devices,
    status_name,
    statuses_of,
    tier_label,
    tiers_text,
    trained_tiers,
    uncounted,
)
from edgefl.util.units import human_bytes, human_percent, human_seconds

RISING = 0.01
"""An accuracy that rose by more than this in the last quarter of the evaluated rounds is still rising."""
DIVERGED = "diverged: their weights became NaN or huge"
LOWER_RATE = "Lower the learning rate (--lr), or limit changes with --clip-norm"
_MUCH_WASTE = 0.2
_WORTH = 0.005
"""A larger tier is worth a longer deadline if it gains this much."""


@dataclass(frozen=True)
class Answer:
    """What was asked, what came out (``found``), and what to do (``advice``), a sentence each."""

    asked: str
    found: str
    advice: str


def answer_of_run(summary: RunSummary, rounds: Sequence[RoundLine]) -> Answer:
    """Return the answer of a run."""
    return Answer(_asked(summary), _found(summary, rounds), next(filter(None, _advice(summary, rounds))))


def _asked(summary: RunSummary) -> str:
    task = f"{summary.method} train {summary.model} on {summary.dataset}"
    fleet = fleet_name(summary.fleet, summary.fleet_title)
    return f"How well does {task} in {_rounds(summary.rounds)}, if every device class of {fleet} stays within its budgets?"


def _found(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    metric, whose = summary.metric, "the clients' models" if summary.of_clients else "the global model"
    sent = summary.download_bytes + summary.upload_bytes
    spent = f"{human_seconds(summary.simulated_s)} of {clock_word(rounds)} time and {human_bytes(sent)} sent"
    spent += f", from {summary.began} to {summary.last_began}" if summary.calendar else ""
    known = summary.global_accuracy
    reached = "no round was evaluated" if known is None else f"{whose} reached {metric_text(metric, known)} {metric.name}"
    trains = _tiers_of_classes(summary, rounds)
    return f"{reached[0].upper()}{reached[1:]} after {spent}{f'; {trains}' if trains else ''}."


def _tiers_of_classes(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    """Return the classes whose updates were used, with their tiers; of dynamic devices the classes alone, as their tiers change."""
    trained = [row for row in summary.participation if row.used]
    if not trained:
        return "no update of a client was used"
    if summary.dynamic_devices:
        return f"updates of {joined(row.title for row in trained)} were used, their tiers changing with their state"
    if summary.tier_assignment != "auto":
        groups = groups_of(rounds)
        drawn = [(row.title, trained_tiers(group for group in groups if group.device == row.device)) for row in trained]
        return joined(f"{title} trained {tiers_text(sorted(tiers, reverse=True))}" for title, tiers in drawn)
    return joined(f"{row.title} trained tier {tier_label(row.tier)}" for row in trained if row.tier is not None)


def _advice(summary: RunSummary, rounds: Sequence[RoundLine]) -> Iterable[str]:
    """Yield what to do, the most urgent first; the last is not empty."""
    if warning := uncounted(summary.tiers):
        yield f"Claim no budget: not every operation is counted ({warning.partition(': ')[2]})."
    yield diverged(summary)
    yield without_tier(summary)
    yield _never_used(summary)
    yield leave_out(summary)
    yield from (section.advice for section in sections_of(summary, rounds))
    yield _longer(summary, rounds)
    yield larger_tier(summary)
    yield _smaller(summary)
    yield _waste(summary, rounds)
    metric = summary.metric
    rises = f", {metric.name} no longer rises," if metric.share else ""  # of another metric no rise is judged
    yield f"Use this setting: every class took part{rises} and no budget asks for a change."


def diverged(summary: RunSummary) -> str:
    """Return what to do about clients whose training diverged; nothing if few did."""
    counts = statuses_of(summary)
    return f"{LOWER_RATE}: {diverged_text(counts)}." if many_diverged(counts) else ""


def many_diverged(counts: Mapping[str, int]) -> bool:
    """Whether training diverged in so many sessions that the result says little of the method; ``counts`` are by status."""
    return counts.get("diverged", 0) >= _MUCH_WASTE * sum(counts.values()) > 0


def diverged_text(counts: Mapping[str, int]) -> str:
    """Return how many sessions diverged, and what that means.

    >>> diverged_text({"trained": 6, "diverged": 2})
    '2 of 8 sessions diverged: their weights became NaN or huge'
    """
    return f"{diverged_share(counts)} sessions {DIVERGED}"


def diverged_share(counts: Mapping[str, int]) -> str:
    """Return how many sessions diverged, of how many."""
    return f"{counts['diverged']:,} of {sum(counts.values()):,}"


def without_tier(summary: RunSummary) -> str:
    """Return what to do about the device classes that fit no tier, and why they fit none; nothing if all fit one."""
    refused = (item for item in summary.classes if item.tier is None and item.refusals)
    # A class whose largest tier is smaller than every tier is left out on purpose.
    outside = [item for item in refused if _smallest(item).budget != "largest_tier"]
    if not outside:
        return ""
    short = _smallest(outside[0])
    tier = tier_label(short.tier)
    smaller = f"a tier below {tier}" if len(summary.tiers) > 1 else f"a tier below {tier}, or a method that has smaller tiers"
    what = "accept that it cannot train" if len(outside) == 1 else "accept that these classes cannot train"
    why = f"the {budget_name(short.budget)} of {outside[0].title} is too small for tier {tier} ({need_have(short)})"
    none = f"{joined(item.title for item in outside)} {'fits' if len(outside) == 1 else 'fit'} no tier"
    return f"Add {smaller}, or {what}: {none}, because {why}."


def _smallest(item: ClassRow) -> Shortfall:
    return min(item.refusals, key=lambda refusal: refusal.tier)


def _never_used(summary: RunSummary) -> str:
    asked = (row for row in summary.participation if row.sessions and row.tier is not None)
    row = next((row for row in asked if not row.used), None)
    if row is None:
        return ""
    why = max(row.statuses, key=row.statuses.__getitem__)
    remedies = {"late": "give rounds a longer deadline", "refused": "give the class a larger budget"}
    none = f"none of its {row.sessions:,} sessions was used, mostly because they were {status_name(why)}"
    return f"Include {row.title}: {none}; {remedies.get(why, 'look at its outcomes')}."


def _longer(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    metric = summary.metric
    reached = [line.accuracy["global"] for line in rounds if "global" in line.accuracy]
    if len(rounds) == 1:
        return "Train for more rounds: one round does not show what the setting can reach."
    if not metric.share or len(reached) < 2:
        return ""
    gain, when = late_gain(reached)
    return f"Train longer: {metric.name} still rose by {points(gain)} in the last {when}." if gain > RISING else ""


def late_gain(reached: Sequence[float]) -> tuple[float, str]:
    """Return by how much an accuracy rose at the end of its evaluated rounds, two at least, and in which last part of them.

    >>> late_gain([0.25, 0.5])
    (0.25, 'round')
    """
    last = max(1, len(reached) // 4)
    return reached[-1] - reached[-1 - last], "quarter of the rounds" if len(reached) >= 4 else "round"


def larger_tier(summary: RunSummary) -> str:
    """Return the deadline with which a class could train a larger tier, where that tier gains most; nothing if none gains half a point."""
    accuracy = {row.tier: row.accuracy for row in summary.tiers if row.accuracy is not None}
    if not summary.metric.share:
        return ""
    found = [
        (gain, item, item.tier, short)
        for item in summary.classes
        if item.tier in accuracy
        for tier, short in _deadlines(item).items()
        if tier in accuracy and (gain := accuracy[tier] - accuracy[item.tier]) >= _WORTH
    ]
    if not found:
        return ""
    gain, item, own, short = max(found, key=lambda row: row[0])
    # The class may have a deadline of its own.
    has = f"{item.title} can train tier {tier_label(own)} within the deadline of {human_seconds(short.have)}"
    return f"{has}; a deadline of {human_seconds(short.need)} would let it train tier {tier_label(short.tier)} for {points(gain)} more."


def _deadlines(item: ClassRow) -> dict[float, Shortfall]:
    """Return larger tiers that only the deadline refuses a class, each with the refusal that needs the fewest seconds."""
    found: dict[float, Shortfall] = {}
    for refusal in item.refusals if item.tier is not None else ():
        others = {other.budget for other in item.refusals if other.tier == refusal.tier}
        if item.tier is not None and refusal.tier > item.tier and others == {"deadline_s"}:
            found[refusal.tier] = min(refusal, found.get(refusal.tier, refusal), key=lambda known: known.need)
    return found


def _smaller(summary: RunSummary) -> str:
    """Return the advice to deploy the smallest tier that was trained, if it is as accurate as all others that were."""
    known = [(row, row.accuracy) for row in summary.tiers if row.accuracy is not None and row.updates != 0]
    rows = sorted(known, key=lambda pair: pair[0].tier)
    if len(rows) < 2 or not all(reaches(summary.metric, rows[0][1], accuracy) for _, accuracy in rows):
        return ""
    (first, _), (last, _) = rows[0], rows[-1]
    less = human_percent(1 - first.macs_train_step / last.macs_train_step)
    smallest, largest = tier_label(first.tier), tier_label(last.tier)
    return f"Deploy tier {smallest}: it is as accurate as tier {largest} with {less} fewer MACs in a training step."


def _waste(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    useful_s, wasted_s = summary.useful.device_s, summary.wasted.device_s
    if not wasted_s or (share := wasted_s / (useful_s + wasted_s)) < _MUCH_WASTE:
        return ""
    counts = counted(groups_of(rounds))
    lost = {status: n for status, n in counts.items() if status not in (USEFUL, "refused")}
    why = max(lost, key=lost.__getitem__, default="")
    late = why == "late" and not of_devices(rounds)
    remedy = "select fewer clients per wanted update, or wait longer" if late else "look at the outcomes of clients"
    wasted = f"{human_percent(share)} of the devices' time was of no use, mostly in sessions that ended as {status_name(why)}"
    return f"Waste less: {wasted}; {remedy}."


def points(gain: float) -> str:
    """Return a difference of shares in percentage points.

    >>> points(0.0134), points(0.01)
    ('1.3 points', '1.0 point')
    """
    return f"{100 * gain:.1f} point{'' if f'{100 * gain:.1f}' == '1.0' else 's'}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count:,} rounds"
