"""Groups of clients for secure sums: who is in them, how long they wait for each other, and whether their sum can be read.

A group has clients of one tier and round only, because only vectors of one shape add up. A tier with fewer clients in a round than the
smallest group is not asked: its clients are refused, and free for the next round. A stage of the agreement lasts until its slowest client
has answered; if a client does not answer, it lasts until the server stops waiting. The last stage lasts until the server has enough shares.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from edgefl.contrib.secagg.graph import Graph, graph_of, masked_with, shortage, threshold_of, willing
from edgefl.contrib.secagg.masked import CLIPPED
from edgefl.contrib.secagg.messages import stages
from edgefl.contrib.secagg.protocol import SecureAggregation
from edgefl.contrib.secagg.vector import Coding
from edgefl.fleet.clock import trip_s
from edgefl.records import ClientRecord, Expected, Foreseen, Grouped, Observed, RoundTrip, Shortfall, Tier, Timing
from edgefl.rng import generator
from edgefl.server.assignment import ClassPlan
from edgefl.server.meeting import Closing
from edgefl.server.sessions import Session, retimed

Key = tuple[Tier, int]
"""Tier and number of a group."""


@dataclass(frozen=True)
class Grouping:
    """How the clients of a run form groups.

    Attributes:
        rules: the protocol and its parameters.
        seed: seed of the random groups and graphs.
    """

    rules: SecureAggregation
    seed: int

    def graph(self, turn: int, key: Key, members: Sequence[int]) -> Graph:
        """Return the neighbours of the members of a group in a round."""
        neighbours = None if self.rules.protocol == "secagg" else self.rules.neighbours
        return graph_of(sorted(members), neighbours, generator(self.seed, turn, "neighbours", key[0].label, key[1]))

    def coding(self, members: int, most: int) -> Coding:
        """Return how the values of a group of so many members become integers, if their weights are at most ``most``.

        ValueError: the bits are too few.
        """
        return Coding(self.rules.bits, members, self.rules.bound, most)

    def threshold(self, members: int) -> int:
        """Return the shares that give a secret in a group of so many members."""
        return threshold_of(self.rules.neighbours_in(members), self.rules.threshold)

    def sessions(self, turn: int, sessions: Sequence[Session]) -> list[Expected]:
        """Return what is expected of clients that agree on masks in groups, in their order; their last stage is not included yet."""
        of_tier: dict[Tier, list[Session]] = {}
        for session in sessions:
            if session.whole.tier is not None and session.whole.timing is not None:
                of_tier.setdefault(session.whole.tier, []).append(session)
        ended = {session.whole.client: session.whole for session in sessions}
        for tier, own in of_tier.items():
            sizes = self.rules.sizes(len(own))
            if not sizes:
                ended |= {session.whole.client: self._not_asked(session, len(own)) for session in own}
            drawn = generator(self.seed, turn, "groups", tier.label).permutation(len(own)).tolist()
            for number, size in enumerate(sizes):
                members, drawn = drawn[:size], drawn[size:]
                ended |= self._group(turn, (tier, number), [own[place] for place in sorted(members)])
        return [ended[session.whole.client] for session in sessions]

    def _not_asked(self, session: Session, clients: int) -> Expected:
        whole = session.whole
        assert whole.tier is not None
        short = Shortfall("group_clients", self.rules.least, clients, whole.device, whole.tier.ratio)
        nothing = replace(whole, timing=None, macs=0, download_bytes=0, upload_bytes=0)
        return replace(nothing, status="refused", refusal=(short,))

    def _group(self, turn: int, key: Key, members: Sequence[Session]) -> dict[int, Expected]:
        """Return client → what is expected of it, for the members of one group."""
        graph = self.graph(turn, key, [m.whole.client for m in members])
        threshold, limit_s = self.threshold(len(members)), self.rules.stage_s
        most = stages(*[self.rules.neighbours_in(len(members))] * 3)
        seconds = {m.whole.client: [trip_s(m.of_class.device, RoundTrip(*stage), m.link) for stage in most] for m in members}
        lasts = {m.whole.client: float("inf") if m.status == "expected" else m.end_s for m in members}
        keys = {c for c, (first, _, _) in seconds.items() if first <= min(limit_s, lasts[c])}
        second_s = {c: of[1] for c, of in seconds.items() if c in keys}
        sent = {c for c, taken_s in second_s.items() if taken_s <= limit_s and seconds[c][0] + taken_s <= lasts[c]}
        agreed = masked_with(graph, keys, sent, threshold)
        first_s = _barrier((of[0] for of in seconds.values()), len(keys) == len(members), limit_s)
        agree_s = first_s + _barrier(second_s.values(), sent == keys, limit_s)
        ended = {}
        for member in members:
            client = member.whole.client
            known, sharing = len(graph[client] & keys), len(graph[client] & agreed)
            first, second, _ = (RoundTrip(*stage) for stage in stages(known, sharing, 0))
            took = (first, second) if client in agreed else (first,) if client in keys else ()
            grouped = Grouped(key[1], took, seconds[client][2], "secure", client in agreed)
            waited_s = agree_s if client in agreed else first_s if client in keys else 0.0
            ended[client] = _ended(member, grouped, waited_s, limit_s)
        return ended

    def closed(self, turn: int, plan_of: Callable[[int], ClassPlan], records: Sequence[ClientRecord], round_s: float) -> Closing:
        """Return the end of a round with masked vectors that arrived within ``round_s``: all groups unmask their sums at once.

        Args:
            turn: number of the round.
            plan_of: client → the plan of its class.
            records: how every session has ended so far.
            round_s: seconds from the start of the round until the server waits for no more vectors.
        """
        ended, lines, last_s = {record.client: record for record in records}, list[Observed](), 0.0
        for key, members in groups_in(record.expected for record in records).items():
            end = self.ending(turn, key, members, {m.client for m in members if ended[m.client].status == "trained"})
            last_s = max(last_s, end.seconds)
            for client in end.vectors:
                ended[client] = _answered(ended[client], plan_of(client), end, round_s)
            lines.append(self._line(key, end, [ended[m.client] for m in members]))
        refused: dict[Tier, int] = {}
        for session in (record.expected for record in records):
            if session.tier is not None and any(short.budget == "group_clients" for short in session.refusal):
                refused[session.tier] = refused.get(session.tier, 0) + 1
        for tier, clients in refused.items():
            why = f"{clients} clients in this round, expected at least {self.rules.least}"
            lines.append({"tier": tier.number, "group": None, "clients": clients, "summed": False, "reason": why})
        records = tuple(ended[record.client] for record in records)
        return Closing(records, round_s + last_s, {"secure_aggregation": lines})

    def ending(self, turn: int, key: Key, members: Sequence[Expected], vectors: set[int]) -> "Ending":
        """Return how a group of ``members`` ends, if the masked vectors of the clients ``vectors`` arrived."""
        graph, threshold = self.graph(turn, key, [m.client for m in members]), self.threshold(len(members))
        agreed = {m.client for m in members if m.grouped is not None and m.grouped.agreed}
        own_s = {m.client: m.grouped.unmask_s for m in members if m.grouped is not None and m.client in vectors}
        in_time = {m.client for m in members if m.grouped is not None and m.grouped.answers}
        in_time &= {client for client, taken_s in own_s.items() if taken_s <= self.rules.stage_s}
        answers = willing(graph, vectors, in_time, threshold)
        if len(vectors) < self.rules.least:
            reason = f"{len(vectors)} masked vectors arrived, expected at least {self.rules.least}"
            return Ending(graph, threshold, agreed, vectors, set(), 0.0, reason)
        if reason := shortage(graph, agreed, vectors, answers, threshold):
            return Ending(graph, threshold, agreed, vectors, answers, self.rules.stage_s, reason)
        # The server needs no more answers than those that give every secret.
        ordered = sorted(answers, key=lambda client: (own_s[client], client))
        counts = range(len(ordered) + 1)
        enough = bisect_left(counts, True, key=lambda n: not shortage(graph, agreed, vectors, ordered[:n], threshold))
        return Ending(graph, threshold, agreed, vectors, answers, own_s[ordered[enough - 1]], "")

    def quota(self, expected: Iterable[Expected], over_selection: float, wanted: int) -> "_Vectors":
        """Return how many vectors of each group count: as many as were asked, divided by the over-selection, if so many agreed."""
        counts = {}
        for key, members in groups_in(expected).items():
            agreed = sum(m.grouped is not None and m.grouped.agreed for m in members)
            counts[key] = min(agreed, ceil(round(len(members) / over_selection, 6)))
        return _Vectors(counts)

    def _line(self, key: Key, end: "Ending", records: Sequence[ClientRecord]) -> Observed:
        """Return what a round's record says about a group; bytes are those of all messages but the masked vectors."""
        taken = [stage for record in records if record.expected.grouped for stage in record.expected.grouped.stages]
        clipped = [record.outcome.figures.get(CLIPPED, 0) for record in records if record.outcome is not None]
        return {
            "tier": key[0].number,
            "group": key[1],
            "clients": len(records),
            "agreed": len(end.agreed),
            "vectors": len(end.vectors),
            "answers": len(end.answers),
            "threshold": end.threshold,
            "summed": not end.reason,
            "reason": end.reason,
            "agree_s": max((r.expected.timing.agree_s for r in records if r.expected.timing), default=0.0),
            "unmask_s": end.seconds,
            "upload_bytes": sum(stage.upload_bytes for stage in taken),
            "download_bytes": sum(stage.download_bytes for stage in taken),
            "clipped_values": sum(clipped),
        }


