"""One round on its clock, a simulated or a real one: a line per client, from its download to its upload, or to where it was lost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgefl.report.chart import Chart, Json, Spec, clock_unit, layer, layered, legend, number, slots
from edgefl.report.round_lines import ClientLine, RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.words import STATUSES, USEFUL, counted, look, lost_text, status_name, taken_as
from edgefl.util.units import human_seconds

MOST_LINES = 40
MOST_ROUNDS = 8
_PHASES = {"download": "var(--part-1)", "training": "var(--part-2)", "upload": "var(--part-3)"}
_WAITS = "var(--part-0)", "var(--tier-4)"
"""The colours of waits before and after the phases."""
_CUT = 3.0
"""A chart ends at so many times the round: a straggler would make all others too short to see."""


class Timelines(NamedTuple):
    """The rounds that a page can show: a chart and a label for each, and the position of the one that the page shows first."""

    charts: tuple[Chart, ...]
    labels: tuple[str, ...]
    chosen: int


@dataclass(frozen=True)
class Line:
    """One client's part in a round: ``how`` names tier and state, ``phases_s`` are the seconds of each phase by its name."""

    client: int
    device: str
    how: str
    status: str
    start_s: float
    phases_s: Mapping[str, float]

    @property
    def end_s(self) -> float:
        """When it was done, or lost."""
        return self.start_s + sum(self.phases_s.values())


def timelines(summary: AnySummary, rounds: Sequence[RoundLine]) -> Timelines:
    """Return charts of the rounds with the most different outcomes, the first and the last of those that list clients among them."""
    seen = [line for line in rounds if lines_of(line)]
    if not seen:
        sentence = "No record of a round says what its clients did when, so there is no timeline to draw."
        return Timelines((Chart("timeline", "No timeline", sentence, None),), ("none",), 0)
    varied = sorted(seen, key=lambda line: -len(counted(line.groups)))
    picked = {line.round: line for line in (varied[0], seen[0], seen[-1], *varied)}
    shown = sorted(list(picked.values())[:MOST_ROUNDS], key=lambda line: line.round)
    labels = tuple(map(_label, shown))
    return Timelines(tuple(timeline(summary, line) for line in shown), labels, shown.index(varied[0]))


def lines_of(record: RoundLine) -> list[Line]:
    """Return the clients of a round to which something was sent."""
    begin_s = record.clock_s - record.round_s
    return [
        Line(
            client=client.client,
            device=client.device,
            how=", ".join(filter(None, ["" if client.tier is None else f"tier {taken_as(client)}", client.state])),
            status=client.status,
            start_s=client.start_s - begin_s,
            phases_s=_seconds(client),
        )
        for client in record.clients
        if client.status != "refused" and client.download_s is not None
    ]


def _seconds(client: ClientLine) -> dict[str, float]:
    before, after = client.waits_s
    phases = {"download": client.download_s, "training": client.train_s, "upload": client.upload_s}
    found = {**before, **phases, **after}
    return {phase: length_s for phase, length_s in found.items() if length_s is not None}


def _label(record: RoundLine) -> str:
    """Return a round's number and how many of its clients trained, short enough for a phone."""
    counts = counted(record.groups)
    return f"{record.round}: {counts[USEFUL]:,} of {counts.total():,} trained"


def timeline(summary: AnySummary, record: RoundLine) -> Chart:
    """Return the chart of one round, whose record lists its clients."""
    lines, titles = lines_of(record), summary.titles
    picked = pick(lines)
    sentences = [_closed(record), _refused(titles, record)]
    if record.waited_s:
        what = "for the calendar and for clients" if record.began else "for clients to become eligible"
        sentences.append(f"Before it, the server waited {human_seconds(record.waited_s)} {what}.")
    if len(picked) < len(lines):
        sentences.append(f"Drawn are {len(picked)} of {len(lines):,} clients: some of every class and outcome.")
    longest_s, round_s = max(line.end_s for line in lines), record.round_s
    end_s = min(longest_s, _CUT * round_s) if round_s else longest_s
    limits, deadline_s = {"the round closes": round_s}, record.deadline_s
    if deadline_s is not None and (_is_step(record) or deadline_s > 2 * max(end_s, round_s)):
        where = "is each client's own" if _is_step(record) else "lies beyond the chart"
        sentences.append(f"Its deadline, {human_seconds(deadline_s)}, {where}.")
    elif deadline_s and abs(deadline_s - round_s) <= 1e-3 * deadline_s:
        limits = {"the round closes at its deadline": round_s}
    elif deadline_s is not None:
        limits["deadline"] = deadline_s
    spec = _spec(titles, picked, limits, end_s)
    return Chart(f"timeline-{record.round}", f"Round {record.round}", " ".join(filter(None, sentences)), spec)


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


