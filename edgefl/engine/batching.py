"""Jobs cut into batches that are trained together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from edgefl.client.job import Job
from edgefl.client.messages import Setups

T = TypeVar("T")

WINDOW = 4
"""Batches fill side by side until this many times a full batch is held, so that tiers which take turns fill theirs."""


def batches_of(jobs: Iterable[Job], most: int) -> Iterator[list[tuple[int, Job]]]:
    """Yield ``jobs``, numbered from 0, in batches of at most ``most`` that can be trained together."""
    setups = Setups()
    return cut(jobs, most, lambda job: kind(job, setups))


def kind(job: Job, setups: Setups) -> Hashable:
    """Return what the jobs of a batch have in common: setup, round, and how many samples pass the network at once."""
    return setups.of(job).header.digest, job.round, job.micro_batch


def cut(items: Iterable[T], most: int, kind: Callable[[T], Hashable]) -> Iterator[list[tuple[int, T]]]:
    """Yield ``items``, numbered from 0, in lists of at most ``most`` of one kind.

    The lists depend on the items and their order only. A list is yielded when it is full, or when it is the oldest and more than
    ``WINDOW · most`` items are held. The rest is yielded at the end, oldest first. With ``most`` 1 nothing is held.

    Args:
        items: pulled one at a time, when the next list is asked for.
        most: at least 1.
        kind: items are alike if this is equal.

    >>> ["".join(item for _, item in batch) for batch in cut("aabaabcbb", 3, str)]
    ['aaa', 'bbb', 'a', 'c', 'b']
    """
    held: dict[Hashable, list[tuple[int, T]]] = {}  # in the order of their first items
    count = 0
    for number, item in enumerate(items):
        key = kind(item)
        batch = held.setdefault(key, [])
        batch.append((number, item))
        count += 1
        if len(batch) < most:
            if count <= WINDOW * most:
                continue
            key = next(iter(held))
        count -= len(held[key])
        yield held.pop(key)
    yield from held.values()
