"""A contestant as a process of its own: when its rounds began, the memory of its processes, and how much others disturbed it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from speed.process import TOOLS
from speed.work import WARM_UP

_SAMPLE_S, _PATIENCE_S = 0.1, 900.0


@dataclass(frozen=True)
class Played:
    """A contestant's rounds, in seconds.

    ``startup_s`` is from the process's start to the first round's, ``first_s`` the first round, ``rounds_s`` those after the warm-up,
    ``others`` the cores that other processes kept busy meanwhile, on average. ``server_bytes`` and ``worker_bytes`` are the most
    proportional memory of the process itself and of the largest that it started; 0 where memory was not sampled.
    """

    startup_s: float
    first_s: float
    rounds_s: tuple[float, ...]
    others: float
    found: dict[str, Any]
    server_bytes: int = 0
    worker_bytes: int = 0
    workers: int = 0

    @property
    def median_s(self) -> float:
        """The median round."""
        return median(self.rounds_s)

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of the process and of its largest worker, and how many of these there are."""
        return {"server_bytes": self.server_bytes, "worker_bytes": self.worker_bytes, "workers": self.workers}

    def to_json(self) -> dict[str, Any]:
        """Return what was timed, with what the contestant says of itself."""
        timed = {"startup_s": self.startup_s, "first_s": self.first_s, "rounds_s": self.rounds_s, "others": self.others}
        return {**timed, **self.found}


def run_child(command: Sequence[str], memory: bool = False) -> Played:
    """Run ``python command… --json FILE`` and return its rounds; memory is sampled only if asked for, because that takes time of its own.

    Raises:
        RuntimeError: it failed, or took more than a quarter of an hour; the message has the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        out, sampler = Path(folder) / "rounds.json", _Sampler()
        busy_s, started, begun_s = _busy_s(), time.time(), time.perf_counter()
        child = subprocess.Popen([sys.executable, *command, "--json", str(out)], cwd=TOOLS, stdout=said, stderr=said)
        if memory:
            sampler.watch(child.pid)
        watchdog = threading.Timer(_PATIENCE_S, child.kill)
        watchdog.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.terminate()
            raise
        finally:
            watchdog.cancel()
            sampler.stop()
        child.returncode = os.waitstatus_to_exitcode(status)
        passed_s, own_s = time.perf_counter() - begun_s, usage.ru_utime + usage.ru_stime
        others = max(0.0, _busy_s() - busy_s - own_s) / passed_s
        if child.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: status {child.returncode}\n{said.read().decode(errors='replace')[-2000:]}")
        found = json.loads(out.read_text(encoding="utf-8"))
    marks = found.pop("marks")
    rounds_s = [after - before for before, after in itertools.pairwise(marks)]
    timed = tuple(rounds_s[WARM_UP:] if len(rounds_s) > WARM_UP else rounds_s[-1:])
    return Played(marks[0] - started, rounds_s[0], timed, others, found, *sampler.peaks())


def _busy_s() -> float:
    """Return the seconds that all cores together have been busy since the system started."""
    times = psutil.cpu_times()
    return (
        sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    )


class _Sampler:
    """Reads the memory of a process and of all that it started, ten times a second, until it is stopped."""

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._root, self._over = 0, threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        self._root = pid
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            try:
                root = psutil.Process(self._root)
                family = [root, *root.children(recursive=True)]
            except psutil.Error:
                return
            for process in family:
                try:
                    held = process.memory_full_info()
                except psutil.Error:
                    continue  # it has ended
                self._peaks[process.pid] = max(self._peaks.get(process.pid, 0), getattr(held, "pss", 0) or held.uss)

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def peaks(self) -> tuple[int, int, int]:
        """Return the bytes of the process itself, those of the largest worker, and how many there were; helpers of Python do not count."""
        workers = [held for pid, held in self._peaks.items() if pid != self._root and held > 5 * 10**7]
        return self._peaks.get(self._root, 0), max(workers, default=0), len(workers)
