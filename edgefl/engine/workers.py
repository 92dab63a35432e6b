"""A worker process: one thread, pinned where that makes sense, that plays the jobs which lie for it in shared memory."""

from __future__ import annotations

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
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from edgefl.client.client import Clients
from edgefl.client.host import keep_freed_memory, pin
from edgefl.client.isolation.forked import portable
from edgefl.client.isolation.isolate import Isolated
from edgefl.client.isolation.limits import Guard
from edgefl.client.job import Job, Task
from edgefl.engine.messages import Answer, Frame, Unpacker, loads
from edgefl.engine.shared_memory import Layout, Window, shared
from edgefl.errors import EdgeflError
from edgefl.records import Outcome
from edgefl.timing.spans import drain

FRAME = struct.Struct("<4q")
"""A message to a worker: where in the arena a request lies."""
Play = Callable[[Sequence[Job]], Sequence[Outcome]]


@dataclass(frozen=True)
class Surroundings:
    """What a process that was started afresh would have had from the server's: environment, folder, and where modules are."""

    environment: Mapping[str, str]
    folder: str
    path: Sequence[str]
    main: Mapping[str, str]

    @classmethod
    def own(cls) -> Surroundings:
        """Return those of this process."""
        known = multiprocessing.spawn.get_preparation_data("edgefl")
        main = {key: str(value) for key, value in known.items() if key in ("init_main_from_name", "init_main_from_path")}
        return cls(dict(os.environ), str(known["dir"]), list(sys.path), main)

    def take(self) -> None:
        """Make them those of this process. The main script is not run yet."""
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):  # the folder was removed
            os.chdir(self.folder)
        sys.path[:] = self.path

    def loads(self, content: bytes) -> Any:
        """Return what :func:`edgefl.engine.messages.dumps` wrote; the main script is run where ``content`` has something of it."""
        if b"__main__" in content:
            _run_main(tuple(self.main.items()))
        return loads(content)


@functools.cache
def _run_main(main: tuple[tuple[str, str], ...]) -> None:
    """Run the main script, as ``__mp_main__``, for its definitions; one that has no file, as in a notebook, cannot be run again."""
    multiprocessing.spawn.prepare(dict(main))


@dataclass(frozen=True)
class Duty:
    """What a worker is to be: the run's task, how memory is held, its number of how many, and where the data lie (None: it loads them)."""

    task: Task
    guard: Guard | None
    worker: int
    workers: int
    layout: Layout | None


_here: list[Duty] = []  # in a worker: what it is


def check_not_worker() -> None:
    """Raise :class:`EdgeflError` in a worker: the main script that it runs for its definitions is not to start a run there."""
    if _here:
        raise EdgeflError(
            "a worker process was to start workers: a script that defines a part of a run, such as its method, must call edgefl under "
            "if __name__ == '__main__'"
        )


def play(jobs_fd: int, lifeline_fd: int, arena_fd: int, data_fd: int | None = None) -> None:
    """Answer requests until the server's process closes its end; where this process cannot play at all, with the reason.

    Args:
        jobs_fd: a socket: frames come in, this process's number and answers go out. The first frame is of surroundings and duty.
        lifeline_fd: a socket on which nothing comes but its end. The worker then leaves, whatever it does.
        arena_fd: the nameless file that requests lie in.
        data_fd: the nameless file that the data lie in; None: they are loaded here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the server's decides
    with contextlib.suppress(EOFError, OSError), Connection(jobs_fd) as jobs, Connection(lifeline_fd) as lifeline:
        jobs.send(os.getpid())
        window = Window(arena_fd)
        start, _, _, length = FRAME.unpack(jobs.recv_bytes())
        around, content = loads(window.read(start, length))
        unpacker = Unpacker(window, around.loads)
        try:
            around.take()
            run = _player(around.loads(content), jobs, lifeline, data_fd)
        except ChildProcessError:
            return  # what it measures with was killed: as if it had been killed itself
        except Exception as error:  # the data cannot be loaded here, or the system's limits not be set
            run = _refusing(portable(error))
        while True:
            frame = FRAME.unpack(jobs.recv_bytes())
            answer, rest = _answer(run, unpacker, frame)
            jobs.send(answer)
            for part in rest:
                jobs.send_bytes(part)


def _answer(run: Play, unpacker: Unpacker, frame: Frame) -> tuple[Answer | BaseException, list[bytes]]:
    try:
        started = time.perf_counter()
        jobs = unpacker.unpack(frame)
        outcomes = run(jobs)
        return unpacker.pack(frame, jobs, outcomes, drain(), time.perf_counter() - started)
    except Exception as error:
        return portable(error), []


def _refusing(reason: BaseException) -> Play:
    def refuse(jobs: Sequence[Job]) -> Sequence[Outcome]:
        raise reason

    return refuse


def _player(duty: Duty, jobs: Connection, lifeline: Connection, data_fd: int | None) -> Play:
    """Return how this process plays jobs. Data are read, and limits measured, here."""
    _here.append(duty)
    torch.set_num_threads(1)
    pin(duty.worker, duty.workers)
    hard = duty.task.enforce == "hard"
    if hard:
        # A thread beside would make forks unsafe; while a client's process is at work the lifeline is watched, and between jobs the jobs.
        signal.signal(signal.SIGTERM, _leave)
        os.register_at_fork(after_in_child=jobs.close)  # its end tells the server that this process is gone
    else:
        threading.Thread(target=_leave_at_end, args=(lifeline,), daemon=True).start()
        keep_freed_memory()
    clients = Clients(duty.task, None if data_fd is None or duty.layout is None else shared(data_fd, duty.layout))
    if hard:
        run = Isolated(clients, duty.guard, [lifeline]).run
        return lambda jobs: [run(job) for job in jobs]
    return clients.run_all


def _leave(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once: a client's process is being ended now
    sys.exit(1)


def _leave_at_end(lifeline: Connection) -> None:
    wait([lifeline])
    os._exit(1)
