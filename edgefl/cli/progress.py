"""What a user sees while a run goes on: a bar on a terminal, plain lines elsewhere, both on standard error."""

from __future__ import annotations

import sys
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from edgefl.records import RoundRecord
from edgefl.util.units import human_percent, human_seconds


class Progress:
    """Shows rounds as they end, of ``runs`` runs one after the other; ``quiet`` leaves only messages that need saying."""

    def __init__(self, rounds: int, *, quiet: bool, runs: int = 1) -> None:
        self._rounds, self._total, self._quiet = rounds, rounds * runs, quiet
        self._bar: RichProgress | None = None
        if sys.stderr.isatty() and not quiet:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("preparing", total=self._total)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, record: RoundRecord, run: str = "", before: int = 0) -> None:
        """Show one round of ``run``, before which were ``before`` runs: accuracies of all models, and the simulated clock."""
        trained = sum(c.status == "trained" for c in record.clients)
        accuracy = "not evaluated"
        if record.accuracy:
            tiers = ", ".join(f"{label}: {human_percent(share)}" for label, share in record.accuracy.items() if label != "global")
            accuracy = f"global {human_percent(record.accuracy['global'])} (tiers {tiers})"
        line = f"{accuracy}  clock {human_seconds(record.clock_s)}  trained {trained}/{len(record.clients)}"
        name = f"{run}: " if run else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=before * self._rounds + record.round, description=f"{name}{line}")
        elif not self._quiet:
            click.echo(f"{name}round {record.round}/{self._rounds}  {line}", err=True)

    def say(self, message: str) -> None:
        """Show a message that needs saying."""
        if self._bar is not None:
            self._bar.console.print(message)
        else:
            click.echo(message, err=True)
