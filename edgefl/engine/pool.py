"""Clients played by several processes, each with one thread.

This process has one thread: it makes jobs when there is room for them, writes them to shared memory, and reads outcomes where workers
have written them. A worker always has a bundle of jobs waiting beside the one that it plays, so that it goes on while this process
aggregates. Where bundles are short more of them wait, and this process lets answers gather: woken for each, it would take a core from a
worker and find its caches empty every time. A worker that is killed is replaced, and what it had is played again, to the same bits.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Self

from edgefl.client.isolation.isolate import check_platform
from edgefl.client.isolation.limits import Guard, cgroup_folder, sweep
from edgefl.client.job import Job, Task
from edgefl.engine.batching import cut, kind, ordered
from edgefl.engine.fork_server import nursery, warm
from edgefl.engine.messages import Answer, Packer, Parcel, Reader, dumps
from edgefl.engine.shared_memory import Layout, Region, share
from edgefl.engine.workers import FRAME, Duty, Surroundings, check_not_worker
from edgefl.errors import EdgeflError
from edgefl.records import Outcome
from edgefl.timing.spans import absorb

if TYPE_CHECKING:
    from edgefl.data.sources import Dataset

_TRIES = 4  # deaths without an outcome, for each worker
_LEAST, _MOST = 2, 8  # bundles that a worker has: the one that it plays, and those that wait
_AHEAD_S = 0.03  # what it has takes so long, if that can be


@dataclass(eq=False)
class _Bundle:
    """Jobs that one worker plays together, with their numbers, and what became of them."""

    numbers: list[int]
    jobs: list[Job]
    parcel: Parcel | None = None
    result: list[Outcome] | BaseException | None = None
    wanted: bool = True


class PoolEngine:
    """Runs jobs on ``workers`` processes.

    Args:
        task: of the run. With ``task.enforce`` "hard" a worker forks a process for every client.
        workers: how many processes.
        guard: how clients are held to their memory where that is "hard"; None: by what this system has.
        data: the run's data set; its arrays are copied once, to memory that all workers share. None: each worker loads it.
        together: at most so many jobs of one kind are played together, see :mod:`edgefl.engine.batching`.

    Raises:
        ConfigError: this system cannot limit processes, as "hard" asks for.
    """

    def __init__(
        self, task: Task, workers: int, guard: Guard | None = None, data: Dataset | None = None, together: int = 1
    ) -> None:
        check_not_worker()
        if task.enforce == "hard":
            check_platform()
            together = 1  # each has a process of its own
        self._task, self._guard, self._workers, self._together = task, guard, workers, together
        self._data, self._data_fd = data, -1
        self._layout: Layout | None = None
        self._staff: dict[int, _Worker] = {}  # by number, from 1
        self._again: deque[_Bundle] = deque()  # whose worker died
        self._deaths, self._closed = 0, True
        self._bundle_s = float("inf")  # what a bundle takes now

    def __enter__(self) -> Self:
        self._closed = False
        self._sweep()
        self._packer = Packer()
        self._selector = selectors.DefaultSelector()
        try:
            warm(self._workers)  # it can begin while data are copied
            if self._data is not None:
                self._data_fd, self._layout = share(self._data)
                self._data = None
            for number in range(1, self._workers + 1):
                self._hire(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        for worker in self._staff.values():
            worker.dismiss()
        for worker in self._staff.values():
            worker.bury()
        self._staff.clear()
        self._again.clear()
        self._selector.close()
        self._packer.arena.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self._sweep()

    def map(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order; a job is made when a worker has room for it.

        Raises:
            EdgeflError: workers died one after the other without an outcome, killed from outside or out of the host's memory.
        """
        return ordered(self._played(jobs))

    def _played(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcome of every job with its number, bundle by bundle."""
        bundles = cut(jobs, self._together, kind)
        alive: deque[_Bundle] = deque()
        more = True
        try:
            while more or alive:
                self._serve(0)
                while more and len(alive) < (self._depth + 1) * self._workers and (worker := self._free()) is not None:
                    if (numbered := next(bundles, None)) is None:
                        more = False
                    else:
                        alive.append(_Bundle([number for number, _ in numbered], [job for _, job in numbered]))
                        self._give(worker, alive[-1])
                if not alive:
                    continue
                if alive[0].result is None:
                    if more:
                        time.sleep(self._nap_s)
                    self._serve(None)
                    continue
                bundle = alive.popleft()
                if isinstance(bundle.result, BaseException):
                    raise bundle.result
                for number, outcome in zip(bundle.numbers, bundle.result or (), strict=True):
                    yield number, outcome
                    if number != bundle.numbers[-1]:
                        self._serve(0)
        finally:
            for bundle in alive:
                bundle.wanted = False
            if not self._closed:
                self._packer.forget_payloads()

    def _free(self) -> _Worker | None:
        """Return the worker that has least to do, if it has room for a bundle."""
        worker = min(self._staff.values(), key=lambda w: len(w.bundles), default=None)
        return None if worker is None or len(worker.bundles) >= self._depth else worker

    @property
    def _depth(self) -> int:
        """How many bundles a worker has at most."""
        return max(_LEAST, min(_MOST, math.ceil(_AHEAD_S / self._bundle_s)))

    @property
    def _nap_s(self) -> float:
        """How long answers can gather while no worker runs out of bundles."""
        return (self._depth - _LEAST) / 2 * min(self._bundle_s, _AHEAD_S)

    def _give(self, worker: _Worker, bundle: _Bundle) -> None:
        bundle.parcel = self._packer.pack(bundle.jobs, worker.reader)
        worker.bundles.append(bundle)
        try:
            worker.connection.send_bytes(FRAME.pack(*bundle.parcel.frame))
        except OSError:
            self._lost(worker)

    def _serve(self, timeout_s: float | None) -> None:
        """Take what workers have sent, waiting for it up to ``timeout_s`` (None: as long as it takes), and play lost bundles again."""
        if self._closed or not self._staff:
            raise EdgeflError("the engine is closed")
        for key, _ in self._selector.select(timeout_s):
            worker: _Worker = key.data
            try:
                self._take(worker, worker.connection.recv())
            except (EOFError, OSError):
                self._lost(worker)
        while self._again and (free := self._free()) is not None:
            if (bundle := self._again.popleft()).wanted:
                self._give(free, bundle)

    def _take(self, worker: _Worker, message: int | Answer | BaseException) -> None:
        """Take a worker's number, or an answer: the outcomes of the bundle that it has had longest, or what it raised."""
        if isinstance(message, int):
            worker.pid = message
            return
        bundle = worker.bundles[0]
        assert bundle.parcel is not None  # it was given
        if isinstance(message, BaseException):
            bundle.result = message
        else:
            bundle.result = self._packer.unpack(bundle.jobs, bundle.parcel, message, worker.connection.recv_bytes)
            absorb(message.spans, worker.number)
            self._bundle_s = message.seconds if math.isinf(self._bundle_s) else 0.9 * self._bundle_s + 0.1 * message.seconds
        worker.bundles.popleft()
        self._packer.release(bundle.parcel)
        self._deaths = 0

    def _hire(self, number: int) -> None:
        worker = _Worker(number, [self._packer.arena.fd, *([] if self._data_fd < 0 else [self._data_fd])])
        self._staff[number] = worker
        self._packer.readers.append(worker.reader)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        duty = Duty(self._task, self._guard, number, self._workers, self._layout)
        orders = dumps((Surroundings.own(), dumps(duty)))
        worker.orders = self._packer.write(orders)
        with contextlib.suppress(OSError):  # it is gone: what it is sent next will tell
            worker.connection.send_bytes(FRAME.pack(worker.orders.start, worker.orders.size, 0, len(orders)))

    def _lost(self, worker: _Worker) -> None:
        """Hire another worker in the place of a dead one, unless that has been tried too often."""
        self._selector.unregister(worker.connection)
        self._packer.readers.remove(worker.reader)
        del self._staff[worker.number]
        worker.dismiss()
        worker.bury()
        if worker.orders is not None:
            self._packer.arena.free(worker.orders)
        for bundle in worker.bundles:
            if bundle.parcel is not None:
                self._packer.release(bundle.parcel)
        self._again.extend(worker.bundles)
        self._sweep()
        self._deaths += 1
        if self._deaths > _TRIES * self._workers:
            raise EdgeflError(
                "a worker process died (killed from outside, or the host ran out of memory); "
                "continue with --resume, if need be with fewer --workers"
            )
        self._hire(worker.number)

    def _sweep(self) -> None:
        folder = self._guard.cgroups if self._guard is not None else cgroup_folder()
        if self._task.enforce == "hard" and folder is not None:
            sweep(folder)


class _Worker:
    """A worker as this process has it: connections to it, and the bundles that it has.

    Attributes:
        number: which of the engine's workers it is, from 1.
        pid: the number of its process; None until it runs.
        connection: frames of requests go out, answers come in.
        bundles: those that it has, the one that it plays first.
        orders: where its first orders lie.
    """

    def __init__(self, number: int, files: Sequence[int]) -> None:
        self.number = number
        self.pid: int | None = None
        self.bundles: deque[_Bundle] = deque()
        self.reader = Reader()
        self.orders: Region | None = None
        ours, theirs = socket.socketpair()
        self._lifeline, its_lifeline = socket.socketpair()
        with ours, theirs, its_lifeline:
            self._hired = nursery().hire([theirs.fileno(), its_lifeline.fileno(), *files])
            self.connection = Connection(ours.detach())

    def dismiss(self) -> None:
        """Have it leave at once, whatever it does; a client's process that it has goes first."""
        self._lifeline.close()

    def bury(self) -> None:
        """Wait until it is gone, and let go of what this process has of it."""
        with contextlib.suppress(EOFError, OSError):
            if self.pid is None and self.connection.poll():
                self.pid = self.connection.recv()
        nursery().end(self._hired, wait=self.pid is not None)
        self.connection.close()
