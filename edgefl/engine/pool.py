"""Clients played by several processes, each with one thread.

Processes are spawned, not forked: a fork copies torch's thread pools in whatever state they are. A worker loads the data itself, and
leaves when the process that started it is gone, however that ended. A worker that is killed is replaced, and the job that it had is run
again, to the same bits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Self

import torch

from edgefl.errors import EdgeflError
from edgefl.local.client import Clients, Job, Task
from edgefl.local.forked import portable
from edgefl.local.isolate import Isolated, check_platform
from edgefl.local.limits import Guard, cgroup_folder, sweep
from edgefl.records import Outcome

_TRIES = 4
_PATIENCE_S = 10.0


class PoolEngine:
    """Runs jobs on ``workers`` processes, at most two per worker in flight.

    With ``task.enforce`` "hard" a worker forks a process for every client, and ``guard`` says how that is held to its memory (None: by
    what this system has).

    Raises:
        ConfigError: this system cannot limit processes, as "hard" asks for.
    """

    def __init__(self, task: Task, workers: int, guard: Guard | None = None) -> None:
        if task.enforce == "hard":
            check_platform()
        self._task, self._guard, self._workers = task, guard, workers
        self._threads = ThreadPoolExecutor(workers, "edgefl")  # each waits for one worker at a time
        self._lock = threading.Lock()
        self._staff: set[_Worker] = set()
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._deaths, self._closed = 0, False

    def __enter__(self) -> Self:
        self._sweep()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._closed = True
            for worker in self._staff:
                worker.dismiss()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._staff:
            worker.bury()
        self._staff.clear()
        self._sweep()

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order.

        Raises:
            EdgeflError: workers died one after the other without an outcome, killed from outside or out of the host's memory.
        """
        pending: deque[Future[Outcome]] = deque()
        for job in jobs:
            pending.append(self._threads.submit(self._run, job))
            if len(pending) >= 2 * self._workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _run(self, job: Job) -> Outcome:
        worker = self._idle.get()
        try:
            while True:
                try:
                    worker = worker or self._hired()
                    answer = worker.ask(job)
                    break
                except (EOFError, OSError):
                    dead, worker = worker, None
                    self._lost(dead)
        finally:
            self._idle.put(worker)
        self._deaths = 0
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _hired(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise EdgeflError("the engine is closed")
            worker = _Worker(self._task, self._guard)
            self._staff.add(worker)
            return worker

    def _lost(self, worker: _Worker | None) -> None:
        """Remove what is left of a dead worker, so that another is hired, unless that has been tried too often."""
        with self._lock:
            if worker is not None and not self._closed:
                self._staff.discard(worker)
                worker.bury()
            self._deaths += 1
            if self._closed or self._deaths > _TRIES * self._workers:
                raise EdgeflError(
                    "a worker process died (killed from outside, or the host ran out of memory); "
                    "continue with --resume, if need be with fewer --workers"
                )
        self._sweep()

    def _sweep(self) -> None:
        folder = self._guard.cgroups if self._guard is not None else cgroup_folder()
        if self._task.enforce == "hard" and folder is not None:
            sweep(folder)


class _Worker:
    """A process that answers a job with its outcome or with what it raised."""

    def __init__(self, task: Task, guard: Guard | None) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        try:
            self._process = multiprocessing.get_context("spawn").Process(target=_work, args=(task, guard, theirs), daemon=True)
            self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    def ask(self, job: Job) -> Outcome | BaseException:
        """Send a job and wait for the answer; EOFError or OSError where the process dies."""
        self._connection.send(job)
        answer: Outcome | BaseException = self._connection.recv()
        return answer

    def dismiss(self) -> None:
        """Ask it to leave at once, whatever it does; a client's process that it has goes first."""
        self._process.terminate()

    def bury(self) -> None:
        """Wait until it is gone, and let go of what this process has of it."""
        self.dismiss()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._connection.close()


def _work(task: Task, guard: Guard | None, connection: Connection) -> None:
    """Answer jobs until the other end closes; where this process cannot play at all, with the reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent decides
    torch.set_num_threads(1)
    play: Callable[[Job], Outcome | BaseException]
    try:
        play = partial(_answer, _player(task, guard, connection))
    except ChildProcessError:
        return  # what it measures with was killed: as if it had been killed itself
    except Exception as error:  # the data cannot be loaded here, or the system's limits not be set
        play = partial(_refuse, portable(error))
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        while True:
            connection.send(play(connection.recv()))


def _answer(run: Callable[[Job], Outcome], job: Job) -> Outcome | BaseException:
    try:
        return run(job)
    except Exception as error:
        return portable(error)


def _refuse(reason: BaseException, job: Job) -> BaseException:
    return reason


def _player(task: Task, guard: Guard | None, connection: Connection) -> Callable[[Job], Outcome]:
    if task.enforce == "hard":
        # A thread beside would make forks unsafe; between messages of a client's process, and between jobs, the connection is watched.
        signal.signal(signal.SIGTERM, _leave)
        return Isolated(Clients(task), guard, [connection]).run
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    return Clients(task).run


def _leave(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once: a client's process is being ended now
    sys.exit(1)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
