"""A worker process: one thread, pinned to a core if possible, that runs the jobs of requests in shared memory."""

import contextlib
import functools
import multiprocessing.spawn
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Self

import torch
from pydantic import TypeAdapter

from edgefl.client.client import Clients
from edgefl.client.folding import Sums
from edgefl.client.isolation.isolate import Isolated
from edgefl.client.isolation.limits import Guard, keep_freed_memory, pin
from edgefl.client.job import Job, Task
from edgefl.client.messages import error_fields, task_fields, task_of
from edgefl.engine.mailbox import Frame, WorkerMailbox, WorkerRequest
from edgefl.engine.shared_memory import SharedFile, shared
from edgefl.records import Outcome
from edgefl.timing.spans import drain
from edgefl.util.compute import one_thread
from edgefl.wire.message import MessageFields, read_header, write_header

FRAME = struct.Struct("<4q")
"""A message to a worker: a :data:`edgefl.engine.mailbox.Frame`."""
Train = Callable[[Sequence[Job]], Sequence[Outcome]]
Run = Callable[[WorkerRequest], Sequence[Outcome]]


@dataclass(frozen=True)
class Environment:
    """The environment that a worker shares with the server's process.

    Attributes:
        variables: of the environment, their bytes read as Latin-1 because they may not be UTF-8.
        folder, path: the current folder, and where modules are found.
        main: where the main script is, for :mod:`multiprocessing.spawn`; empty if it has no file, as in a notebook.
    """

    variables: Mapping[str, str]
    folder: str
    path: Sequence[str]
    main: Mapping[str, str]

    @classmethod
    def own(cls) -> Self:
        """Return the environment of this process."""
        known = multiprocessing.spawn.get_preparation_data("edgefl")
        main = {key: str(value) for key, value in known.items() if key in ("init_main_from_name", "init_main_from_path")}
        variables = {name.decode("latin-1"): value.decode("latin-1") for name, value in os.environb.items()}
        return cls(variables, str(known["dir"]), [str(folder) for folder in sys.path], main)

    def enter(self) -> None:
        """Make this the environment of the process, without running the main script."""
        os.environ.clear()
        os.environb.update({name.encode("latin-1"): value.encode("latin-1") for name, value in self.variables.items()})
        with contextlib.suppress(OSError):  # the folder was removed
            os.chdir(self.folder)
        sys.path[:] = self.path

    def run_main_for(self, content: bytes) -> None:
        """Run the main script once, as ``__mp_main__``, if the message ``content`` refers to one of its definitions."""
        if b'"__main__:' in content:
            _run_main(tuple(self.main.items()))


@functools.cache
def _run_main(main: tuple[tuple[str, str], ...]) -> None:
    multiprocessing.spawn.prepare(dict(main))


@dataclass(frozen=True)
class WorkerStart:
    """A worker's first message. ``worker`` is its number, from 1 to ``workers``; for ``guard`` see :class:`PoolEngine`.

    ``data`` says where the data set lies in shared memory, as :func:`edgefl.engine.shared_memory.share` does; None: the worker loads it.
    """

    task: Task
    guard: Guard | None
    worker: int
    workers: int
    data: MessageFields | None

    def to_bytes(self, environment: Environment) -> bytes:
        """Return the message that carries the assignment and the ``environment``."""
        return write_header("assignment", {**vars(self), "task": task_fields(self.task), "environment": environment})

    @classmethod
    def of(cls, fields: MessageFields) -> Self:
        """Return the assignment in the fields of a message."""
        guard = TypeAdapter(Guard | None).validate_python(fields["guard"])
        return cls(task_of(fields["task"]), guard, fields["worker"], fields["workers"], fields["data"])


