"""The engine without workers: clients train in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.engine.batching import batches_of
from edgefl.records import Outcome
from edgefl.registry import engine


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
