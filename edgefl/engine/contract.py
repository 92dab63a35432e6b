"""The contract of an engine, which runs clients' jobs in this process, in others, or on other machines.

An engine is a decorated function, in a file of this package or in a plug-in, that returns a context manager. Facts in the decorator are its
:class:`Capabilities`. The smallest engine::

    @engine("serial")
    @contextlib.contextmanager
    def serial(clients: Clients, workers: int) -> Iterator[Engine]:
        yield Serial(clients)

    class Serial:
        def __init__(self, clients: Clients) -> None:
            self._clients = clients

        def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
            for number, job in enumerate(jobs):
                yield number, self._clients.run(job)

``clients`` runs jobs in this process. A worker elsewhere makes its own ``Clients`` from ``task_fields(clients.task)``. It receives jobs
from ``write_jobs`` and answers with ``write_outcomes``, all in :mod:`edgefl.client.messages`.

1. ``map(jobs)`` yields the number and the outcome of each job once. Numbers count jobs from 0, in the order in which they are pulled.
2. The engine pulls one job at a time, when a worker has room for it: every job takes memory.
3. Outcomes may come in any order. :func:`in_order` restores the order of the jobs.
4. The outcome depends on the job only. An engine may run a job again, on any worker, and gets the same bits.
5. If a worker cannot be reached, the engine runs its jobs elsewhere, or yields outcomes that are ``lost``. Their jobs run again.
6. An error that a client raises is raised by ``map``. If it comes from another process, it is an :class:`EdgeflError`.
7. ``map`` may be called while another map is under way: a round requests replacements of failed clients.
8. A map that is closed or dropped early leaves nothing behind: no process, file or memory, and no outcome in a later map.
9. An engine that is closed stops its workers at once, whatever they do.
10. Messages between processes are JSON, and blobs that are addressed by their hashes. Nothing is pickled.

An engine may add up the updates of jobs that have a weight where the clients train, and send one sum per tier instead of every update. Such
an engine has a true attribute ``folds`` and a method ``fold(jobs, sums)``. It is ``map``, except that outcomes have ``summed_bytes`` and no
payload, and that ``sums`` (:class:`edgefl.client.folding.Sums`) contains every update once when the iterator ends. Jobs of a worker
that dies before its sums arrive run again, without a second outcome. Sums are exact. Results therefore have the same bits with engines that
do not fold: there, :func:`in_order` adds the updates.

An engine on other computers may have an attribute ``nodes``, a sequence of :class:`edgefl.records.NodeRecord`: those that have taken part.

``pytest --pyargs edgefl.testing.contract --engine NAME`` checks rules 1 to 4, 7 and 8.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from edgefl.errors import ConfigError, EdgeflError
from edgefl.registry import engines
from edgefl.util.machine import usable_threads

if TYPE_CHECKING:
    from edgefl.client.client import Clients
    from edgefl.client.folding import Sums
    from edgefl.client.job import Job
    from edgefl.records import Outcome

MOST_LOSSES = 4
"""A run ends with an error when one job has been lost more often than this."""
MANY_JOBS = 500
"""Runs with fewer jobs seldom train so long that they get workers."""


@dataclass(frozen=True)
class Capabilities:
    """The traits of an engine: the keyword arguments of its decorator.

    Attributes:
        keeps_state: its workers keep a copy of what clients store between rounds. The server does not rely on it: checkpoints contain
            stored tensors, so they travel with every job and every outcome.
        shares_memory: its workers read the data set and payloads from memory that they share with the server.
        groups_clients: it trains clients of a tier together, which changes the order of sums in float32.
        remote: its workers are on other computers, each client in a process of its own if ``task.enforce`` is "hard". Its function is
            also called with ``cluster``, a :class:`Cluster`.
        cluster_keys: field of :class:`Cluster` → the key of a run's configuration that has its value.
    """

    keeps_state: bool = False
    shares_memory: bool = False
    groups_clients: bool = False
    remote: bool = False
    cluster_keys: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> Capabilities:
        """Return the capabilities of the engine ``name``; raise :class:`UnknownNameError` if there is none.

        >>> Capabilities.of("group").groups_clients, Capabilities.of("pool").groups_clients
        (True, False)
        """
        return cls(**engines.facts(name))


def is_remote(name: str | None) -> bool:
    """Whether the workers of engine ``name`` are on other computers; None and "auto" stand for engines of this one.

    >>> is_remote("ray"), is_remote("auto")
    (True, False)
    """
    return name in engines.names() and Capabilities.of(name).remote


@dataclass(frozen=True)
class Cluster:
    """Where the workers of a remote engine are. None of it decides the result of a run.

    Attributes:
        address: ``HOST:PORT``, "auto" for the cluster that this computer belongs to, or "local" for one that the engine starts here.
        auth: whether processes of the cluster prove by a token that they belong to it.
        mixed: whether nodes may train to other bits than this computer.
        limits: device → bytes of memory that clients are held to if ``task.enforce`` is "hard": each node must be able to enforce them.
    """

    address: str = "auto"
    auth: bool = True
    mixed: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Runs the jobs of clients, by the rules in :mod:`edgefl.engine.contract`."""

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and the outcome of every job, in any order; jobs are numbered from 0 as they are pulled."""
        ...


def in_order(engine: Engine, jobs: Iterable[Job], sums: Sums | None = None) -> Iterator[Outcome]:
    """Yield the outcomes of ``jobs`` in the order of the jobs. Outcomes that come early are held, and lost jobs run again.

    With ``sums``, the updates of jobs with a weight are added to it, by the engine if it folds, and are not in the outcomes.

    Raises:
        EdgeflError: a job was lost more than :data:`MOST_LOSSES` times, or the engine ended without an outcome for it.
    """
    if not hasattr(engine, "map"):
        raise EdgeflError(f"engine {type(engine).__name__} lacks map, which every Engine defines")
    folds = sums is not None and getattr(engine, "folds", False)
    run = partial(engine.fold, sums=sums) if folds else engine.map  # type: ignore[attr-defined]
    numbered, again = enumerate(jobs), deque[tuple[int, "Job"]]()
    early: dict[int, Outcome] = {}
    losses: Counter[int] = Counter()
    due = 0
    while True:
        pulled: dict[int, tuple[int, Job]] = {}  # the jobs without an outcome

        def pull(pulled: dict[int, tuple[int, Job]] = pulled) -> Iterator[Job]:
            count = 0
            while (numbered_job := again.popleft() if again else next(numbered, None)) is not None:
                pulled[count] = numbered_job
                count += 1
                yield numbered_job[1]

        for place, outcome in run(pull()):
            number, job = pulled.pop(place)
            if outcome.status == "lost":
                losses[number] += 1
                if losses[number] > MOST_LOSSES:
                    told = f"the job of client {job.client} was lost {losses[number]} times: no worker can be reached; "
                    raise EdgeflError(told + "continue with --resume when there are workers again")
                again.append((number, job))
                continue
            early[number] = outcome if sums is None or folds else sums.add(job, outcome)
            while due in early:
                yield early.pop(due)
                due += 1
        if pulled:
            raise EdgeflError(f"the engine ended without an outcome for {len(pulled)} jobs")
        if not again:
            return


def prepare_workers(name: str | None, workers: int, enforce: str, free_jobs: int = 0) -> None:
    """Start importing torch in the process that workers are forked from if engine ``name`` (None: the default) may need workers.

    ``free_jobs``: about how many clients train in all rounds of a run whose engine is not chosen yet. If there are many, it probably gets
    workers; without this start, the first round waits for them for about as long as torch needs to be imported.
    """
    from edgefl.engine.fork_server import STARTS, fork_server

    many = free_jobs >= MANY_JOBS and STARTS and usable_threads() > 1 and not fork_server().needless
    if not is_remote(name) and (many or workers != 1 or name not in (None, "inline") or enforce == "hard"):
        fork_server().warm(workers)


def open_engine(name: str, workers: int, clients: Clients, cluster: Cluster = Cluster()) -> AbstractContextManager[Engine]:
    """Return an engine as a context manager that stops its workers at the end.

    Args:
        name: the engine. If ``clients.task.enforce`` is "hard", the pool replaces it unless it is remote: every client needs a process
            of its own.
        workers: how many processes train clients; engines without workers ignore it.
        clients: the clients of the run.
        cluster: where the workers of a remote engine are.

    Raises:
        UnknownNameError: there is no engine ``name``.
        ConfigError: its function returns something else.
    """
    opened: AbstractContextManager[Engine]
    if Capabilities.of(name).remote:
        opened = engines.load(name)(clients, workers, cluster=cluster)
    else:
        opened = engines.load("pool" if clients.task.enforce == "hard" else name)(clients, workers)
    if not hasattr(opened, "__enter__"):
        told = f"engine {name}: its function returned {type(opened).__name__}, expected a context manager of an Engine"
        raise ConfigError(f"{told}; decorate it with contextlib.contextmanager and yield the engine")
    return opened
