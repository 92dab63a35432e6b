"""Calls in forked processes, one for each core: for Python code that takes long on what this process has in memory."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar, cast

from edgefl.errors import EdgeflError
from edgefl.util.machine import usable_threads

T = TypeVar("T")
_calls: Sequence[Callable[[], object]] = ()  # what the forked processes find here; only numbers are sent to them


def in_forks(calls: Sequence[Callable[[], T]], worth: bool = True) -> Iterator[T]:
    """Yield what each call returns, in their order. The calls run here, one after the other, unless it is ``worth`` to fork.

    Results travel between processes, so they must be data. Windows and macOS cannot fork safely: there the calls run here.

    Raises:
        EdgeflError: a process was killed.

    >>> list(in_forks([lambda: 1, lambda: 2]))
    [1, 2]
    """
    global _calls
    if not worth or sys.platform != "linux" or min(len(calls), usable_threads()) < 2:
        yield from (call() for call in calls)
        return
    before, _calls = _calls, calls
    lifeline = os.pipe()
    try:
        with ProcessPoolExecutor(min(len(calls), usable_threads()), get_context("fork"), _follow, lifeline) as pool:
            for found in pool.map(_called, range(len(calls))):
                if isinstance(found, _Raised):
                    raise found.again()
                yield cast(T, found)
    except BrokenProcessPool:
        raise EdgeflError("a process was killed from outside, or this computer ran out of memory") from None
    finally:
        _calls = before
        for end in lifeline:
            os.close(end)


@dataclass(frozen=True)
class _Raised:
    """An error as it travels: some classes make their text from other arguments, so that they cannot be read back."""

    kind: type[Exception]
    text: str
    where: str

    def again(self) -> Exception:
        """Return the error, with a note that says where it was raised."""
        error: Exception = self.kind.__new__(self.kind, self.text)
        error.add_note(self.where)
        return error


def _called(place: int) -> object:
    try:
        return _calls[place]()
    except Exception as error:  # noqa: BLE001 - raised again in the process that forked
        return _Raised(type(error), str(error), "".join(traceback.format_exception(error)))


def _follow(read_end: int, write_end: int) -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the one that forked; end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(write_end)  # only the process that forked has it: reading ends when that is gone
    threading.Thread(target=_end_with, args=(read_end,), daemon=True).start()


def _end_with(read_end: int) -> None:
    os.read(read_end, 1)
    os._exit(1)
