"""Host time as named spans of all processes, by one clock; seconds per stage, and events for ui.perfetto.dev. Workers send their spans."""

import os
import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

STAGES: Mapping[str, str] = {
    "start": "loading torch and the rest of the program",
    "prepare": "data, networks, costs and the assignment, before the first round",
    "trial": "finding the fastest engine",
    "select": "selecting the clients of a round and forecasting their sessions",
    "factorize": "making the sub-models of clients",
    "encode": "tensors to bytes",
    "keep": "reading and writing what clients store between rounds",
    "wait": "the server waits for clients to train",
    "train": "local training",
    "meter": "measuring the memory of local training",
    "decode": "bytes to tensors, and their checks",
    "aggregate": "aggregating updates",
    "distil": "training on public samples",
    "observe": "figures that the method reports of its round",
    "evaluate": "accuracies on held-out samples",
    "checkpoint": "storing the state from which a run resumes",
    "record": "the round's line in rounds.jsonl",
    "bundle": "the networks for devices, exported and checked",
    "report": "summary and page",
    "other": "everything without a name",
}
"""Stage → meaning, in the order of a run. The server's stages add up to its working time."""

KEPT = 1 << 18
"""So many spans are held until they are drained, the newest ones: about 60 MB."""

Detail = int | float | str


@dataclass(frozen=True)
class Span:
    """A named interval of time.

    Attributes:
        name: the stage, one of :data:`STAGES`.
        start_s, duration_s: host seconds by ``time.perf_counter``, one clock for all processes on Linux and macOS.
        worker: 0 is the server, 1 and up its worker processes.
        detail: what a trace shows with it, such as the client.
        thread: the thread's name, empty for the process's main thread.
    """

    name: str
    start_s: float
    duration_s: float
    worker: int = 0
    detail: Mapping[str, Detail] = field(default_factory=dict)
    thread: str = ""

    @property
    def end_s(self) -> float:
        """When it ended, by ``time.perf_counter``."""
        return self.start_s + self.duration_s


# Making a tuple takes a third of the time of a frozen record. A deque's append and popleft are atomic.
_recorded: deque[Span | tuple[str, float, float, dict[str, Detail], threading.Thread]] = deque(maxlen=KEPT)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_recorded.clear)  # the parent reports its own spans


_listeners: list[Callable[[str, Mapping[str, Detail]], None]] = []


@contextmanager
def heard(by: Callable[[str, Mapping[str, Detail]], None]) -> Iterator[None]:
    """Call ``by`` with the name and detail of every span that the main thread begins in the block.

    >>> with heard(lambda name, detail: print(name, detail)), span("train", client=3):
    ...     pass
    train {'client': 3}
    """
    _listeners.append(by)
    try:
        yield
    finally:
        _listeners.remove(by)


class span:  # noqa: N801 - used like a function
    """Record how long a block takes, also if it raises. Usable from any thread.

    >>> _ = drain()
    >>> with span("train", client=3):
    ...     pass
    >>> [(s.name, s.detail, s.worker) for s in drain()]
    [('train', {'client': 3}, 0)]
    """

    __slots__ = ("_detail", "_name", "_start_s")

    def __init__(self, name: str, **detail: Detail) -> None:
        self._name, self._detail = name, detail

    def __enter__(self) -> None:
        self._start_s = perf_counter()
        if _listeners and threading.current_thread() is threading.main_thread():
            for listener in _listeners:
                listener(self._name, self._detail)

    def __exit__(self, *error: object) -> None:
        ended_s = perf_counter()
        _recorded.append((self._name, self._start_s, ended_s - self._start_s, self._detail, threading.current_thread()))


def drain() -> list[Span]:
    """Remove and return the spans of this process since the last call, in the order in which they ended."""
    taken: list[Span] = []
    while True:
        try:
            recorded = _recorded.popleft()
        except IndexError:
            return taken
        if isinstance(recorded, tuple):
            name, start_s, duration_s, detail, thread = recorded
            recorded = Span(name, start_s, duration_s, 0, detail, _track(thread))
        taken.append(recorded)


def here() -> str:
    """Return :attr:`Span.thread` of spans of the calling thread."""
    return _track(threading.current_thread())


def _track(thread: threading.Thread) -> str:
    return "" if thread is threading.main_thread() else thread.name


def absorb(spans: Iterable[Span], worker: int, offset_s: float = 0.0) -> None:
    """Add the spans of worker process ``worker`` (from 1) and its own workers to those of this process.

    ``offset_s``: by so many seconds this process's clock is ahead of the worker's.
    """
    for s in spans:
        _recorded.append(Span(s.name, s.start_s + offset_s, s.duration_s, worker + s.worker, s.detail, s.thread))


def seconds(spans: Iterable[Span]) -> dict[str, float]:
    """Return stage → seconds, in the order of :data:`STAGES`; time in nested spans of a thread counts for the inner one only.

    >>> seconds([Span("wait", 0.0, 5.0), Span("encode", 1.0, 2.0), Span("encode", 3.5, 1.0)])
    {'encode': 3.0, 'wait': 2.0}
    """
    threads: defaultdict[tuple[int, str], list[Span]] = defaultdict(list)
    for timed in spans:
        threads[timed.worker, timed.thread].append(timed)
    by_stage: defaultdict[str, float] = defaultdict(float)
    for of_thread in threads.values():
        around: list[Span] = []
        for timed in sorted(of_thread, key=lambda s: (s.start_s, -s.duration_s)):
            while around and around[-1].end_s <= timed.start_s:
                around.pop()
            by_stage[timed.name] += timed.duration_s
            if around:  # the time belongs to this inner span
                by_stage[around[-1].name] -= min(timed.end_s, around[-1].end_s) - timed.start_s
            around.append(timed)
    order = [*STAGES, *sorted(by_stage.keys() - STAGES.keys())]
    return {name: max(by_stage[name], 0.0) for name in order if name in by_stage}


def events(spans: Iterable[Span], named: set[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return spans as events of Chrome's trace format, in microseconds: a process per worker, a track per thread.

    ``named`` contains the (worker, thread) pairs whose names were written before; new pairs are added to it.

    >>> [event["name"] for event in events([Span("train", 0.5, 0.25, worker=1)], set())]
    ['process_name', 'process_sort_index', 'thread_name', 'train']
    """
    rows: list[dict[str, Any]] = []
    for timed in spans:
        track = {"pid": timed.worker, "tid": zlib.crc32(timed.thread.encode()) & 0x7FFFFFFF}
        if (timed.worker, timed.thread) not in named:
            named.add((timed.worker, timed.thread))
            process = f"worker {timed.worker}" if timed.worker else "server"
            names = {
                "process_name": {"name": process},
                "process_sort_index": {"sort_index": timed.worker},
                "thread_name": {"name": timed.thread or "main"},
            }
            rows += [{"ph": "M", "name": kind, **track, "args": args} for kind, args in names.items()]
        times = {"ts": round(timed.start_s * 1e6, 3), "dur": round(timed.duration_s * 1e6, 3)}
        rows.append({"ph": "X", "cat": "edgefl", "name": timed.name, **track, **times, "args": dict(timed.detail)})
    return rows
