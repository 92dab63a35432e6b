"""The contract of an engine: what runs clients' jobs, in this process, in others, or on other machines.

1. ``map(jobs)`` yields one outcome for each job, with the job's number in the order in which jobs were pulled, from 0.
2. Jobs are pulled one at a time, when there is room for one: making a job costs memory.
3. Outcomes may come in any order. The caller restores the order of the jobs (:func:`in_order`), so that sums over outcomes have the same
   bits with any engine.
4. A job decides its outcome. An engine may run any job again, on any of its workers, and gets the same bits.
5. A worker that cannot be reached is no error of the client. The engine runs its jobs elsewhere, or yields their outcomes as ``lost``: then
   :func:`in_order` hands them in again.
6. The caller may call ``map`` again at any time, also while another map is under way: a round asks for replacements of failed clients.
7. A map that is closed or dropped before its end leaves nothing behind: no process, no file, no memory, no outcome in a later map.
8. An engine that closes stops its workers at once, whatever they do.
9. What leaves the process is a message of :mod:`edgefl.client.messages`: JSON and blobs addressed by their hashes. Nothing is pickled.

Adding an engine is adding a file to this package with a function decorated ``@engine("name")``. It takes the run's clients and the number
of workers, and returns the engine as a context manager. Its :class:`Capabilities` are facts of the decorator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgefl.errors import EdgeflError
from edgefl.registry import engines

if TYPE_CHECKING:
    from edgefl.client.client import Clients
    from edgefl.client.job import Job
    from edgefl.records import Outcome

MOST_LOSSES = 4
"""A job that is lost more often ends the run."""


@dataclass(frozen=True)
class Capabilities:
    """What sets an engine apart.

    Attributes:
        keeps_state: its workers keep what clients store between rounds; otherwise it travels with jobs and outcomes.
        shares_memory: its workers read the data set and payloads from memory that they share with the server.
        groups_clients: it trains clients of a tier together, which changes the order of sums in float32.
    """

    keeps_state: bool = False
    shares_memory: bool = False
    groups_clients: bool = False

    @classmethod
    def of(cls, name: str) -> Capabilities:
        """Return the capabilities of the engine ``name``.

        >>> Capabilities.of("group").groups_clients, Capabilities.of("pool").groups_clients
        (True, False)
        """
        return cls(**engines.facts(name))


class Engine(Protocol):
    """Runs jobs as the contract above says."""

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and the outcome of every job, in any order."""
        ...


def in_order(engine: Engine, jobs: Iterable[Job]) -> Iterator[Outcome]:
    """Yield the outcomes of ``jobs`` in their order; an outcome that comes early is held, a lost job is run again.

    Raises:
        EdgeflError: a job was lost more than :data:`MOST_LOSSES` times, or the engine ended without an outcome for it.
    """
    numbered, again = enumerate(jobs), deque[tuple[int, "Job"]]()
    early: dict[int, Outcome] = {}
    losses: Counter[int] = Counter()
    due = 0
    while True:
        pulled: dict[int, tuple[int, Job]] = {}  # the jobs without an outcome

        def pull(pulled: dict[int, tuple[int, Job]] = pulled) -> Iterator[Job]:
            count = 0
            while (one := again.popleft() if again else next(numbered, None)) is not None:
                pulled[count] = one
                count += 1
                yield one[1]

        for place, outcome in engine.map(pull()):
            number, job = pulled.pop(place)
            if outcome.status == "lost":
                losses[number] += 1
                if losses[number] > MOST_LOSSES:
                    told = f"the job of client {job.client} was lost {losses[number]} times: no worker can be reached; "
                    raise EdgeflError(told + "continue with --resume when there are workers again")
                again.append((number, job))
                continue
            early[number] = outcome
            while due in early:
                yield early.pop(due)
                due += 1
        if pulled:
            raise EdgeflError(f"the engine ended without an outcome for {len(pulled)} jobs")
        if not again:
            return


def prepare_workers(name: str | None, workers: int, enforce: str) -> None:
    """Start the process that workers are forked from if these settings may need them: it imports torch while this one prepares a run."""
    if workers > 1 or name not in (None, "inline") or enforce == "hard":
        from edgefl.engine.fork_server import warm

        warm(workers)


def open_engine(name: str, workers: int, clients: Clients) -> AbstractContextManager[Engine]:
    """Return the engine ``name``, or the pool if ``clients.task.enforce`` is "hard", as a context manager that stops its workers."""
    opened: AbstractContextManager[Engine] = engines.load("pool" if clients.task.enforce == "hard" else name)(clients, workers)
    return opened
