"""The words of tables and charts for tiers, budgets and statuses, and the looks of statuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from edgefl.records import BUDGETS as BUDGETS
from edgefl.records import Group, Shortfall, Totals
from edgefl.report.tables import Record, value_of
from edgefl.util import units
from edgefl.util.unknown import known_sum

if TYPE_CHECKING:  # commands that only need words start without the records of files
    from edgefl.report.round_lines import ClientLine, RoundLine
    from edgefl.report.run_files import Summary
    from edgefl.report.run_rows import AssignmentStep, BudgetUse, ClassRow, TierRow

    Taken = TierRow | ClassRow | AssignmentStep | Shortfall | ClientLine
    """A tier, and how a device trains it."""


def of_devices(rounds: Sequence[RoundLine]) -> bool:
    """Return whether real devices trained, so that seconds are of a real clock; only their rounds say how large the graphs were."""
    return any("setup_bytes" in line.observed for line in rounds)


def clock_word(rounds: Sequence[RoundLine]) -> str:
    """Return "real" or "simulated", as the clock of a run is."""
    return "real" if of_devices(rounds) else "simulated"


def tier_label(tier: float) -> str:
    """Return a tier's name: ``0.5``, ``1``."""
    return f"{tier:g}"


def joined(values: Iterable[str]) -> str:
    """Return a list as a sentence has it.

    >>> joined(["a", "b", "c"]), joined(["a"])
    ('a, b and c', 'a')
    """
    *first, last = values
    return f"{', '.join(first)} and {last}" if first else last


def tiers_text(tiers: Iterable[float]) -> str:
    """Return several tiers as a sentence has them.

    >>> tiers_text([1]), tiers_text([1, 0.5])
    ('tier 1', 'tiers 1 and 0.5')
    """
    labels = [tier_label(tier) for tier in tiers]
    return f"tier{'s' * (len(labels) > 1)} {joined(labels)}"


def energy_trust(energy_j: float | None, errors: Iterable[float | None] = ()) -> str:
    """Return how far an energy can be trusted, with the stated ``errors`` of devices, or that it is unknown.

    >>> energy_trust(2.0, [15.1, 1.55, None]), energy_trust(2.0)
    ('not validated, stated to be right within a factor of 1.55 to 15.1', 'not validated')
    """
    stated = sorted({f"{error:.3g}" for error in errors if error is not None}, key=float)
    known = f", stated to be right within a factor of {' to '.join(dict.fromkeys((stated[0], stated[-1])))}" if stated else ""
    return UNKNOWN_ENERGY if energy_j is None else NOT_VALIDATED + known


def fleet_name(fleet: str, title: str) -> str:
    """Return a fleet's name for people: its title, or the name of a fleet whose title is not known.

    >>> fleet_name("phone", "Phones, today's mix"), fleet_name("phone", "")
    ("“Phones, today's mix”", 'phone')
    """
    return f"“{title}”" if title else fleet


def contents(no_bundle: str) -> str:
    """Return the files and folders of a finished run that its user looks at first; ``no_bundle`` is why it has no bundle.

    >>> contents(""), contents("aten._linalg_svd.default has no ONNX form")
    ('report.html, bundle/, summary.json', 'report.html, summary.json')
    """
    return ", ".join(["report.html", *([] if no_bundle else ["bundle/"]), "summary.json"])


def taken_as(item: Taken) -> str:
    """Return a tier's name, with the micro-batch if it is not the run's own, and whether activations are computed again; "" for no tier.

    >>> from edgefl.report.run_rows import AssignmentStep
    >>> [taken_as(AssignmentStep(*step)) for step in ((0.5, 8, ()), (1, None, ()), (1, None, (), ("conv2",)))]
    ['0.5, 8 at once', '1', '1, recomputed']
    """
    if item.tier is None:
        return ""
    at_once, again = item.micro_batch, ", recomputed" if item.recompute else ""
    return tier_label(item.tier) + ("" if at_once is None else f", {at_once} at once") + again


def need_have(entry: BudgetUse | Shortfall) -> str:
    """Return what is needed and what there is of one budget: ``needs 2 MB, has 64 kB``."""
    return units.need_have(entry.budget, entry.need, entry.have, entry.clock_margin)


def budget_name(budget: str | None) -> str:
    """Return a budget's name for people; None gives an empty string."""
    return "" if budget is None else BUDGETS.get(budget, budget)


def names(values: Iterable[object]) -> str:
    """Return names as a list for people, or "none"."""
    return ", ".join(map(str, values)) or "none"


def uncounted(rows: Iterable[Record]) -> str:
    """Return the warning that some operations of tiers were not counted, or an empty string."""
    ops = [(value_of(row, "tier"), value_of(row, "uncounted_ops")) for row in rows]
    found = [f"tier {tier_label(tier)}: {names(of)}" for tier, of in ops if of]
    return f"Not counted, so no budget can be claimed met: {'; '.join(found)}" if found else ""


USEFUL = "trained"
NOT_VALIDATED = "not validated"
"""What is said of every joule: no published measurement of a training step's energy was found that could be checked."""
UNKNOWN_ENERGY = "unknown, because a device has no figures of energy"


