"""One round on the simulated clock: a line per client, from its download to its upload, or to where it was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.report.plot import Chart
from edgefl.report.statuses import USEFUL, in_order, lost_text, sessions_of, status_name
from edgefl.report.timeline_figure import Line, deadline_shown, is_step, shown_s, timeline_figure
from edgefl.report.words import taken_as
from edgefl.util.units import human_seconds

Json = Mapping[str, Any]
MOST_LINES = 40
MOST_ROUNDS = 8


@dataclass(frozen=True)
class Timelines:
    """The rounds that can be looked at; ``labels`` are those of the charts, ``chosen`` the number of the one that is shown first."""

    charts: tuple[Chart, ...]
    labels: tuple[str, ...]
    chosen: int


def timelines(summary: Json, rounds: Sequence[Json]) -> Timelines:
    """Return charts of the rounds in which most different things happened, among them the first and the last.

    Only rounds count whose records list clients, and in which something was sent to one.
    """
    seen = [record for record in rounds if lines_of(record)]
    if not seen:
        sentence = "No record of a round says what its clients did when, so there is no timeline to draw."
        return Timelines((Chart("timeline", "No timeline", sentence, None),), ("none",), 0)
    best = max(seen, key=_variety)
    rest = sorted(seen, key=lambda record: -_variety(record))
    picked = {record["round"]: record for record in (best, seen[0], seen[-1], *rest)}
    shown = sorted(list(picked.values())[:MOST_ROUNDS], key=lambda record: int(record["round"]))
    return Timelines(
        charts=tuple(timeline(summary, record) for record in shown),
        labels=tuple(f"{record['round']}: {_counts(record)}" for record in shown),
        chosen=[record["round"] for record in shown].index(best["round"]),
    )


def lines_of(record: Json) -> list[Line]:
    """Return the clients of a round to which something was sent; those of older versions all start with the round."""
    begin_s = record["clock_s"] - record.get("round_s", 0.0)
    return [
        Line(
            client=client["client"],
            device=client["device"],
            how=_how(client),
            status=client["status"],
            start_s=client.get("start_s", begin_s) - begin_s,
            phases_s=(client["download_s"], client["train_s"], client["upload_s"]),
        )
        for client in record.get("clients", ())
        if client["status"] != "refused" and client.get("download_s") is not None
    ]


def _how(client: Json) -> str:
    """Return which tier a client took, how, and what its device was in."""
    told = [] if client.get("tier") is None else [f"tier {taken_as(client)}"]
    return ", ".join([*told, *filter(None, [client.get("state")])])


def timeline(summary: Json, record: Json) -> Chart:
    """Return the chart of one round, whose record lists its clients."""
    lines = lines_of(record)
    picked = pick(lines)
    sentences = [_closed(record), _refused(summary, record)]
    if record.get("waited_s"):
        sentences.append(f"Before it, the server waited {human_seconds(record['waited_s'])} for clients to become eligible.")
    if len(picked) < len(lines):
        sentences.append(f"Drawn are {len(picked)} of {len(lines):,} clients: some of every class and outcome.")
    end_s = shown_s(record, lines)
    if (deadline_s := record.get("deadline_s")) is not None and deadline_shown(record, end_s) is None:
        where = "is each client's own" if is_step(record) else "lies beyond the chart"
        sentences.append(f"Its deadline, {human_seconds(deadline_s)}, {where}.")
    figure = timeline_figure(summary, record, picked, end_s)
    return Chart(f"timeline-{record['round']}", f"Round {record['round']}", " ".join(filter(None, sentences)), figure)


def pick(lines: Sequence[Line], most: int = MOST_LINES) -> list[Line]:
    """Return at most ``most`` lines: of every class and outcome at least one, else in proportion, from early to late."""
    if len(lines) <= most:
        return list(lines)
    strata: dict[tuple[str, str], list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line.end_s, line.client)):
        strata.setdefault((line.device, line.status), []).append(line)
    quotas = {key: max(1, most * len(own) // len(lines)) for key, own in strata.items()}
    while sum(quotas.values()) > most and max(quotas.values()) > 1:
        quotas[max(quotas, key=quotas.__getitem__)] -= 1
    picked = []
    for key, own in strata.items():
        quota = min(quotas[key], len(own))
        picked += [own[number * (len(own) - 1) // max(1, quota - 1)] for number in range(quota)]
    return picked[:most]


def _variety(record: Json) -> int:
    return len(sessions_of(record))


def _counts(record: Json) -> str:
    counts = sessions_of(record)
    return ", ".join(f"{counts[status]:,} {status_name(status)}" for status in in_order(counts))


def _closed(record: Json) -> str:
    counts = Counter({status: n for status, n in sessions_of(record).items() if status != "refused"})
    lost = counts.total() - counts[USEFUL] - counts["late"]
    whole = "all" if counts[USEFUL] == counts.total() else f"{counts[USEFUL]:,} of"
    after = human_seconds(record.get("round_s"))
    when = (
        f"closed after {after} with"
        if not is_step(record)
        else f"ended with a step of the server, {after} after the one before, on"
    )
    sentence = f"Round {record['round']} {when} {whole} {counts.total():,}"
    parts = []
    if counts["late"]:
        parts.append(f"{counts['late']:,} {_were(counts['late'])} late")
    if lost:
        parts.append(f"{lost:,} {_were(lost)} lost ({lost_text(counts)})")
    return "; ".join([sentence, ", ".join(parts)] if parts else [sentence]) + "."


def _refused(summary: Json, record: Json) -> str:
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    refused = Counter(c["device"] for c in record.get("clients", ()) if c["status"] == "refused")
    if not refused:
        return ""
    named = ", ".join(f"{count:,} of class {titles.get(device, device)}" for device, count in refused.items())
    return f"{refused.total():,} more {_were(refused.total())} refused, so nothing was sent: {named}."


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
