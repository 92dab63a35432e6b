"""The runs of comparisons: one after the other here, or several at a time in processes of their own, until a moment.

A process takes one run after another: a line of JSON on its standard input asks for a run, and lines on its output answer. Every run is an
ordinary one in its own folder, so that one that ends early continues, and one that fails does not stop the others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import tomlkit

import edgefl.plugins as plugins
from edgefl.config import RunConfig
from edgefl.consent import receive, sent
from edgefl.errors import AggregationError, BudgetError, ConfigError, EdgeflError, MetricError, OutOfTimeError
from edgefl.records import RoundRecord
from edgefl.run.compare_entries import ComparedRun
from edgefl.run.folder import Notify
from edgefl.run.simulate import simulate
from edgefl.util.files import module_command
from edgefl.util.modules import OBJECT

OnRecord = Callable[[RoundRecord], None]
FAILURES = (BudgetError, AggregationError, MetricError)
"""Errors of one run, which do not stop others."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made: one part of a comparison, and its folder."""

    part: ComparedRun
    home: Path


def unlike(runs: Sequence[PlannedRun]) -> dict[int, int]:
    """Return the place of each run → the place of the first run with the same configuration."""
    first: dict[str, int] = {}
    return {place: first.setdefault(run.part.config.to_toml(), place) for place, run in enumerate(runs)}


def play(
    run: PlannedRun, resume: bool, say: Notify, on_record: OnRecord | None = None, until_s: float | None = None
) -> ComparedRun:
    """Make one run here; return its part, with the reason if it failed.

    Raises:
        OutOfTimeError: the clock of this computer has passed ``until_s``, seconds since 1970.
    """

    def told(record: RoundRecord) -> None:
        if on_record is not None:
            on_record(record)
        check_time(until_s)

    check_time(until_s)
    try:
        simulate(run.part.config, run.home, resume=resume, on_round=told, notify=lambda text: say(f"{run.part.name}: {text}"))
    except FAILURES as error:
        say(f"{run.part.name}: failed: {error}")
        return replace(run.part, failure=str(error))
    return run.part


def check_time(until_s: float | None) -> None:
    """Raise :class:`OutOfTimeError` if the clock of this computer has passed ``until_s``."""
    if until_s is not None and time.time() > until_s:
        raise OutOfTimeError("no time is left")


def play_all(
    runs: Sequence[PlannedRun], resume: bool, say: Notify, jobs: int = 1, until_s: float | None = None
) -> list[ComparedRun]:
    """Make all runs, ``jobs`` at a time, and return their parts in the same order. Runs of one configuration are made once, and copied.

    Raises:
        ConfigError: a run names an object of this process, and ``jobs`` is more than 1.
        OutOfTimeError: ``until_s`` came before all runs were complete.
    """
    alike = unlike(runs)
    wanted = [place for place, first in alike.items() if place == first and not runs[place].part.failure]
    if jobs > 1 and len(wanted) > 1:
        _check_importable([runs[place] for place in wanted])
        done = _in_processes({place: runs[place] for place in wanted}, resume, say, min(jobs, len(wanted)), until_s)
    else:
        done = {place: play(runs[place], resume, say, None, until_s) for place in wanted}
    return [_copied(runs, place, first, done.get(first)) for place, first in alike.items()]


def _copied(runs: Sequence[PlannedRun], place: int, first: int, done: ComparedRun | None) -> ComparedRun:
    """Return the part at a place; its folder is a copy if another run has the same configuration."""
    part, failure = runs[place].part, (done or runs[place].part).failure
    if place != first and not failure and not (runs[place].home / "summary.json").exists():
        shutil.copytree(runs[first].home, runs[place].home, dirs_exist_ok=True)
    return replace(part, failure=failure)


def _check_importable(runs: Sequence[PlannedRun]) -> None:
    for run in runs:
        text = run.part.config.to_toml()
        if OBJECT in text:
            raise ConfigError(
                f"jobs: {run.part.name} names an object of this process, which other processes cannot import; put it into a file and name "
                "it as file.py:name, or give jobs 1"
            )


class _Worker:
    """A process that makes runs."""

    def __init__(self) -> None:
        command, env = module_command("edgefl.run.parallel")
        env |= {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)

    def play(self, run: PlannedRun, resume: bool, say: Notify, until_s: float | None) -> ComparedRun:
        """Make one run there; see :func:`play`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alone = run.part.config.engine or "inline"  # the other cores have runs of their own
        asked = {
            "config": run.part.config.model_copy(update={"engine": alone}).to_toml(),
            "home": str(run.home),
            "resume": resume,
            "until_s": until_s,
            "pinned": sent(),
        }
        try:
            self._process.stdin.write(f"{json.dumps(asked)}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended(run, say)
        for line in self._process.stdout:
            answer = json.loads(line)
            if "say" in answer:
                say(f"{run.part.name}: {answer['say']}")
            elif answer["late"]:
                raise OutOfTimeError("no time is left")
            else:
                if answer["failure"]:
                    say(f"{run.part.name}: failed: {answer['failure']}")
                return replace(run.part, failure=answer["failure"])
        return self._ended(run, say)

    def _ended(self, run: PlannedRun, say: Notify) -> ComparedRun:
        failure = f"its process ended with status {self._process.wait()}"
        say(f"{run.part.name}: failed: {failure}")
        return replace(run.part, failure=failure)

    @property
    def alive(self) -> bool:
        """Whether it can make another run."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _in_processes(
    runs: Mapping[int, PlannedRun], resume: bool, say: Notify, jobs: int, until_s: float | None
) -> dict[int, ComparedRun]:
    workers: list[_Worker] = []
    own, late = threading.local(), list[str]()

    def one(run: PlannedRun) -> ComparedRun:
        if not getattr(own, "worker", None) or not own.worker.alive:
            own.worker = _Worker()
            workers.append(own.worker)
        try:
            return cast(ComparedRun, own.worker.play(run, resume, say, until_s))
        except OutOfTimeError:
            late.append(run.part.name)
            return run.part

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(one, run) for run in runs.values()]
        try:
            found = [one.result() for one in waiting]
        finally:  # an interruption ends the processes, which ends the threads that read from them
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()
    if late:
        raise OutOfTimeError("no time is left")
    return dict(zip(runs, found, strict=True))


def _until(until_s: float | None, record: RoundRecord) -> None:
    check_time(until_s)


def main() -> None:
    """Make the runs that lines of standard input ask for."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a network of the user's prints is no answer

    def answer(**values: Any) -> None:
        answers.write(f"{json.dumps(values)}\n")
        answers.flush()

    for line in sys.stdin:
        asked = json.loads(line)
        failure, late = "", False
        try:
            receive(asked["pinned"])
            values = tomlkit.parse(asked["config"]).unwrap()
            plugins.load(values.get("plugins") or ())
            config, home = RunConfig.of(values), Path(asked["home"])
            check_time(asked["until_s"])
            until = partial(_until, asked["until_s"])
            simulate(config, home, resume=asked["resume"], on_round=until, notify=lambda text: answer(say=text))
        except OutOfTimeError:
            late = True
        except EdgeflError as error:
            failure = str(error)
        answer(failure=failure, late=late)


if __name__ == "__main__":
    main()
