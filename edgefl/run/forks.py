"""Calls in forked processes, one for each core: for Python code that takes long on what this process has in memory."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from edgefl.client.isolation.limits import die_with
from edgefl.client.messages import error_fields, error_of
from edgefl.errors import EdgeflError
from edgefl.util.machine import usable_threads

T = TypeVar("T")
_calls: Sequence[Callable[[], object]] = ()  # of a forked process, which has them from its start: only numbers are sent to it


def in_forks(calls: Sequence[Callable[[], T]], worth: bool = True) -> Iterator[T]:
    """Yield what each call returns, in their order. The calls run here, one after the other, unless it is ``worth`` to fork.

    Results travel between processes, so they must be data. Windows and macOS cannot fork safely: there the calls run here.

    Raises:
        EdgeflError: a call raised it, or anything else; or a process was killed.

    >>> list(in_forks([lambda: 1, lambda: 2]))
    [1, 2]
    """
    processes = min(len(calls), usable_threads())
    if not worth or sys.platform != "linux" or processes < 2:
        yield from (call() for call in calls)
        return
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), _begin, (os.getpid(), calls)) as pool:
            for found, error in pool.map(_called, range(len(calls))):
                if error is not None:
                    raise error_of(error)
                yield found
    except BrokenProcessPool:
        raise EdgeflError("a process was killed from outside, or this computer ran out of memory") from None


def _begin(parent: int, calls: Sequence[Callable[[], object]]) -> None:
    """Take the calls, end with the process that forked, and leave Ctrl-C, which reaches every process of a terminal, to it."""
    global _calls
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _calls = calls


def _called(place: int) -> tuple[Any, dict[str, str] | None]:
    try:
        return _calls[place](), None
    except Exception as error:  # noqa: BLE001 - raised again in the process that forked
        return None, error_fields(error)