@dataclass(frozen=True)
class Look:
    """How charts show a status, and what it means. Pattern and marker distinguish it without colour.

    Attributes:
        colour: a CSS variable.
        pattern: the strokes over its bars, or "".
        symbol: its marker: one of Vega's names, or an SVG path within (-1, 1).
        meaning: what happened to the client.
    """

    colour: str
    pattern: str
    symbol: str
    meaning: str


_X = "M-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0L-1,-.7Z"
_HOURGLASS = "M-1,-1H1L-1,1H1Z"
_BOWTIE = "M-1,-1V1L1,-1V1Z"
_STAR = "M0,-1L.22,-.31L.95,-.31L.36,.12L.59,.81L0,.38L-.59,.81L-.36,.12L-.95,-.31L-.22,-.31Z"

STATUSES = {
    "trained": Look("var(--trained)", "", "circle", "the server used its update"),
    "late": Look("var(--late)", "/", "triangle-right", "the round or its group had enough updates, or its deadline had passed"),
    "refused": Look("var(--refused)", "", "square", "nothing was sent to it"),
    "dropped": Look("var(--dropped)", "\\", _X, "an error, or the network failed"),
    "interrupted": Look(
        "var(--interrupted)", "-", _HOURGLASS, "its device stopped being eligible, or its owner used it, during training"
    ),
    "out_of_memory": Look("var(--out-of-memory)", "x", "diamond", "it went over its device's memory"),
    "out_of_time": Look("var(--out-of-time)", "|", _BOWTIE, "over the processor time that a client is allowed on this computer"),
    "crashed": Look("var(--crashed)", "+", _STAR, "its process died"),
    "diverged": Look("var(--diverged)", ".", "cross", "its update contains NaN or huge values"),
    "masked": Look(
        "var(--masked)", "v", "triangle-left", "too few clients of its group were left to unmask the sum of their updates"
    ),
}
UNKNOWN = Look("var(--soft)", "/", "stroke", "")


def look(status: str) -> Look:
    """Return what a status looks like; one that no version knows is grey."""
    return STATUSES.get(status, UNKNOWN)


def status_name(status: str) -> str:
    """Return a status as people write it: ``out of memory``."""
    return status.replace("_", " ")


def in_order(statuses: Iterable[str]) -> list[str]:
    """Return statuses in the order of every legend, those that no version knows last."""
    found = set(statuses)
    return [*(status for status in STATUSES if status in found), *sorted(found.difference(STATUSES))]


def summed(groups: Iterable[Totals]) -> Totals:
    """Return the sums of groups."""
    groups, names = list(groups), [of.name for of in fields(Totals)]
    starts = (0.0 if name.endswith(("_j", "_s")) else 0 for name in names)
    return Totals(*(known_sum([start, *(getattr(of, name) for of in groups)]) for start, name in zip(starts, names, strict=True)))  # type: ignore[arg-type]


def useful_and_wasted(groups: Sequence[Group]) -> tuple[Totals, Totals]:
    """Return the totals of useful and of wasted sessions; nothing is sent to refused clients."""
    useful = summed(group for group in groups if group.status == USEFUL)
    return useful, summed(group for group in groups if group.status not in (USEFUL, "refused"))


def groups_of(rounds: Iterable[RoundLine]) -> list[Group]:
    """Return the groups of all rounds."""
    return [group for line in rounds for group in line.groups]


def clients_of(rounds: Iterable[RoundLine]) -> list[ClientLine]:
    """Return the sessions of all rounds that list their clients."""
    return [client for line in rounds for client in line.clients]


def taken_by_status(rounds: Sequence[RoundLine]) -> dict[str, Totals]:
    """Return what clients of each status took over all rounds; nothing is sent to refused ones."""
    groups = [group for group in groups_of(rounds) if group.status != "refused"]
    statuses = in_order(group.status for group in groups)
    return {status: summed(group for group in groups if group.status == status) for status in statuses}


def counted(groups: Iterable[Group]) -> Counter[str]:
    """Return status → how many clients ended in it, from the groups of a round or of several."""
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group.status] += group.clients
    return counts


def statuses_of(summary: Summary) -> Counter[str]:
    """Return status → how many sessions of a run ended in it, over all device classes."""
    return sum((Counter(row.statuses) for row in summary.participation), Counter())


def begun(rounds: Iterable[RoundLine]) -> list[RoundLine]:
    """Return the rounds in which something was sent to a client. The others have no duration, so a median round leaves them out."""
    return [line for line in rounds if any(group.status != "refused" for group in line.groups)]


def trained_tiers(groups: Iterable[Group]) -> set[float]:
    """Return the tiers whose updates the server used, from the groups of a round or of several."""
    return {group.tier for group in groups if group.status == USEFUL and group.tier is not None}


def lost_text(counts: Mapping[str, int]) -> str:
    """Return how many were lost for which reason: ``2 dropped, 1 out of memory``; late and refused clients are not lost."""
    return counts_text({status: n for status, n in counts.items() if n and status not in (USEFUL, "late", "refused")})


def counts_text(counts: Mapping[str, int]) -> str:
    """Return how many clients ended in which status, in the order of every legend."""
    return ", ".join(f"{counts[status]:,} {status_name(status)}" for status in in_order(counts))
