"""How clients' parts in a round end: one name, colour and pattern per status in every chart, and sums over rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
Figure = dict[str, Any]

USEFUL = "trained"
WORK = ("clients", "macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j", "device_s")
"""What is summed, under the names of :class:`edgefl.records.Totals`."""


@dataclass(frozen=True)
class Look:
    """What a status looks like and means. The pattern and the symbol tell it apart where colours do not."""

    colour: str
    pattern: str
    symbol: str
    meaning: str


STATUSES = {
    "trained": Look("var(--trained)", "", "circle", "the server used its update"),
    "late": Look("var(--late)", "/", "triangle-right", "done after the round had closed"),
    "refused": Look("var(--refused)", "", "square", "nothing was sent to it"),
    "dropped": Look("var(--dropped)", "\\", "x", "an error, or the network failed"),
    "interrupted": Look("var(--interrupted)", "-", "hourglass", "its owner or its charger took it away in mid-training"),
    "out_of_memory": Look("var(--out-of-memory)", "x", "diamond", "it went over its device's memory"),
    "out_of_time": Look("var(--out-of-time)", "|", "bowtie", "over the processor time that a client is allowed on this computer"),
    "crashed": Look("var(--crashed)", "+", "star", "its process died"),
    "diverged": Look("var(--diverged)", ".", "cross", "its weights are no numbers"),
}
_UNKNOWN = Look("var(--soft)", "/", "circle-open", "")


def look(status: str) -> Look:
    """Return what a status looks like; one that no version knows is grey."""
    return STATUSES.get(status, _UNKNOWN)


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


def bar_of(status: str) -> Figure:
    """Return the trace of a status in a bar chart, without its values."""
    pattern = {"shape": look(status).pattern, "fillmode": "overlay", "fgcolor": "var(--card)", "size": 6}
    return {"type": "bar", "name": status_name(status), "marker": {"color": look(status).colour, "pattern": pattern}}


def groups_of(record: Json) -> list[Json]:
    """Return the sums of a round over clients of one device, tier and status each.

    Records of older versions list clients only; what such a line does not say is 0.
    """
    if "groups" in record:
        return list(record["groups"])
    return [_alone(client) for client in record.get("clients", ())]


def _alone(client: Json) -> Json:
    return {
        "device": client["device"],
        "tier": client.get("tier"),
        "status": client["status"],
        "clients": 1,
        **{key: client.get(key) or 0 for key in ("macs", "download_bytes", "upload_bytes")},
        "energy_j": client.get("energy_j") or 0.0,
        "end_to_end_j": client.get("end_to_end_j") or 0.0,
        "device_s": client.get("total_s") or 0.0,
    }


def summed(groups: Iterable[Json]) -> dict[str, Any]:
    """Return the sums of groups under the names of :class:`edgefl.records.Totals`."""
    total: dict[str, Any] = {key: 0.0 if key.endswith(("_j", "_s")) else 0 for key in WORK}
    for group in groups:
        for key in WORK:
            total[key] += group[key]
    return total


def work_of(rounds: Iterable[Json], wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return what the clients took, over all rounds, whose status is ``wanted``."""
    return summed(group for record in rounds for group in groups_of(record) if wanted(group["status"]))


def by_status(rounds: Sequence[Json]) -> dict[str, dict[str, Any]]:
    """Return what each status took over all rounds."""
    groups = [group for record in rounds for group in groups_of(record)]
    return {
        status: summed(group for group in groups if group["status"] == status)
        for status in in_order(group["status"] for group in groups)
    }


def sessions_of(record: Json) -> Counter[str]:
    """Return how many of a round's clients ended in each status."""
    counts: Counter[str] = Counter()
    for group in groups_of(record):
        counts[group["status"]] += group["clients"]
    return counts


def lost_text(counts: Mapping[str, int]) -> str:
    """Return how many were lost for which reason, for people; late, refused and trained ones are not lost.

    >>> lost_text({"trained": 3, "dropped": 2, "out_of_memory": 1})
    '2 dropped, 1 out of memory'
    """
    lost = [status for status in in_order(counts) if status not in (USEFUL, "late", "refused") and counts[status]]
    return ", ".join(f"{counts[status]:,} {status_name(status)}" for status in lost)
