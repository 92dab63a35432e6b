"""How clients' parts in a round end: one name, colour and pattern per status in every chart, and sums over rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

USEFUL = "trained"
WORK = ("clients", "macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j", "device_s")
"""What is summed, under the names of :class:`edgefl.records.Totals`."""


@dataclass(frozen=True)
class Look:
    """What a status looks like and means; the pattern and the symbol tell it apart without its colour.

    Attributes:
        colour: a CSS variable.
        pattern: the strokes over its bars, written as they look; empty for plain bars.
        symbol: its marker: one of Vega's names, or an SVG path within (-1, 1).
        meaning: what happened, for people.
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
    "late": Look("var(--late)", "/", "triangle-right", "done after the round had closed"),
    "refused": Look("var(--refused)", "", "square", "nothing was sent to it"),
    "dropped": Look("var(--dropped)", "\\", _X, "an error, or the network failed"),
    "interrupted": Look("var(--interrupted)", "-", _HOURGLASS, "its owner or its charger took it away in mid-training"),
    "out_of_memory": Look("var(--out-of-memory)", "x", "diamond", "it went over its device's memory"),
    "out_of_time": Look("var(--out-of-time)", "|", _BOWTIE, "over the processor time that a client is allowed on this computer"),
    "crashed": Look("var(--crashed)", "+", _STAR, "its process died"),
    "diverged": Look("var(--diverged)", ".", "cross", "its weights are no numbers"),
}
UNKNOWN = Look("var(--soft)", "/", "stroke", "")


def look(status: str) -> Look:
    """Return what a status looks like; one that no version knows is grey."""
    return STATUSES.get(status, UNKNOWN)


def status_name(status: str) -> str:
    """Return a status as people write it.

    >>> status_name("out_of_memory")
    'out of memory'
    """
    return status.replace("_", " ")


def in_order(statuses: Iterable[str]) -> list[str]:
    """Return statuses in the order of every legend, those that no version knows last.

    >>> in_order({"dropped", "of-the-future", "trained"})
    ['trained', 'dropped', 'of-the-future']
    """
    found = set(statuses)
    return [*(status for status in STATUSES if status in found), *sorted(found.difference(STATUSES))]


def summed(groups: Iterable[Json]) -> dict[str, Any]:
    """Return the sums of groups under the names of :class:`edgefl.records.Totals`."""
    total: dict[str, Any] = {key: 0.0 if key.endswith(("_j", "_s")) else 0 for key in WORK}
    for group in groups:
        for key in WORK:
            total[key] += group[key]
    return total


def work_of(rounds: Iterable[Json], wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return what the clients took, over all rounds, whose status is ``wanted``."""
    return summed(group for record in rounds for group in record["groups"] if wanted(group["status"]))


def by_status(rounds: Sequence[Json]) -> dict[str, dict[str, Any]]:
    """Return what each status took over all rounds."""
    groups = [group for record in rounds for group in record["groups"]]
    return {
        status: summed(group for group in groups if group["status"] == status)
        for status in in_order(group["status"] for group in groups)
    }


def sessions_of(record: Json) -> Counter[str]:
    """Return how many of a round's clients ended in each status."""
    counts: Counter[str] = Counter()
    for group in record["groups"]:
        counts[group["status"]] += group["clients"]
    return counts


def lost_text(counts: Mapping[str, int]) -> str:
    """Return how many were lost for which reason, for people; late, refused and trained ones are not lost.

    >>> lost_text({"trained": 3, "dropped": 2, "out_of_memory": 1})
    '2 dropped, 1 out of memory'
    """
    lost = [status for status in in_order(counts) if status not in (USEFUL, "late", "refused") and counts[status]]
    return ", ".join(f"{counts[status]:,} {status_name(status)}" for status in lost)
