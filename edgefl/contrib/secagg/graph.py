"""Who shares masks with whom, and whether the clients that are left can unmask the sum."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

Graph = Mapping[int, frozenset[int]]
"""Client → its neighbours."""


def graph_of(members: Sequence[int], neighbours: int | None, rng: np.random.Generator) -> Graph:
    """Return a random graph in which every member has ``neighbours``, an even number; None, or too many: all are neighbours (SecAgg).

    The members stand in a circle in a random order, and each is joined to the nearest ones: a Harary graph, as in SecAgg+ (Bell et al.
    2020).

    >>> graph = graph_of(range(9), 4, np.random.default_rng(0))
    >>> {len(of) for of in graph.values()}, all(one in graph[other] for one, of in graph.items() for other in of)
    ({4}, True)
    """
    if neighbours is None or neighbours >= len(members) - 1:
        return {member: frozenset(members) - {member} for member in members}
    circle = [members[place] for place in rng.permutation(len(members)).tolist()]
    steps = [step for distance in range(1, neighbours // 2 + 1) for step in (distance, -distance)]
    return {member: frozenset(circle[(at + step) % len(circle)] for step in steps) for at, member in enumerate(circle)}


def threshold_of(neighbours: int, share: float) -> int:
    """Return the shares that give a secret: more than ``share`` of those of a client and its neighbours, at least 2.

    >>> threshold_of(9, 0.5), threshold_of(9, 2 / 3)
    (6, 7)
    """
    return max(2, min(neighbours + 1, int((neighbours + 1) * share) + 1))


def masked_with(graph: Graph, keys: Collection[int], sent: Collection[int], threshold: int) -> set[int]:
    """Return the clients that agree on masks.

    Args:
        graph: the neighbours of all members.
        keys: those that sent their keys.
        sent: those of ``keys`` that lasted until they had sent shares.
        threshold: shares that give a secret. A client with fewer possible holders of its shares sends none.
    """
    present = set(keys)
    return {member for member in sent if len(graph[member] & present) + 1 >= threshold}


def willing(graph: Graph, vectors: Collection[int], answers: Collection[int], threshold: int) -> set[int]:
    """Return those of ``answers`` that reveal shares: a client refuses if too few ``vectors`` of its neighbours arrived."""
    present = set(vectors)
    return {member for member in answers if len(graph[member] & present) + 1 >= threshold}


def shortage(graph: Graph, agreed: Collection[int], vectors: Collection[int], answers: Collection[int], threshold: int) -> str:
    """Return why the sum of ``vectors`` cannot be unmasked; "" if it can.

    Args:
        graph: the neighbours of all members.
        agreed: the clients that agreed on masks.
        vectors: those of ``agreed`` whose masked vectors arrived.
        answers: those of ``vectors`` that answer the last stage.
        threshold: shares that give a secret.

    >>> complete = graph_of(range(4), None, np.random.default_rng(0))
    >>> shortage(complete, range(4), range(3), range(3), 3), shortage(complete, range(4), range(3), range(2), 3)
    ('', '2 shares of the secrets of client 0 arrived, expected 3')
    """
    present, replying = set(vectors), willing(graph, vectors, answers, threshold)
    for member in sorted(agreed):
        if member not in present and not graph[member] & present:
            continue  # nobody's vector has a mask in common with it
        holders = len((graph[member] | ({member} & present)) & replying)
        if holders < threshold:
            return f"{holders} shares of the secrets of client {member} arrived, expected {threshold}"
    return ""
