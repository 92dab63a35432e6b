"""Jobs cut into bundles that are trained together, and outcomes put back into the order of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from edgefl.client.job import Job

T = TypeVar("T")

WINDOW = 4
"""At most this many times a full bundle are held while bundles fill: so many tiers, taking turns, still fill theirs."""


def kind(job: Job) -> Hashable:
    """Return what jobs of one bundle have in common: the phase of the method, the tier, the round, and how many samples go at once."""
    return id(job.method), job.tier, job.round, job.micro_batch, id(job.graphs)


def cut(items: Iterable[T], most: int, kind: Callable[[T], Hashable]) -> Iterator[list[tuple[int, T]]]:
    """Yield ``items``, numbered from 0, in lists of at most ``most`` of one kind.

    The lists depend on the items and their order only. A list goes when it is full, or when it is the oldest and more than
    ``WINDOW · most`` items are held; the rest go at the end, oldest first. With ``most`` 1 nothing is held.

    Args:
        items: taken one at a time, when the next list is asked for.
        most: at least 1.
        kind: items are alike where this is equal.

    >>> ["".join(item for _, item in bundle) for bundle in cut("aabaabcbb", 3, str)]
    ['aaa', 'bbb', 'a', 'c', 'b']
    """
    held: dict[Hashable, list[tuple[int, T]]] = {}  # in the order of their first items
    count = 0
    for number, item in enumerate(items):
        key = kind(item)
        bundle = held.setdefault(key, [])
        bundle.append((number, item))
        count += 1
        if len(bundle) < most:
            if count <= WINDOW * most:
                continue
            key = next(iter(held))
        count -= len(held[key])
        yield held.pop(key)
    yield from held.values()


def ordered(numbered: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yield what is numbered from 0 in the order of the numbers; what comes early is held.

    >>> list(ordered([(0, "a"), (2, "c"), (1, "b")]))
    ['a', 'b', 'c']
    """
    early: dict[int, T] = {}
    due = 0
    for number, item in numbered:
        early[number] = item
        while due in early:
            yield early.pop(due)
            due += 1