class _Vectors:
    """How many more vectors the server waits for, by group."""

    def __init__(self, missing: dict[Key, int]) -> None:
        self._missing, self.wanted = missing, max(1, sum(missing.values()))

    def takes(self, session: Expected) -> bool:
        """Whether the group of a client lacks a vector."""
        lacks = self._missing[_group_of(session)] > 0
        self._missing[_group_of(session)] -= lacks
        return lacks

    def missed(self, session: Expected) -> None:
        """Count that the group of a client lacks its vector."""
        self._missing[_group_of(session)] += 1


def _group_of(session: Expected) -> Key:
    assert session.tier is not None  # only clients of a tier are asked
    assert session.grouped is not None
    return session.tier, session.grouped.group


class Ending(NamedTuple):
    """How a group ended.

    Attributes:
        graph: the neighbours of every member.
        threshold: shares that give a secret.
        agreed: the clients that agreed on masks.
        vectors: clients with a masked vector that arrived.
        answers: those that answered the last stage.
        seconds: how long the last stage took.
        reason: why the sum cannot be read; "" if it can.
    """

    graph: Graph
    threshold: int
    agreed: set[int]
    vectors: set[int]
    answers: set[int]
    seconds: float
    reason: str


def groups_in(expected: Iterable[Expected]) -> dict[Key, list[Expected]]:
    """Return the groups of a round, each with its members."""
    groups: dict[Key, list[Expected]] = {}
    for session in expected:
        if session.grouped is not None and session.tier is not None:
            groups.setdefault((session.tier, session.grouped.group), []).append(session)
    return groups


