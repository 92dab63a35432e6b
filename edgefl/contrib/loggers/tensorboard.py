"""TensorBoard: event files in the run's folder; show them with ``tensorboard --logdir runs``."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.log.contract import LoggedRun, Logger
from edgefl.registry import logger


@logger("tensorboard", needs="tensorboard", extra="edgefl-sim[tensorboard]")
@contextlib.contextmanager
def tensorboard(run: LoggedRun) -> Iterator[Logger]:
    """Write to ``logs/tensorboard`` in the run's folder; artifacts are listed with their paths, because TensorBoard stores no files."""
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(run.folder / "logs" / "tensorboard")
    with contextlib.closing(writer):
        writer.add_text("configuration", f"```json\n{json.dumps(run.settings, indent=2)}\n```")
        yield _TensorBoard(writer)


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value)
        self._writer.add_text("artifacts", "\n".join(f"- {file}" for file in files))
