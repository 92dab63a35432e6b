"""The engine without workers, which trains clients in this process, and the batches that engines cut jobs into."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Self, TypeVar

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.client.messages import Setups
from edgefl.records import Outcome
from edgefl.registry import engine

T = TypeVar("T")

WINDOW = 4
"""Batches fill side by side until this many times a full batch is held, so that tiers which take turns fill theirs."""


def batches_of(jobs: Iterable[Job], most: int) -> Iterator[list[tuple[int, Job]]]:
    """Yield ``jobs``, numbered from 0, in batches of at most ``most`` that can be trained together."""
    return cut(jobs, most, partial(kind, Setups()))


def kind(setups: Setups, job: Job) -> Hashable:
    """Return what the jobs of a batch have in common: setup, round, and how many samples pass the network at once."""
    return setups.of(job)[0].digest, job.round, job.micro_batch


def cut(items: Iterable[T], most: int, kind: Callable[[T], Hashable]) -> Iterator[list[tuple[int, T]]]:
    """Yield ``items``, numbered from 0, in lists of at most ``most`` (1 or more) whose ``kind`` is equal.

    The lists depend on the items and their order only. A list is yielded when it is full, or when it is the oldest and more than
    ``WINDOW · most`` items are held. The rest is yielded at the end, oldest first. Items are pulled one at a time, as lists are asked for.

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


class InlineEngine:
    """Runs every job here, one after the other, or at most ``together`` of one kind at once."""

    def __init__(self, clients: Clients, together: int = 1) -> None:
        self._clients, self._together = clients, together

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and the outcome of every job."""
        for batch in batches_of(jobs, self._together):
            yield from zip([number for number, _ in batch], self._clients.run_all([job for _, job in batch]), strict=True)


@engine("inline")
def inline(clients: Clients, workers: int) -> InlineEngine:
    """Return the engine of this process."""
    return InlineEngine(clients)
