"""The queue: which runs of which tables are due, and their training, table by table, trials before runs."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from edgefl.errors import nearest
from papers.confirm import confirm
from papers.jobs import Ended, Job, train_all
from papers.runs import Run, Scale, hours_of
from papers.states import Table
from papers.store import load


@dataclass(frozen=True)
class Queue:
    """What one command trains, and how.

    Attributes:
        only: patterns of the names of runs; empty: all of them.
        repeat: whether runs that are stored and current are trained again.
        at_once: runs trained at the same time.
        nice: whether other programs have priority.
    """

    scale: Scale
    results: Path
    work: Path
    host: dict[str, Any]
    about: dict[str, Any]
    only: tuple[str, ...] = ()
    repeat: bool = False
    at_once: int = 2
    nice: bool = True
    until: float | None = None
    seeds: tuple[int, ...] | None = None

    def table(self, name: str) -> Table:
        """Return the runs of a table."""
        module = table_of(name)
        found = Table(module.runs(self.scale), module.TUNING[self.scale])
        return found if self.seeds is None else found.of_seeds(self.seeds)

    def jobs(self, name: str, runs: Sequence[Run]) -> list[Job]:
        """Return a job for each of ``runs``."""
        rest = (self.results, self.work, self.host, self.about, self.until)
        return [Job(name, self.scale, run, *rest) for run in runs]

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return what is stored of a table."""
        return load(self.path(name)).get(self.scale, [])

    def path(self, name: str) -> Path:
        """Return the file with the finished runs of a table."""
        return self.results / f"{name}.jsonl"

    def selected(self, name: str, run: Run) -> bool:
        """Whether ``only`` names a run."""
        return not self.only or any(fnmatchcase(run.name(name), pattern) for pattern in self.only)

    def of_known_runs(self) -> Queue:
        """Return the queue with patterns of ``only`` that name runs: where two rows share a run, either row's name becomes that of the run.

        ValueError if a pattern names no run.
        """
        return replace(self, only=tuple(map(self._known, self.only)))

    def _known(self, pattern: str) -> str:
        name, row, *rest = pattern.split("/")
        table = self.table(name)
        same = {} if table.tuning is None else table.tuning.same
        patterns = (pattern, "/".join((name, same.get(row, row), *rest)))
        names = [run.name(name) for run in table.runs]
        if found := next((one for one in patterns if any(fnmatchcase(known, one) for known in names)), None):
            return found
        kinds = {kind: dict.fromkeys(str(getattr(run, kind)) for run in table.runs) for kind in ("row", "column", "seed")}
        there = "".join(f"\n{kind}s of {name}: {'; '.join(values)}" for kind, values in kinds.items())
        raise ValueError(f"--only: no run {pattern!r}{';' + near if (near := nearest(pattern, names)) else ''}{there}")

    def trials(self, name: str) -> list[Job]:
        """Return the trials that are missing or stale and that selected runs need."""
        table = self.table(name)
        selected = [run for run in table.runs if self.selected(name, run)]
        return self.jobs(name, table.trials(self.entries(name), selected))

    def runs(self, name: str) -> list[Job]:
        """Return the runs that are missing or stale and whose settings are chosen; with ``repeat`` also the others."""
        table = self.table(name)
        left = table.left([] if self.repeat and table.tuning is None else self._without_runs(name))
        return self.jobs(name, [run for run in left if self.selected(name, run)])

    def plan(self, name: str) -> str:
        """Return what is left of a table, with an estimate of its time."""
        table, stored = self.table(name), load(self.path(name))
        entries, finished = stored.get(self.scale, []), [entry for of_scale in stored.values() for entry in of_scale]
        trials, runs = table.trials(entries), table.missing(entries)
        hours = [hours_of(left, finished) for left in (trials, runs)]
        of = f"{len(trials)} trials ({hours[0]:.1f} h) and {len(runs)} of {len(table.runs)} runs ({hours[1]:.1f} h)"
        return f"{name}: {of} are left, about {sum(hours):.1f} processor hours"

    def _without_runs(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries(name) if not self.repeat or entry.get("kind") == "trial"]


def table_of(name: str) -> ModuleType:
    """Return the module of a table: its TITLE, TUNING, ``runs`` and ``render``."""
    return importlib.import_module(f"papers.{name.replace('-', '_')}")


def train(queue: Queue, names: Sequence[str]) -> bool:
    """Train table by table, trials before runs; return whether all went well. Every run is stored as soon as it is finished."""
    good, before = True, {name: queue.entries(name) for name in names}
    for name in names:
        confirm(queue.path(name), functools.partial(print, flush=True), queue.scale)
        stages = [queue.trials, queue.runs]
        for stage, due in enumerate(stages):
            jobs, late, diverged, stored = due(name), 0, 0, 0
            for number, ended in enumerate(train_all(jobs, queue.at_once, queue.nice) if jobs else (), 1):
                late += ended.status == "out of time"
                diverged += ended.status == "diverged"
                stored += ended.status == "stored"
                if ended.status != "out of time" or ended.cpu_s:
                    print(f"[{number}/{len(jobs)}] {_said(ended, before[name])}", file=_stream(ended), flush=True)
                good &= ended.status not in ("failed", "full disk")
                if ended.status == "full disk":
                    print("stopped; after there is space, the same command resumes", file=sys.stderr, flush=True)
                    return False
            if late:
                print(f"{name}: time is over, and {late} of {len(jobs)} runs are left; the same command resumes", flush=True)
                return good
            if due == queue.trials and stored:
                stages.insert(stage + 1, queue.trials)  # grids may have grown
            if diverged:
                stages += [queue.trials, queue.runs]
    return good


def _stream(ended: Ended) -> Any:
    return sys.stderr if ended.status in ("failed", "full disk") else sys.stdout


def _said(ended: Ended, before: Sequence[dict[str, Any]]) -> str:
    run = ended.job.run
    said = f"{run.name(ended.job.table)}: {ended.text}"
    if ended.status != "stored":
        return said
    said += f", {ended.cpu_s:.0f} processor seconds"
    older = [entry for entry in before if run.is_stored_as(entry)]
    if older and ended.entry is not None:
        same = older[-1]["figures"] == ended.entry["figures"]
        said += "; the same figures as stored" if same else "; other figures than stored before"
    return said
