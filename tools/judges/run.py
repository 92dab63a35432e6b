"""Runs judges in processes of their own: one that dies or hangs costs one case."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from judges.store import Line
from judges.verdict import Judge, judged

SILENT_S = 600.0
"""Seconds without a line after which a process is stopped. A case has its own limit, in processor seconds."""
END = "end"
TOOL = Path(__file__).parents[1] / "conformance.py"


@dataclass(frozen=True)
class Task:
    """A subject of a judge; ``done`` are the cases that are judged already."""

    judge: str
    subject: str
    done: tuple[str, ...] = ()
    sample: bool = False


def judge_of(name: str) -> Judge:
    """Return a judge; ModuleNotFoundError if a package that it needs is not installed."""
    found: Judge = import_module(f"judges.{name}").JUDGE
    return found


def sampled(judge: Judge) -> list[str]:
    """Return the subjects of the fixed sample."""
    return list(judge.subjects())[judge.every // 2 :: judge.every]


def verdicts(task: Task) -> Iterator[Line]:
    """Judge a subject here. A line without a verdict says which case begins."""
    made = judge_of(task.judge).cases(task.subject)
    for case in made:
        if case.name not in task.done:
            yield Line(task.subject, case.name, "")
            found = judged(case)
            yield Line(task.subject, case.name, found.kind, found.reason)
        if task.sample:
            break


def work() -> None:
    """Judge the tasks of the standard input, one JSON line each; write lines of verdicts, and :data:`END` after each task."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no verdict
    for text in sys.stdin:
        for line in verdicts(Task(**json.loads(text))):
            print(json.dumps(vars(line)), file=results, flush=True)
        print(END, file=results, flush=True)


def run(tasks: Sequence[Task], jobs: int, found: Callable[[Task, Line], None]) -> None:
    """Judge tasks in ``jobs`` processes; ``found`` gets each verdict, one at a time."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def tell(task: Task, line: Line) -> None:
        with lock:
            found(task, line)

    def drive() -> None:
        worker: _Worker | None = None
        try:
            while True:
                task = waiting.get_nowait()
                worker = worker or _Worker()
                if (left := worker.judge(task, tell)) is not None:
                    waiting.put(left)
                if worker.process.poll() is not None:
                    worker.close()
                    worker = None
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close()

    with ThreadPoolExecutor(jobs) as pool:
        for running in [pool.submit(drive) for _ in range(min(jobs, len(tasks)))]:
            running.result()


class _Worker:
    """A process that judges."""

    def __init__(self) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(TOOL), "--work"]
        self.process: Any = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )

    def judge(self, task: Task, tell: Callable[[Task, Line], None]) -> Task | None:
        """Judge a task and tell its verdicts. A case in which the process dies has crashed; return what is left then."""
        current, done = "", list(task.done)
        self.process.stdin.write(json.dumps(vars(task)) + "\n")
        self.process.stdin.flush()
        while text := self._line():
            if text == END:
                return None
            line = Line(**json.loads(text))
            current = "" if line.verdict else line.case
            if line.verdict:
                tell(task, line)
                done.append(line.case)
        self.process.wait()
        tell(task, Line(task.subject, current or "all cases", "crashed", "the process of the judge ended"))
        return replace(task, done=(*done, current)) if current and not task.sample else None

    def _line(self) -> str:
        """Return the next line of the process; "" if it has died. One that is silent is stopped."""
        silent = threading.Timer(SILENT_S, self.process.kill)
        silent.start()
        try:
            text: str = self.process.stdout.readline()
        finally:
            silent.cancel()
        return text.rstrip("\n") if text.endswith("\n") else ""

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
