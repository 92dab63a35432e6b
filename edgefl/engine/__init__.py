"""Who runs clients: this process, several, or a process for each client; each client alone, or several of a tier together.

The records are the same, bit for bit, in this process and in any number of others. Clients that are trained together end where each ends
alone but for the order of sums in float32: a step's gradient differs by about 1e-6 of its largest entry, and training makes of that what
it makes of any rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgefl.client.client import Clients
    from edgefl.client.job import Job
    from edgefl.records import Outcome

TOGETHER = 5
"""Clients of a tier that the engine ``group`` trains together at most: more gain nothing, and leave a second worker without."""


class Engine(Protocol):
    """Runs jobs and yields their outcomes in the order of the jobs, few of them in flight at a time.

    The order is fixed so that sums over outcomes come out to the same bits whoever finishes first.
    """

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job."""
        ...


def prepare_workers(name: str | None, workers: int, enforce: str) -> None:
    """Where these settings have workers, or may come to have them, start what they come from, without waiting for it.

    Called early, it imports torch in a process of its own while this one prepares a run.
    """
    if workers > 1 or name not in (None, "inline") or enforce == "hard":
        from edgefl.engine.fork_server import warm

        warm(workers)


def open_engine(name: str, workers: int, clients: Clients) -> AbstractContextManager[Engine]:
    """Return an engine as a context manager that releases its workers.

    Args:
        name: ``inline``, ``pool`` (one client at a time in each worker), or ``group`` (:data:`TOGETHER` at a time; with one worker here).
        workers: processes of ``pool`` and ``group``.
        clients: of the run. Where they are limited as processes (``task.enforce`` is "hard") it is the pool, whatever the name.
    """
    from edgefl.engine.inline import InlineEngine
    from edgefl.engine.pool import PoolEngine

    together = TOGETHER if name == "group" else 1
    if clients.task.enforce != "hard" and (name == "inline" or (name == "group" and workers == 1)):
        return InlineEngine(clients, together)
    return PoolEngine(clients.task, workers, data=clients.data, together=together)
