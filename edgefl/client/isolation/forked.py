"""Run a function in a process forked from this one: that takes milliseconds, because nothing is imported or loaded again.

The process that forks must have a single thread and never have run a backward pass: then no lock is held and no pool of threads is lost.
When :func:`in_child` returns or raises, the child has ended and has been waited for. It is killed if the process that forked it dies.
"""

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

POLL_S = 0.02  # how often the watchdog reads the memory of a process
_OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "could not create a memory",
    "could not create a primitive",
)  # fmt: skip
How = Literal["done", "error", "out_of_memory", "out_of_time", "crashed"]
Watch = Callable[[int | None, int], None]
"""``watch(limit_bytes, base_bytes)``: the process is killed beyond so many resident bytes (None: not); peaks count from the base."""


class OverLimitError(MemoryError):
    """The forked process itself found that it exceeded its memory limit; it held ``peak_bytes``."""

    def __init__(self, peak_bytes: int) -> None:
        super().__init__(f"held {peak_bytes:,} bytes")
        self.peak_bytes = peak_bytes


@dataclass(frozen=True)
class Ended:
    """How a forked process ended.

    Attributes:
        how: "done", "error", or the limit or crash that ended it.
        result, error: what its work returned or raised.
        peak_bytes: the most that it was seen to hold beyond ``base_bytes``; None: not watched.
    """

    how: How
    result: bytes = b""
    error: EdgeflError | None = None
    peak_bytes: int | None = None


def in_child(work: Callable[[Watch], bytes], cpu_limit_s: float = 3600.0, inherited: Sequence[Connection] = ()) -> Ended:
    """Run ``work`` in a forked process, which may use ``cpu_limit_s`` processor seconds, rounded up; return how it ended.

    ``work`` receives a :data:`Watch`. The child closes ``inherited``, connections to the process that sends work. If their other end closes
    meanwhile, the child is killed and this process exits (SystemExit).
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
    """Return how the child ended. If it died without a message it has crashed, unless it was killed here for its memory."""
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
                os.kill(pid, signal.SIGKILL)  # its number is not reused before it is waited for


def _be_child(
    work: Callable[[Watch], bytes], sender: Connection, maker: int, cpu_s: int, inherited: Sequence[Connection]
) -> NoReturn:
    """Work, answer, and exit at once: open files and exit functions belong to the process ``maker``."""
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
    """Return whether ``error`` says that Python, torch or a kernel could not allocate memory."""
    says_so = isinstance(error, RuntimeError | OSError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or says_so