def work(jobs_fd: int, lifeline_fd: int, arena_fd: int, data_fd: int | None = None) -> None:
    """Answer requests until the server's process closes its end; if this process cannot run jobs, answer with the reason.

    Args:
        jobs_fd: socket on which frames arrive, that of the assignment first, and on which the process number and answers are sent.
        lifeline_fd: socket on which nothing is sent. The worker exits when it ends, whatever it does.
        arena_fd: nameless file with the requests.
        data_fd: nameless file with the data; None: they are loaded here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the server's decides
    with contextlib.suppress(EOFError, OSError), Connection(jobs_fd) as jobs, Connection(lifeline_fd) as lifeline, one_thread():
        jobs.send_bytes(write_header("worker", {"pid": os.getpid()}))
        memory = SharedFile(arena_fd)
        start, _, _, length = FRAME.unpack(jobs.recv_bytes())
        content = memory.read(start, length)
        fields, _ = read_header(content, "assignment")
        environment = Environment(**fields["environment"])
        mailbox = WorkerMailbox(memory, environment.run_main_for)
        try:
            environment.enter()
            environment.run_main_for(content)
            assignment = WorkerStart.of(fields)
            run: Run | Exception = partial(_run, _runner(assignment, jobs, lifeline, data_fd), assignment.task, mailbox.sums)
        except ChildProcessError:
            return  # the process that measures the baseline was killed: the server replaces this one
        except Exception as error:  # noqa: BLE001 - data that cannot be loaded here, or limits that cannot be set
            run = error
        while True:
            frame = FRAME.unpack(jobs.recv_bytes())
            for part in _answer(run, mailbox, frame):
                jobs.send_bytes(part)


def _answer(run: Run | Exception, mailbox: WorkerMailbox, frame: Frame) -> list[bytes]:
    try:
        if isinstance(run, Exception):
            raise run
        started = time.perf_counter()
        asked = mailbox.read_request(frame)
        outcomes = run(asked)
        sums = None if asked.jobs else mailbox.sums.pop(asked.fold)
        return mailbox.write_answer(frame, outcomes, drain(), time.perf_counter() - started, sums)
    except Exception as error:  # noqa: BLE001 - the server raises it
        return [write_header("error", error_fields(error))]


def _run(train: Train, task: Task, sums: dict[str, Sums], asked: WorkerRequest) -> Sequence[Outcome]:
    """Return the outcomes of the jobs of a request. Their updates become part of ``sums`` if the request says so."""
    outcomes = train(asked.jobs) if asked.jobs else ()
    if not asked.fold or not asked.jobs:
        return outcomes
    if asked.fold not in sums:
        sums[asked.fold] = Sums(asked.jobs[0].method, task.architecture, task.stages)
    return [sums[asked.fold].add(job, outcome) for job, outcome in zip(asked.jobs, outcomes, strict=True)]


def _runner(assignment: WorkerStart, jobs: Connection, lifeline: Connection, data_fd: int | None) -> Train:
    """Return how this process runs jobs, after loading the data and, under "hard", measuring the limits."""
    task = assignment.task
    torch.set_num_threads(1)  # the main script may have changed it
    pin(assignment.worker, assignment.workers)
    hard = task.enforce == "hard"
    if hard:
        # A second thread would make forks unsafe. The lifeline is watched while a client's process runs, and the socket of jobs otherwise.
        signal.signal(signal.SIGTERM, _exit)
        os.register_at_fork(after_in_child=jobs.close)  # only this process's end may tell the server that it is gone
    else:
        threading.Thread(target=_exit_at_end, args=(lifeline,), daemon=True).start()
        keep_freed_memory()
    clients = Clients(task, None if data_fd is None or assignment.data is None else shared(data_fd, assignment.data))
    if hard:
        run = Isolated(clients, assignment.guard, [lifeline]).run
        return lambda jobs: [run(job) for job in jobs]
    return clients.run_all


def _exit(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the end of a client's process
    sys.exit(1)


def _exit_at_end(lifeline: Connection) -> None:
    wait([lifeline])
    os._exit(1)
