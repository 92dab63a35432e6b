"""One piece of work in a process of its own, forked from this one: that takes milliseconds, as nothing is imported or loaded again.

The process that forks has a single thread and never ran a backward pass, so that no lock is held and no pool of threads is lost. Its
child has ended, and has been waited for, when :func:`in_child` returns, however it returns; it dies with the process that forked it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Literal, NoReturn

from pydantic_core import from_json, to_json

from edgefl.client.isolation.limits import die_with, held, set_cpu_limit
from edgefl.client.messages import error_fields, error_of
from edgefl.errors import EdgeflError

POLL_S = 0.02
_OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "could not create a memory",
    "could not create a primitive",
)  # fmt: skip
How = Literal["done", "error", "out_of_memory", "out_of_time", "crashed"]
Watch = Callable[[int | None, int], None]


class OverLimitError(MemoryError):
    """Work exceeded its memory and noticed it; it held ``peak_bytes``."""

    def __init__(self, peak_bytes: int) -> None:
        super().__init__(f"held {peak_bytes:,} bytes")
        self.peak_bytes = peak_bytes


@dataclass(frozen=True)
class Ended:
    """How work ended, and what it returned or raised; ``peak_bytes`` is the most that it was seen to hold beyond ``base_bytes``."""

    how: How
    result: bytes = b""
    error: EdgeflError | None = None
    peak_bytes: int | None = None


def in_child(work: Callable[[Watch], bytes], cpu_limit_s: float = 3600.0, inherited: Sequence[Connection] = ()) -> Ended:
    """Run ``work`` in a forked process with a limit on its processor time, rounded up to whole seconds.

    ``work`` gets a function ``watch(limit_bytes, base_bytes)``: from then on the process is killed when more than ``limit_bytes`` of it are
    resident, and the peak counts from ``base_bytes``; None ends that. The child closes the connections ``inherited`` from the process that
    sends work. When their other end closes while it works, it is killed and this process exits (SystemExit).
    """
    receiver, sender = Pipe(duplex=False)
    maker, cpu_s = os.getpid(), max(1, math.ceil(cpu_limit_s))
    pid = os.fork()
    if pid == 0:
        receiver.close()
        _be_child(work, sender, maker, cpu_s, inherited)
    sender.close()
    with receiver:
        try:
            ended = _watched(pid, receiver, inherited)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            _, status, usage = os.wait4(pid, 0)
    died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    timed_out = died_of == signal.SIGXCPU or (died_of == signal.SIGKILL and usage.ru_utime + usage.ru_stime >= cpu_s)
    return replace(ended, how="out_of_time") if ended.how == "crashed" and timed_out else ended


def _watched(pid: int, receiver: Connection, inherited: Sequence[Connection]) -> Ended:
    """Return how the child's work ended; if it died without a message, it has crashed, unless it was killed for its memory."""
    limit_bytes: int | None = None
    base_bytes, peak_bytes, over = 0, None, False
    while True:
        ready = wait([receiver, *inherited], POLL_S)
        if any(connection in ready for connection in inherited):
            raise SystemExit(1)  # the server has gone
        if receiver in ready:
            try:
                kind, *values = from_json(receiver.recv_bytes())
                if kind == "done":
                    return Ended("done", receiver.recv_bytes(), None, peak_bytes)
            except (EOFError, OSError):
                return Ended("out_of_memory" if over else "crashed", peak_bytes=peak_bytes)
            if kind == "error":
                return Ended("error", error=error_of(values[0]), peak_bytes=peak_bytes)
            if kind == "out_of_memory":
                return Ended("out_of_memory", peak_bytes=max(peak_bytes or 0, values[0] or 0) or None)
            limit_bytes, base_bytes = values
        if limit_bytes is not None and (now := held(pid)) is not None:
            peak_bytes = max(peak_bytes or 0, now.resident_bytes - base_bytes)
            if now.resident_bytes > limit_bytes and not over:
                over = True
                os.kill(pid, signal.SIGKILL)  # not waited for yet: the number is still its own


def _be_child(
    work: Callable[[Watch], bytes], sender: Connection, maker: int, cpu_s: int, inherited: Sequence[Connection]
) -> NoReturn:
    """Work, answer, and exit without an interpreter's usual end: open files and exit functions belong to the maker."""
    try:
        die_with(maker)
        if sys.platform != "linux":
            threading.Thread(target=_leave_with, args=(maker,), daemon=True).start()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for connection in inherited:
            connection.close()
        set_cpu_limit(cpu_s)
        try:
            answer = [to_json(["done"]), work(lambda limit, base: sender.send_bytes(to_json(["watch", limit, base])))]
        except BaseException as error:  # noqa: BLE001 - the parent process raises it
            shortage = ("out_of_memory", getattr(error, "peak_bytes", None)) if is_shortage(error) else None
            answer = [to_json(shortage or ("error", error_fields(error)))]
        for part in answer:
            sender.send_bytes(part)
    finally:
        os._exit(0)


def _leave_with(maker: int) -> None:
    while os.getppid() == maker:
        time.sleep(0.1)
    os._exit(1)


def is_shortage(error: BaseException) -> bool:
    """Return whether ``error`` says that an allocation failed: Python's, torch's or a kernel's."""
    told = isinstance(error, RuntimeError | OSError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or told
