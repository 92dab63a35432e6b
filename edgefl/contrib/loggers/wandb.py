"""Weights & Biases: a run of the project ``edgefl``, offline in the run's folder unless WANDB_MODE says otherwise."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.log.contract import LoggedRun, Logger
from edgefl.registry import logger
from edgefl.util.files import sha256

PROJECT = "edgefl"


@logger("wandb", needs="wandb", extra="edgefl-sim[wandb]")
@contextlib.contextmanager
def wandb(run: LoggedRun) -> Iterator[Logger]:
    """Log to ``logs/wandb`` in the run's folder; ``wandb sync`` uploads it. The folder decides the run's identifier, also on resume."""
    package = importlib.import_module("wandb")
    folder = run.folder / "logs"
    folder.mkdir(exist_ok=True)
    opened = package.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        id=sha256(str(run.folder.resolve()).encode())[:12],
        resume="allow",
        dir=str(folder),
        config=dict(run.settings),
        mode=os.environ.get("WANDB_MODE", "offline"),
        settings=package.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
    )
    run_log = _Wandb(package, opened)
    try:
        yield run_log
    finally:
        opened.finish(exit_code=0 if run_log.ended else 1)


class _Wandb:
    def __init__(self, package: Any, run: Any) -> None:
        self._package, self._run, self.ended = package, run, False

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=number, commit=True)

    def end(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        self._run.summary.update(dict(metrics))
        artifact = self._package.Artifact(f"run-{self._run.id}", type="run")
        for file in files:
            for path in sorted(file.rglob("*")) if file.is_dir() else [file]:
                if path.is_file():
                    artifact.add_file(str(path), name=str(path.relative_to(file.parent)))
        self._run.log_artifact(artifact)
        self.ended = True
