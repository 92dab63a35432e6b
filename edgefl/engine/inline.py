"""The engine without workers: clients are played in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.engine.batching import cut, kind, ordered
from edgefl.records import Outcome


class InlineEngine:
    """Runs every job here, one after the other, or at most ``together`` of one kind at once."""

    def __init__(self, clients: Clients, together: int = 1) -> None:
        self._clients, self._together = clients, together

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order."""
        return ordered(self._played(jobs))

    def _played(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        for bundle in cut(jobs, self._together, kind):
            yield from zip([number for number, _ in bundle], self._clients.run_all([job for _, job in bundle]), strict=True)
