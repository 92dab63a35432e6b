"""The engine that trains clients in several processes, each with one thread.

This process has one thread. It makes jobs when there is room for them, writes them to shared memory, and reads outcomes from there. Besides
the batch of jobs that a worker runs, another one waits, so that the worker is busy while this process aggregates. If batches are short,
more of them wait, and this process sleeps while answers accumulate. Waking for each answer would take a core from a worker, and find the
caches empty every time. A worker that is killed is replaced. Its jobs run again and give the same bits.
"""

import contextlib
import math
import os
import selectors
import time
from collections.abc import Sequence
from typing import Self

from edgefl.client.client import Clients
from edgefl.client.isolation.cgroup import cgroup_folder, sweep
from edgefl.client.isolation.isolate import check_platform
from edgefl.client.isolation.limits import Guard
from edgefl.client.job import Task
from edgefl.client.messages import error_of
from edgefl.data.sources import Dataset
from edgefl.engine.dispatch import Dispatch
from edgefl.engine.fork_server import check_not_worker, fork_server
from edgefl.engine.inline import InlineEngine
from edgefl.engine.mailbox import ServerMailbox
from edgefl.engine.peer import Fold, JobBatch, Worker
from edgefl.engine.shared_memory import share
from edgefl.engine.workers import FRAME, Environment, WorkerStart
from edgefl.errors import EdgeflError
from edgefl.registry import engine
from edgefl.timing.spans import Span, absorb
from edgefl.util.machine import usable_threads
from edgefl.wire.message import MessageFields, read_header

TOGETHER = 5
"""Most clients in one group. Larger groups are no faster, and leave too few clients for a second worker."""
_TRIES = 4  # so many deaths per worker, with no answer in between, end the run
_LEAST, _MOST = 2, 8  # batches of a worker, the one that it runs included
_AHEAD_S = 0.03  # a worker has batches for this time, within the limits above


