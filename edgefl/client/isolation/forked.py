"""One piece of work in a process of its own, forked from this one: milliseconds, as nothing is imported or loaded again.

The process that forks has a single thread and never ran a backward pass, so that no lock is held and no pool of threads is lost. Its
child is gone, and has been waited for, when :func:`in_child` returns, however it returns; it dies with the process that made it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, NoReturn

from edgefl.client.isolation.limits import die_with, held, set_cpu_limit

POLL_S = 0.02
_OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "could not create a memory",
    "could not create a primitive",
)  # fmt: skip
How = Literal["done", "error", "out_of_memory", "out_of_time", "crashed"]
Watch = Callable[[int | None, int], None]


class OverLimitError(MemoryError):
    """Work that went over its memory, and found out itself; it held ``peak_bytes``."""

    def __init__(self, peak_bytes: int) -> None:
        super().__init__(f"held {peak_bytes:,} bytes")
        self.peak_bytes = peak_bytes


@dataclass(frozen=True)
class Ended:
    """How the work ended, its result or the exception that it raised, and the most that it was seen to hold beyond ``base_bytes``."""

    how: How
    result: Any = None
    peak_bytes: int | None = None


def in_child(work: Callable[[Watch], Any], cpu_limit_s: float = 3600.0, inherited: Sequence[Connection] = ()) -> Ended:
    """Run ``work`` in a forked process with a limit on its processor time, rounded up to whole seconds.

    Args:
        work: gets a function ``watch(limit_bytes, base_bytes)``: from then on the process is killed when more than ``limit_bytes`` of it
            are resident, and the peak counts from ``base_bytes``; None ends that.
        cpu_limit_s: processor seconds.
        inherited: connections to whoever sends work. The child closes them; when the other end closes while it works, it is killed and
            this process leaves (SystemExit).
    """
    receiver, sender = Pipe(duplex=False)
    maker, cpu_s = os.getpid(), max(1, math.ceil(cpu_limit_s))
    pid = os.fork()
    if pid == 0:
        receiver.close()
        _be_child(work, sender, maker, cpu_s, inherited)
    sender.close()
    with receiver:
        child = _Child(pid)
        try:
            message, peak_bytes, over = _watched(child, receiver, inherited)
        finally:
            child.end()
    if message is not None:
        how, result = message
        return (
            Ended(how, None, max(peak_bytes or 0, result or 0) or None)
            if how == "out_of_memory"
            else Ended(how, result, peak_bytes)
        )
    if over:
        return Ended("out_of_memory", None, peak_bytes)
    timed_out = child.signal == signal.SIGXCPU or (child.signal == signal.SIGKILL and child.cpu_s >= cpu_s)
    return Ended("out_of_time" if timed_out else "crashed", None, peak_bytes)


class _Child:
    """A forked process; after :meth:`end` the signal that it died of (0: none) and the processor seconds that it took."""

    def __init__(self, pid: int) -> None:
        self.pid, self.signal, self.cpu_s = pid, 0, 0.0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)  # not waited for yet: the number is still its own

    def end(self) -> None:
        """Wait for it; it has nothing left to do, or is killed."""
        if sys.exc_info()[0] is not None:
            self.kill()
        _, status, usage = os.wait4(self.pid, 0)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.cpu_s = usage.ru_utime + usage.ru_stime


def _watched(
    child: _Child, receiver: Connection, inherited: Sequence[Connection]
) -> tuple[tuple[How, Any] | None, int | None, bool]:
    """Return the child's last message (None: it died without one), the peak in bytes, and whether it was killed for its memory."""
    limit_bytes: int | None = None
    base_bytes, peak_bytes, over = 0, None, False
    while True:
        ready = wait([receiver, *inherited], POLL_S)
        if any(connection in ready for connection in inherited):
            raise SystemExit(1)  # nobody waits for the answer any more
        if receiver in ready:
            try:
                kind, *values = receiver.recv()
            except (EOFError, OSError):
                return None, peak_bytes, over
            if kind != "watch":
                return (kind, values[0]), peak_bytes, False
            limit_bytes, base_bytes = values
        if limit_bytes is not None and (now := held(child.pid)) is not None:
            peak_bytes = max(peak_bytes or 0, now.resident_bytes - base_bytes)
            if now.resident_bytes > limit_bytes and not over:
                over = True
                child.kill()


def _be_child(
    work: Callable[[Watch], Any], sender: Connection, maker: int, cpu_s: int, inherited: Sequence[Connection]
) -> NoReturn:
    """Work, answer, and leave without what an interpreter does at its end: its open files and exit functions are the maker's."""
    try:
        die_with(maker)
        if sys.platform != "linux":
            threading.Thread(target=_leave_with, args=(maker,), daemon=True).start()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for connection in inherited:
            connection.close()
        set_cpu_limit(cpu_s)
        try:
            answer: tuple[How, Any] = ("done", work(lambda limit, base: sender.send(("watch", limit, base))))
        except BaseException as error:
            answer = ("out_of_memory", getattr(error, "peak_bytes", None)) if is_shortage(error) else ("error", portable(error))
        sender.send(answer)
    finally:
        os._exit(0)


def _leave_with(maker: int) -> None:
    while os.getppid() == maker:
        time.sleep(0.1)
    os._exit(1)


def is_shortage(error: BaseException) -> bool:
    """Return whether ``error`` says that an allocation failed: Python's, torch's or a kernel's."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(t in text for t in _OUT_OF_MEMORY)
    )


def portable(error: BaseException) -> BaseException:
    """Return ``error``, with where it happened as a note, in a form that another process can read: its nearest base class that can.

    >>> from edgefl.errors import UnknownNameError
    >>> portable(UnknownNameError("method", "fedhn", ["fedhm"]))
    InputError("unknown method 'fedhn'; did you mean 'fedhm'? Known: fedhm")
    """
    where = "".join(traceback.format_exception(error))
    # Some errors cannot be made from their text, and others not from another process: UnknownNameError from three arguments.
    for kind in (None, *type(error).__mro__[:-1]):
        with contextlib.suppress(Exception):
            copy = ForkingPickler.loads(ForkingPickler.dumps(error if kind is None else kind(str(error))))
            if isinstance(copy, BaseException) and str(copy) == str(error):
                if not getattr(copy, "__notes__", None):  # it came from further away
                    copy.add_note(where)
                return copy
    return RuntimeError(where)
