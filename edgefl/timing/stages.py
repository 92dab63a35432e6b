"""Host time of a run: seconds per stage in each round, and a trace file of all spans."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Literal, Self, TypedDict

from edgefl.errors import StorageError
from edgefl.timing.spans import STAGES, Span, drain, events, here, seconds
from edgefl.util.files import storage_errors


class Stages(TypedDict, total=False):
    """Stage → seconds: in the thread that runs the rounds and, if there are any, in the other threads, and in each worker process."""

    server: Mapping[str, float]
    background: Mapping[str, float]
    workers: Mapping[str, Mapping[str, float]]


def check_trace(path: Path) -> None:
    """Raise :class:`StorageError` if ``path`` is a folder, or its folder is missing: no trace can be written there."""
    if path.is_dir():
        raise StorageError(f"{path}: is a folder; give the name of a file for the trace, such as {path / 'trace.json'}")
    if not path.parent.is_dir():
        raise StorageError(f"{path}: there is no folder {path.parent}; make it first, or give another file for the trace")


class TraceFile:
    """A file of spans in Chrome's trace format: a JSON array, one line per event. Without its closing bracket it can be opened too."""

    def __init__(self, path: Path) -> None:
        check_trace(path)
        self._path, self._named, self._before = path, set[tuple[int, str]](), "\n"
        self._write("[", "w")

    def add(self, spans: Iterable[Span]) -> None:
        """Append spans to the file; raise :class:`StorageError` if it cannot be written."""
        lines = [json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events(spans, self._named)]
        if lines:
            self._write(self._before + ",\n".join(lines))
            self._before = ",\n"

    def close(self) -> None:
        """Write the closing bracket: the file is then valid JSON."""
        self._write("\n]\n")

    def _write(self, text: str, mode: Literal["w", "a"] = "a") -> None:
        with storage_errors(self._path), self._path.open(mode, encoding="utf-8") as file:
            file.write(text)


class Stopwatch:
    """Measures the stages between two laps. Each lap writes its spans to the trace, if there is one, and drops them."""

    def __init__(self) -> None:
        self._trace: TraceFile | None = None
        self._since_s = perf_counter()
        # Of the earlier spans, only the start of the process belongs to the run.
        self._before = [timed for timed in drain() if timed.name == "start"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._trace is not None:
            self._trace.add([*self._before, *drain()])
            self._trace.close()

    def trace_to(self, path: Path) -> None:
        """Write all spans to a trace file from now on, including those since the last lap."""
        self._trace = TraceFile(path)

    def lap(self) -> Stages:
        """Return the seconds per stage since the last call; those of the server add up to the elapsed time."""
        spans, self._before = [*self._before, *drain()], []
        if self._trace is not None:
            self._trace.add(spans)
        now_s, since_s = perf_counter(), self._since_s
        self._since_s = now_s
        return stages_of(spans, since_s, now_s, here())


def stages_of(spans: Sequence[Span], since_s: float, now_s: float, thread: str = "") -> Stages:
    """Return the stages of ``spans``; ``thread`` runs the rounds, and its time from ``since_s`` to ``now_s`` without spans is ``other``.

    >>> stages_of([Span("train", 1.0, 2.0), Span("checkpoint", 1.0, 0.5, thread="disk"), Span("train", 0.0, 3.0, worker=1)], 0.5, 3.5)
    {'server': {'train': 2.0, 'other': 1.0}, 'background': {'checkpoint': 0.5}, 'workers': {'1': {'train': 3.0}}}
    """
    of_thread = [timed for timed in spans if timed.worker == 0 and timed.thread == thread]
    server = seconds(of_thread)
    passed_s = now_s - min([since_s, *(timed.start_s for timed in of_thread)])
    server["other"] = max(0.0, passed_s - sum(server.values()))
    beside = seconds(timed for timed in spans if timed.worker == 0 and timed.thread != thread)
    workers = {
        str(n): seconds(timed for timed in spans if timed.worker == n) for n in sorted({timed.worker for timed in spans} - {0})
    }
    return added([{"server": server, "background": beside, "workers": workers}])


def added(parts: Iterable[Stages]) -> Stages:
    """Return the sum of several :class:`Stages`, rounded to microseconds.

    >>> added([{"server": {"train": 1.0}}, {}, {"server": {"select": 0.5, "train": 1.0}}])
    {'server': {'select': 0.5, 'train': 2.0}}
    """
    parts = list(parts)
    stages: Stages = {"server": _sum([part.get("server", {}) for part in parts])}
    if beside := _sum([part.get("background", {}) for part in parts]):
        stages["background"] = beside
    of_workers = [part.get("workers", {}) for part in parts]
    if numbers := sorted({number for part in of_workers for number in part}, key=int):
        stages["workers"] = {number: _sum([part.get(number, {}) for part in of_workers]) for number in numbers}
    return stages


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for part in parts for name in part}
    order = [*(name for name in STAGES if name in names), *sorted(names - STAGES.keys())]
    return {name: round(sum(part.get(name, 0.0) for part in parts), 6) for name in order}
