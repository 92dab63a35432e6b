"""The engine without workers: clients are played one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from edgefl.local.client import Clients, Job
from edgefl.records import Outcome


class InlineEngine:
    """Runs every job here."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order."""
        return map(self._clients.run, jobs)