class PoolEngine(Dispatch[Worker]):
    """Runs jobs in several worker processes.

    Args:
        task: the run's. With ``task.enforce`` "hard" a worker forks a process for every client.
        workers: how many processes.
        guard: how memory is limited under "hard"; None: by every way that this system has.
        data: the run's data set. Its arrays are copied once to memory that all workers share; None: each worker loads it.
        together: most jobs of one kind in a batch, see :func:`edgefl.engine.inline.cut`.

    Raises:
        ConfigError: this system cannot limit processes as "hard" requires.
    """

    def __init__(
        self, task: Task, workers: int, guard: Guard | None = None, data: Dataset | None = None, together: int = 1
    ) -> None:
        check_not_worker()
        if task.enforce == "hard":
            check_platform()
            together = 1  # each has a process of its own
        super().__init__(together)
        self._task, self._guard, self._workers = task, guard, workers
        self._data, self._data_fd = data, -1
        self._layout: MessageFields | None = None
        self._live: dict[int, Worker] = {}  # by number, from 1
        self._deaths, self._closed = 0, True
        self._batch_s = float("inf")  # how long a batch takes now

    def __enter__(self) -> Self:
        self._closed = False
        self._sweep()
        self._mailbox = ServerMailbox()
        self._selector = selectors.DefaultSelector()
        try:
            fork_server().warm(self._workers)  # it starts while data are copied
            if self._data is not None:
                self._data_fd, self._layout = share(self._data)
                self._data = None
            for number in range(1, self._workers + 1):
                self._start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        for worker in self._live.values():
            worker.lifeline.close()  # it exits at once, and before it the client's process that it has
        for worker in self._live.values():
            worker.stop()
        self._live.clear()
        self._again.clear()
        self._selector.close()
        self._mailbox.arena.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self._sweep()

    @property
    def folds(self) -> bool:
        """Whether workers add up updates. Under "hard" they do not, because their memory would count as that of their clients."""
        return self._task.enforce != "hard"

    @property
    def _peers(self) -> Sequence[Worker]:
        return list(self._live.values())

    @property
    def _most(self) -> int:
        return (self._depth + 1) * self._workers

    def _await(self, more: bool) -> None:
        if more:
            time.sleep(self._nap_s)
        self.serve(None)

    def drop(self, fold: Fold | None) -> None:
        """Forget the sums of a map that has ended or was dropped."""
        for batch in self.unsent(fold):
            batch.wanted = False
        for worker in self._live.values():
            if worker.abandon(fold) and fold is not None:
                worker.reader.forgets.append(fold.name)  # the process learns it with its next request

    def _end(self, fold: Fold | None) -> None:
        if not self._closed:
            self.drop(fold)
            self._mailbox.forget_payloads()

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`serve` has something to read."""
        return self._selector.fileno()

    def _free(self) -> Worker | None:
        """Return the worker with the fewest batches, if it has room for one more."""
        worker = min(self._live.values(), key=lambda w: len(w.batches), default=None)
        return None if worker is None or len(worker.batches) >= self._depth else worker

    @property
    def _depth(self) -> int:
        """Most batches of a worker, the one that it runs included."""
        return max(_LEAST, min(_MOST, math.ceil(_AHEAD_S / self._batch_s)))

    @property
    def _nap_s(self) -> float:
        """How long answers can accumulate before a worker runs out of batches."""
        return (self._depth - _LEAST) / 2 * min(self._batch_s, _AHEAD_S)

    def _give(self, worker: Worker, batch: JobBatch) -> None:
        fold = "" if batch.fold is None else batch.fold.name
        batch.request = self._mailbox.write_request(batch.jobs, worker.reader, fold)
        worker.batches.append(batch)
        try:
            worker.connection.send_bytes(FRAME.pack(*batch.request.frame))
        except OSError:
            self._lost(worker)

    def serve(self, timeout_s: float | None) -> None:
        """Read what workers have sent, waiting up to ``timeout_s`` (None: no limit), and run the batches of dead workers again."""
        if self._closed or not self._live:
            raise EdgeflError("the engine is closed")
        for key, _ in self._selector.select(timeout_s):
            worker: Worker = key.data
            try:
                self._read(worker, worker.connection.recv_bytes())
            except (EOFError, OSError):
                self._lost(worker)
        self._give_again()

    def _read(self, worker: Worker, message: bytes) -> None:
        """Read a worker's process number, or its answer to the oldest of its batches: outcomes, or what it raised."""
        fields, _ = read_header(message, "worker", "outcomes", "error")
        if fields["kind"] == "worker":
            worker.pid = fields["pid"]
            return
        batch = worker.batches[0]
        assert batch.request is not None  # the worker has it
        if fields["kind"] == "error":
            batch.result = error = error_of(fields)
            if batch.fold is not None:
                batch.fold.error = error
        else:
            batch.result = self._mailbox.read_answer(batch.request, fields, worker.connection.recv_bytes)
            absorb((Span(*span) for span in fields["spans"]), worker.number)
            if batch.fold is not None and not batch.jobs:
                limbs = [
                    worker.connection.recv_bytes() for row in fields["sums"] for _ in row[-1]
                ]  # all first: the worker may die
                batch.fold.sums.merge(fields["sums"], limbs)
            if batch.jobs:
                self._batch_s = fields["seconds"] if math.isinf(self._batch_s) else 0.9 * self._batch_s + 0.1 * fields["seconds"]
        worker.settle(batch)
        self._mailbox.release(batch.request)
        self._deaths = 0

    def _start(self, number: int) -> None:
        worker = Worker(number, [self._mailbox.arena.fd, *([] if self._data_fd < 0 else [self._data_fd])])
        self._live[number] = worker
        self._mailbox.readers.append(worker.reader)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        content = WorkerStart(self._task, self._guard, number, self._workers, self._layout).to_bytes(Environment.own())
        worker.assignment = self._mailbox.write(content)
        with contextlib.suppress(OSError):  # it is gone: the next message to it will fail
            worker.connection.send_bytes(FRAME.pack(worker.assignment.start, worker.assignment.size, 0, len(content)))

    def _lost(self, worker: Worker) -> None:
        """Replace a dead worker, unless too many have died."""
        self._selector.unregister(worker.connection)
        self._mailbox.readers.remove(worker.reader)
        del self._live[worker.number]
        worker.lifeline.close()
        worker.stop()
        if worker.assignment is not None:
            self._mailbox.arena.free(worker.assignment)
        for request in (batch.request for batch in worker.batches if batch.request is not None):
            self._mailbox.release(request)
        self._again.extend(worker.lost())
        self._sweep()
        self._deaths += 1
        if self._deaths > _TRIES * self._workers:
            told = "a worker process died (killed from outside, or the host ran out of memory); "
            raise EdgeflError(told + "continue with --resume, if need be with fewer --workers")
        self._start(worker.number)

    def _sweep(self) -> None:
        folder = self._guard.cgroups if self._guard is not None else cgroup_folder()
        if self._task.enforce == "hard" and folder is not None:
            sweep(folder)


@engine("pool", shares_memory=True)
def pool(clients: Clients, workers: int) -> PoolEngine:
    """Return the engine of ``workers`` processes (0: one for each core). Each trains one client at a time."""
    return PoolEngine(clients.task, workers or usable_threads(), data=clients.data)


@engine("group", groups_clients=True, shares_memory=True)
def group(clients: Clients, workers: int) -> InlineEngine | PoolEngine:
    """Return the engine that trains up to :data:`TOGETHER` clients of a tier at once, in this process or in several.

    Results equal those of the pool, except for the order of sums in float32: about 1e-6 of a gradient's largest entry in each step.
    """
    if workers == 1:
        return InlineEngine(clients, TOGETHER)
    return PoolEngine(clients.task, workers or usable_threads(), data=clients.data, together=TOGETHER)