def _barrier(seconds: Iterable[float], all_answer: bool, limit_s: float) -> float:
    """Return how long a stage lasts: until the last answer, or until the server stops waiting."""
    return max(seconds, default=0.0) if all_answer else limit_s


def _ended(member: Session, grouped: Grouped, waited_s: float, limit_s: float) -> Expected:
    """Return a session with its agreement; ``waited_s``: until the last stage was over that the client took part in."""
    whole, timing = member.whole, member.whole.timing
    assert timing is not None
    lost = member.status != "expected"
    if not grouped.agreed:
        # It was lost, or did not answer in time: the server goes on without it.
        status: Foreseen = member.status if lost else "dropped"
        end_s = min(waited_s + limit_s, member.end_s) if lost else waited_s + limit_s
        bare = replace(whole, status=status, grouped=grouped, macs=0)
        bare = replace(bare, download_bytes=grouped.download_bytes, upload_bytes=grouped.upload_bytes)
        return retimed(member.of_class, bare, Timing(0.0, 0.0, 0.0, 0.0, 0.0, agree_s=end_s))
    later_s = waited_s - timing.agree_s
    if lost and member.end_s >= timing.total_s - timing.unmask_s:  # its vector had arrived
        lost, grouped = False, replace(grouped, answers=False)
    down_bytes, up_bytes = member.model_bytes
    sizes = down_bytes + grouped.download_bytes, up_bytes + grouped.upload_bytes
    whole = replace(whole, grouped=grouped, download_bytes=sizes[0], upload_bytes=sizes[1])
    whole = retimed(member.of_class, whole, replace(timing, agree_s=waited_s, unmask_s=0.0))
    status, end_s = (member.status, member.end_s + later_s) if lost else ("expected", whole.total_s)
    if member.until_s < end_s:  # waiting for others, it stopped being eligible
        status, end_s = "interrupted", member.until_s
    return replace(member, whole=whole, end_s=end_s, status=status).ended()


def _answered(record: ClientRecord, of_class: ClassPlan, end: Ending, round_s: float) -> ClientRecord:
    """Return the record of a client with a masked vector that arrived, with its wait for the others and its answer."""
    session = record.expected
    timing, grouped = session.timing, session.grouped
    assert timing is not None
    assert grouped is not None
    record = replace(record, unmasked=not end.reason)
    if session.client not in end.answers:
        return record
    neighbours = end.graph[session.client]
    last = RoundTrip(*stages(0, len(neighbours & end.agreed), len(neighbours & end.vectors))[2])
    sizes = session.download_bytes + last.download_bytes, session.upload_bytes + last.upload_bytes
    session = replace(session, grouped=replace(grouped, stages=(*grouped.stages, last)))
    session = replace(session, download_bytes=sizes[0], upload_bytes=sizes[1])
    unmask_s = round_s - timing.total_s + end.seconds
    return replace(record, expected=retimed(of_class, session, replace(timing, unmask_s=unmask_s)))
