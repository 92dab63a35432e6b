"""The progress of a run on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from edgefl.records import RoundRecord
from edgefl.report.metric import metric_text
from edgefl.util.units import human_seconds


class Progress:
    """Shows each round of ``runs`` consecutive runs when it ends; ``quiet`` shows only messages."""

    def __init__(self, rounds: int, *, quiet: bool, runs: int = 1) -> None:
        self._rounds, self._total, self._quiet = rounds, rounds * runs, quiet
        self._bar: RichProgress | None = None
        if sys.stderr.isatty() and not quiet:
            told = TextColumn("{task.description}")
            columns = TextColumn("round"), MofNCompleteColumn(), BarColumn(), told, TimeRemainingColumn()
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
        """Show a round: accuracies of all models, and the simulated clock. ``run`` is its run's name, ``before`` how many runs are done."""
        trained = sum(c.status == "trained" for c in record.clients)
        accuracy = "not evaluated"
        if record.accuracy:
            texts = {label: metric_text(record.metric, value) for label, value in record.accuracy.items()}
            own = "" if record.metric.share else f"{record.metric.name}: "
            accuracy = (
                f"{own}global {texts.pop('global')} (tiers {', '.join(f'{label}: {text}' for label, text in texts.items())})"
            )
            if (after := record.accuracy_after_training) is not None:
                accuracy += f", after training {metric_text(record.metric, after)}"
        line = f"{accuracy}  clock {human_seconds(record.clock_s)}  trained {trained}/{len(record.clients)}"
        name = f"{run}: " if run else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=before * self._rounds + record.round, description=f"{name}{line}")
        elif not self._quiet:
            click.echo(f"{name}round {record.round}/{self._rounds}  {line}", err=True)

    def say(self, message: str) -> None:
        """Show a message."""
        if self._bar is not None:
            self._bar.console.print(message)
        else:
            click.echo(message, err=True)