def _spec(titles: Mapping[str, str], lines: Sequence[Line], limits: Mapping[str, float], end_s: float) -> Spec:
    """Return the lines of a round under the names of their classes, each class from early to late."""
    devices = [*titles, *sorted({line.device for line in lines}.difference(titles))]
    ordered = sorted(lines, key=lambda line: (line.end_s, line.client))
    groups = {device: own for device in devices if (own := [line for line in ordered if line.device == device])}
    places = slots([(titles.get(device, device), [str(line.client) for line in own]) for device, own in groups.items()])
    widest_s = max(end_s, *limits.values())
    unit, unit_s = clock_unit(widest_s)
    placed = [pair for own, of in zip(groups.values(), places.of, strict=True) for pair in zip(own, of, strict=True)]
    bars = [row for line, slot in placed for row in _phases(line, slot, unit_s)]
    ends = [_end(line, slot, end_s, unit_s) for line, slot in placed if line.status != USEFUL]
    # Reasons are written to the right of where lines end, so they need room there.
    left = min(0.0, *(line.start_s for line in lines)) / unit_s
    right = max(widest_s * 1.03 / unit_s, *(1.25 * end["at"] for end in ends), 0.0)
    x = number("start", f"time in the round ({unit})", scale={"domain": [left, right], "nice": False})
    at, y = {**x, "field": "at"}, places.y
    looks = {end["series"]: look(end["series"]) for end in ends}
    colours, shapes = (legend({name: getattr(of, key) for name, of in looks.items()}, False) for key in ("colour", "symbol"))
    bar = {"type": "bar", "clip": True, "stroke": "var(--soft)", "strokeWidth": 0.5}
    rules = [{"at": limit_s / unit_s, "series": name} for name, limit_s in limits.items()]
    closes = {name: name == "the round closes" for name in limits}
    strokes = legend({name: "var(--ink)" if solid else "var(--refused)" for name, solid in closes.items()}, True)
    dashes = legend({name: [1, 0] if solid else [6, 4] for name, solid in closes.items()}, True)
    text = {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "fontSize": 11}
    span = {"x": x, "x2": "end", "y": y, "tooltip": "told"}
    hatch = {"field": "hatch", "type": "nominal", "scale": None}
    return layered(
        {"step": 20},
        layer(bar, bars, **span, fill=legend(_colours(lines))),
        layer(bar, [row for row in bars if row["hatch"]], **span, fill=hatch),
        layer({"type": "rule", "strokeWidth": 1.5}, rules, x=at, stroke=strokes, strokeDash=dashes),
        layer({"type": "point", "filled": True, "size": 60}, ends, x=at, y=y, color=colours, shape=shapes),
        layer(text, ends, x=at, y=y, text="reason"),
        places.heads,
    )


def _colours(lines: Sequence[Line]) -> dict[str, str]:
    """Return phase → colour; a wait is there if some client has it."""
    seen = dict.fromkeys(phase for line in lines for phase in line.phases_s)
    waits = [phase for phase in seen if phase not in _PHASES]
    before = [phase for phase in waits if phase == next(iter(seen))]
    return {**dict.fromkeys(before, _WAITS[0]), **_PHASES, **{phase: _WAITS[1] for phase in waits if phase not in before}}


def _phases(line: Line, slot: str, unit_s: float) -> list[Json]:
    """Return a row per phase of a client; ``hatch`` is the pattern of wasted work, else empty."""
    told = ", ".join(filter(None, [f"client {line.client}", line.how, status_name(line.status)]))
    hatch = "" if line.status == USEFUL else f"url(#hatch-{line.status if line.status in STATUSES else 'unknown'})"
    rows: list[Json] = []
    start_s = line.start_s
    for phase, length_s in line.phases_s.items():
        span = {"start": start_s / unit_s, "end": (start_s + length_s) / unit_s}
        rows.append({"slot": slot, "series": phase, **span, "hatch": hatch, "told": f"{told}: {phase} {human_seconds(length_s)}"})
        start_s += length_s
    return rows


def _end(line: Line, slot: str, end_s: float, unit_s: float) -> Json:
    """Return where a line ends and why; beyond the end of the chart, also when."""
    when = f", {human_seconds(line.end_s)}" if line.end_s > end_s else ""
    return {"slot": slot, "at": min(line.end_s, end_s) / unit_s, "series": line.status, "reason": status_name(line.status) + when}


def _is_step(record: RoundLine) -> bool:
    """Whether the server steps whenever enough clients answered: deadlines are then each client's own."""
    return any(client.staleness is not None for client in record.clients)


def _closed(record: RoundLine) -> str:
    counts = Counter({status: n for status, n in counted(record.groups).items() if status != "refused"})
    late, lost = counts["late"], counts.total() - counts[USEFUL] - counts["late"]
    whole = "all" if counts[USEFUL] == counts.total() else f"{counts[USEFUL]:,} of"
    after = human_seconds(record.round_s)
    stepped = f"ended with a step of the server, {after} after the one before, on"
    when = stepped if _is_step(record) else f"closed after {after} with"
    parts = [f"{late:,} {_were(late)} late"] * bool(late) + [f"{lost:,} {_were(lost)} lost ({lost_text(counts)})"] * bool(lost)
    return f"Round {record.round} {when} {whole} {counts.total():,}{'; ' * bool(parts)}{', '.join(parts)}."


def _refused(titles: Mapping[str, str], record: RoundLine) -> str:
    refused = Counter(client.device for client in record.clients if client.status == "refused")
    if not refused:
        return ""
    named = ", ".join(f"{count:,} of class {titles.get(device, device)}" for device, count in refused.items())
    return f"{refused.total():,} more {_were(refused.total())} refused, so nothing was sent: {named}."


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
