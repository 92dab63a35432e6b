"""The engine that trains clients in this process, and how engines divide jobs into batches."""

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
"""So many full batches are held at most, so that the batches of tiers that take turns can fill side by side."""


def batches_of(jobs: Iterable[Job], most: int) -> Iterator[list[tuple[int, Job]]]:
    """Yield ``jobs``, numbered from 0, in batches of at most ``most`` that can be trained together."""
    return cut(jobs, most, partial(kind, Setups()))


def kind(setups: Setups, job: Job) -> Hashable:
    """Return what the jobs of a batch have in common: setup, round, samples per pass, and what is recomputed."""
    return setups.of(job)[0].digest, job.round, job.micro_batch, job.recompute


def cut(items: Iterable[T], most: int, kind: Callable[[T], Hashable]) -> Iterator[list[tuple[int, T]]]:
    """Yield ``items``, numbered from 0, in lists of at most ``most`` (1 or more) whose ``kind`` is equal.

    The lists depend on the items and their order only. A list is yielded when it is full, or when it is the oldest and more than
    ``WINDOW · most`` items are held. The others follow at the end, oldest first. Items are pulled one at a time, when a list is requested.

    >>> ["".join(item for _, item in batch) for batch in cut("aabaabcbb", 3, str)]
    ['aaa', 'bbb', 'a', 'c', 'b']
    """
    waiting: dict[Hashable, list[tuple[int, T]]] = {}  # in the order of their first items
    count = 0
    for number, item in enumerate(items):
        key = kind(item)
        batch = waiting.setdefault(key, [])
        batch.append((number, item))
        count += 1
        if len(batch) < most:
            if count <= WINDOW * most:
                continue
            key = next(iter(waiting))
        count -= len(waiting[key])
        yield waiting.pop(key)
    yield from waiting.values()


class InlineEngine:
    """Runs jobs in this process, one after the other, or up to ``together`` of one :func:`kind` at once."""

    def __init__(self, clients: Clients, together: int = 1) -> None:
        self._clients, self._together = clients, together

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and the outcome of every job, batch by batch."""
        for batch in batches_of(jobs, self._together):
            yield from zip([number for number, _ in batch], self._clients.run_all([job for _, job in batch]), strict=True)


@engine("inline")
def inline(clients: Clients, workers: int) -> InlineEngine:
    """Return the engine of this process; ``workers`` is not used."""
    return InlineEngine(clients)
