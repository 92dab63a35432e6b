"""Who runs clients: this process, several, or a process for each client. The records are the same, bit for bit, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from edgefl.local.client import Clients, Job
from edgefl.records import Outcome


class Engine(Protocol):
    """Runs jobs and yields their outcomes in the order of the jobs, few of them in flight at a time.

    The order is fixed so that sums over outcomes come out to the same bits whoever finishes first.
    """

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job."""
        ...


def open_engine(name: str, workers: int, clients: Clients) -> AbstractContextManager[Engine]:
    """Return the engine ``inline`` or ``pool`` as a context manager that releases its workers.

    Where clients are limited as processes (``task.enforce`` is "hard") it is the pool, whatever the name.
    """
    from edgefl.engine.inline import InlineEngine
    from edgefl.engine.pool import PoolEngine

    if name == "inline" and clients.task.enforce != "hard":
        return InlineEngine(clients)
    return PoolEngine(clients.task, workers)
