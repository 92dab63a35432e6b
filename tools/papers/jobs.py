"""Runs of a queue in processes: each resumes from its checkpoints, stores itself when it is finished, and deletes its folder."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import edgefl
from edgefl.errors import CheckpointError, EdgeflError, StorageError
from edgefl.util.files import sha256
from papers import store
from papers.inputs import inputs
from papers.probe import probe
from papers.runs import Run
from papers.training import DivergedError, NotTrainedError, OutOfTimeError, cpu_s, figures
from papers.tuning import chose, excluded, score

NICE = 10


@dataclass(frozen=True)
class Job:
    """One run to train.

    Attributes:
        table, scale: where it is stored, in ``results``.
        work: the folder of unfinished runs.
        host: engine, workers and device, as edgefl's configuration has them.
        about: commit and host of the stored line.
        until: the time after which no further round begins; None: no limit.
    """

    table: str
    scale: str
    run: Run
    results: Path
    work: Path
    host: Mapping[str, Any]
    about: Mapping[str, Any]
    until: float | None = None

    @property
    def folder(self) -> Path:
        """The run's own folder; other settings, code, engine or device have another one."""
        since = [self.run.since] if self.run.since else []
        hashed = sha256(json.dumps([self.inputs, self.run.kind, *since, dict(self.host)], sort_keys=True).encode())[:12]
        words = "".join(c if c.isalnum() else "-" for c in self.run.name(self.table))
        return self.work / f"{words}-{self.scale}-{hashed}"

    @property
    def inputs(self) -> str:
        """The hash of what decides the figures."""
        return inputs(dict(self.run.settings))


@dataclass(frozen=True)
class Ended:
    """How a job ended; ``text`` says it to the user."""

    job: Job
    status: Literal["stored", "diverged", "failed", "full disk", "out of time", "elsewhere"]
    text: str
    cpu_s: float = 0.0
    entry: Mapping[str, Any] | None = None


def finish(job: Job) -> Ended:
    """Train a job, or the rest of it, and store its line; errors are returned, not raised."""
    if job.until is not None and time.time() > job.until:
        return Ended(job, "out of time", "not begun")
    with store.claimed(job.folder) as ours:
        if not ours:
            return Ended(job, "elsewhere", "another process trains it")
        folder = job.folder / "run"
        if _is_excluded(job):
            shutil.rmtree(job.folder, ignore_errors=True)
            return Ended(job, "diverged", "another run with its settings has diverged; the next best are due")
        try:
            probed = _probed(job)
            found = _found(job, folder)
            took_s = cpu_s(folder)
            about = {**job.about, "inputs": job.inputs, "cpu_s": round(took_s, 1), **probed}
            entry = job.run.stored(found, edgefl.__version__, **about)
            store.add(job.results / f"{job.table}.jsonl", job.scale, entry)
        except OutOfTimeError as error:
            return Ended(job, "out of time", str(error), cpu_s(folder))
        except StorageError as error:
            return Ended(job, "full disk", str(error))
        except (EdgeflError, RuntimeError, ValueError, OSError) as error:
            if isinstance(error, (NotTrainedError, CheckpointError)):
                shutil.rmtree(job.folder, ignore_errors=True)  # to resume it would fail again
            if isinstance(error, DivergedError) and job.run.chosen is not None:
                _exclude(job, str(error))
                return Ended(job, "diverged", f"{error}; the next best of its settings is due")
            return Ended(job, "failed", f"{type(error).__name__}: {error}")
        shutil.rmtree(job.folder, ignore_errors=True)
        return Ended(job, "stored", _said(found), took_s, entry)


def _is_excluded(job: Job) -> bool:
    """Return whether a run with the settings of this one has diverged since they were chosen."""
    stored = store.load(job.results / f"{job.table}.jsonl").get(job.scale, [])
    return any(chose(job.run, line) and line["figures"]["score"] is None for line in stored)


def _exclude(job: Job, why: str) -> None:
    """Take the score from the trial that chose the settings of a run."""
    path = job.results / f"{job.table}.jsonl"
    store.amend(path, lambda scale, line: excluded(job.run, line, why) if scale == job.scale else line)


def _found(job: Job, folder: Path) -> dict[str, Any]:
    """Return the figures; a trial that diverges has none, which decides against its settings."""
    settings = {**job.run.settings, **job.host}
    if job.run.kind == "run":
        return figures(settings, job.run.local, folder, job.until, job.run.since)
    try:
        found = figures(settings, job.run.local, folder, job.until)
    except NotTrainedError as error:
        return {"score": None, "diverged": str(error)}
    return {**found, "score": score(found)}


def _probed(job: Job) -> dict[str, Any]:
    """Return the probe of a run, which later code is compared with; none at the scale of which nothing is kept."""
    return {} if job.scale == "smoke" else {"probe": probe(job.run.settings, job.run.local)}


def _said(found: Mapping[str, Any]) -> str:
    return f"{100 * found['accuracy']['global']:.1f} %" if "accuracy" in found else f"no figures ({found['diverged']})"


def train_all(jobs: Sequence[Job], at_once: int, nice: bool) -> Iterator[Ended]:
    """Yield every job as it ends, ``at_once`` at a time. A process that is killed ends the others; all of them can be resumed."""
    # Told to keep the memory that a step has freed, glibc saves the processes a twentieth of their time.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**28)}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, initializer=_begin, initargs=(nice,)) as pool:
        futures = {pool.submit(finish, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                error = future.exception()
                failed = Ended(futures[future], "failed", f"{type(error).__name__}: {error}")
                yield future.result() if error is None else failed
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(nice: bool) -> None:
    """Give way to other programs, and end with the queue: a process whose parent was killed would wait for its next run for ever."""
    if nice:
        os.nice(NICE)
        with contextlib.suppress(OSError):  # Linux divides time among sessions first, whatever the niceness of their processes
            os.setsid()
            Path("/proc/self/autogroup").write_text(str(NICE), encoding="ascii")
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    with contextlib.suppress(OSError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file here


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
