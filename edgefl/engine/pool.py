"""Clients played by several processes, each with one thread.

Processes are spawned, not forked: a fork copies torch's thread pools in whatever state they are. A worker loads the data itself, and
leaves when the process that started it is gone, however that ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Self

import torch

from edgefl.errors import EdgeflError
from edgefl.local.client import Clients, Job, Task
from edgefl.records import Outcome

_clients: Clients | None = None


class PoolEngine:
    """Runs jobs on ``workers`` processes, at most two per worker in flight."""

    def __init__(self, task: Task, workers: int) -> None:
        self._ahead = 2 * workers
        self._executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(task,)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order.

        Raises:
            EdgeflError: a worker died, killed from outside or out of the host's memory.
        """
        pending: deque[Future[Outcome]] = deque()
        try:
            for job in jobs:
                pending.append(self._executor.submit(_run, job))
                if len(pending) >= self._ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise EdgeflError(
                "a worker process died (killed from outside, or the host ran out of memory); "
                "continue with --resume, if need be with fewer --workers"
            ) from None


def _start(task: Task) -> None:
    global _clients
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent decides
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _clients = Clients(task)


def _run(job: Job) -> Outcome:
    assert _clients is not None  # the executor runs the initializer first
    return _clients.run(job)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
