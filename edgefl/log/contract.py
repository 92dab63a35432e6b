"""The contract of a logger, which sends the figures of a run to a tool for experiments.

A logger is a file of this package with a decorated context manager. ``needs`` names the Python package that it imports, ``extra`` what to
install for it. The smallest logger::

    @logger("lines", needs="json", extra="lines")
    @contextlib.contextmanager
    def lines(run: LoggedRun) -> Iterator[Logger]:
        with (run.folder / "logs" / "lines.txt").open("a") as file:
            yield Lines(file)

    class Lines:
        def __init__(self, file: IO[str]) -> None:
            self._file = file

        def round(self, number: int, metrics: Mapping[str, float]) -> None:
            print(number, dict(metrics), file=self._file)

        def end(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
            print(dict(metrics), file=self._file)

All calls come from one thread of its own, so a logger may be slow. A logger that raises is dropped with a warning, and the run continues.
Leaving the context without :meth:`Logger.end` means that the run was interrupted. A resumed run repeats no round that was logged before its
newest checkpoint; later rounds may come again, with the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger shows.

    Attributes:
        name: of the run's folder.
        folder: the run's folder; a logger that writes files has ``logs/`` in it.
        settings: key of the configuration → its value.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]


class Logger(Protocol):
    """Receives the figures of one run; see :mod:`edgefl.log.background` for their names."""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round, name → value; ``number`` counts from 1."""
        ...

    def end(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log what the whole run cost and reached, and keep ``files`` (files or folders) as its artifacts."""
        ...
