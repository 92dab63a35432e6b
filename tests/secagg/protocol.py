"""The protocol of one group, played from the first message to the sum."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgefl.contrib.secagg.graph import graph_of, masked_with, threshold_of
from edgefl.contrib.secagg.group import MaskedGroup
from edgefl.contrib.secagg.member import Member, masked
from edgefl.contrib.secagg.vector import packed

CONTEXT = b"round 1"


def member(number: int, threshold: int = 2, seed: int = 0) -> Member:
    """Return a client whose secrets are drawn by a seed."""
    rng = np.random.default_rng([seed, number])
    return Member(number, CONTEXT, threshold, lambda count: rng.bytes(count))


@dataclass
class Played:
    """A group after some stages; ``sizes`` is client → bytes up and down of every stage."""

    members: dict[int, Member]
    server: MaskedGroup
    sizes: dict[int, list[tuple[int, int]]]


def agreed(
    count: int,
    bits: int,
    values: int,
    neighbours: int | None = None,
    share: float = 0.5,
    early: tuple[Collection[int], ...] = ((), ()),
) -> Played:
    """Return a group whose clients have agreed on masks; ``early``: the clients that are lost before they send keys, and shares."""
    graph = graph_of(range(count), neighbours, np.random.default_rng(count))
    threshold = threshold_of(len(graph[0]), share)
    members = {number: member(number, threshold) for number in range(count)}
    server = MaskedGroup(graph, CONTEXT, threshold, values, bits)
    sizes: dict[int, list[tuple[int, int]]] = {number: [] for number in members}
    keyed = [number for number in members if number not in early[0]]
    for number in keyed:
        keys = members[number].keys()
        server.add_keys(number, keys)
        sizes[number].append((len(keys), 0))
    sent = masked_with(graph, keyed, [number for number in keyed if number not in early[1]], threshold)
    for number in keyed:
        keys = server.keys_for(number)
        sizes[number][0] = (64, len(keys))
        if number in sent:
            shares = members[number].shares(keys)
            server.add_shares(number, shares)
            sizes[number].append((len(shares), 0))
    for number in sent:
        shares = server.shares_for(number)
        members[number].receive(shares)
        sizes[number][1] = (sizes[number][1][0], len(shares))
    return Played(members, server, sizes)


def summed(played: Played, vectors: dict[int, np.ndarray], silent: Collection[int] = ()) -> np.ndarray:
    """Return the sum of the masked ``vectors`` without masks; ``silent`` clients do not answer the last stage."""
    server, bits = played.server, played.server.bits
    for number, vector in vectors.items():
        server.add_vector(number, packed(masked(vector, played.members[number].masks()), bits))
    for number in vectors:
        if number not in silent:
            arrived = server.arrived_for(number)
            answer = played.members[number].unmask(arrived)
            played.sizes[number].append((len(answer), len(arrived)))
            server.add_answer(number, answer)
    return server.total()


uint32 = partial(np.asarray, dtype=np.uint32)
