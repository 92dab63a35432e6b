"""The progress of a run on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Self

from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as RichProgress
from rich.text import Text

from edgefl.cli.console import console_of, echo
from edgefl.errors import printable
from edgefl.records import RoundRecord
from edgefl.report.metric import metric_text
from edgefl.timing.spans import Detail, heard
from edgefl.util.units import human_seconds

_DOING = {
    "prepare": "preparing",
    "trial": "finding the fastest engine",
    "wait": "training",
    "evaluate": "evaluating",
    "report": "writing the report",
}
_BAR, _GAP = (10, 30), 2


class Progress:
    """Shows each round of ``runs`` consecutive runs when it ends, and what the run does meanwhile; ``quiet`` shows only messages."""

    def __init__(self, rounds: int, *, quiet: bool, runs: int = 1) -> None:
        self._rounds, self._total, self._quiet = rounds, rounds * runs, quiet
        self._bar: RichProgress | None = None
        if sys.stderr.isatty() and not quiet:
            console = console_of(sys.stderr)
            width = max(_BAR[0], min(_BAR[1], console.width // 6))
            self._bar = RichProgress(
                _Rounds(), BarColumn(width), _Clock(), _Rest(console.width - width), console=console, refresh_per_second=4
            )
        self._heard = heard(self._doing)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, parts=(), doing="preparing")
        self._heard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._heard.__exit__(None, None, None)
        if self._bar is not None:
            self._bar.update(self._task, doing="")
            self._bar.stop()

    def show(self, record: RoundRecord, run: str = "", before: int = 0) -> None:
        """Show a round: accuracies of all models, and the simulated clock. ``run`` is its run's name, ``before`` how many runs are done."""
        trained = sum(c.status == "trained" for c in record.clients)
        took_part = f"trained {trained}/{len(record.clients)}"
        texts = {label: metric_text(record.metric, value) for label, value in record.accuracy.items()}
        prefix = "" if record.metric.share else f"{record.metric.name}: "
        clock = f"clock {human_seconds(record.clock_s)}"
        if self._bar is not None:
            best = [f"{prefix}{texts['global']}"] if texts else []
            tiers = [f"tier {label}: {text}" for label, text in texts.items() if label != "global"]
            parts = [*best, *([run] if run else []), clock, took_part, *tiers]
            self._bar.update(self._task, completed=before * self._rounds + record.round, parts=list(map(printable, parts)))
        elif not self._quiet:
            accuracy = "not evaluated"
            if texts:
                accuracy = f"{prefix}global {texts.pop('global')} (tiers {', '.join(f'{label}: {text}' for label, text in texts.items())})"
                if (after := record.accuracy_after_training) is not None:
                    accuracy += f", after training {metric_text(record.metric, after)}"
            name = f"{run}: " if run else ""
            echo(f"{name}round {record.round}/{self._rounds}  {accuracy}  {clock}  {took_part}", err=True)

    def say(self, message: str) -> None:
        """Show a message."""
        if self._bar is not None:
            self._bar.console.print(printable(message))
        else:
            echo(message, err=True)

    def _doing(self, name: str, detail: Mapping[str, Detail]) -> None:
        exporting = name == "bundle" and "tier" in detail
        doing = "exporting tier {tier}, {number} of {of}".format(**detail) if exporting else _DOING.get(name)
        if doing is None:
            return
        if self._bar is not None:
            self._bar.update(self._task, doing=doing)
        elif exporting and not self._quiet:
            echo(doing, err=True)


class _Rounds(ProgressColumn):
    """``round 3/30``."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text(f"round {task.completed:.0f}/{task.total or 0:.0f}", no_wrap=True)


class _Clock(ProgressColumn):
    """The time that is left, ``0:12``, or at the end the time that it took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        seconds = task.finished_time if task.finished else task.time_remaining
        return Text("-:--" if seconds is None else _minutes(seconds), no_wrap=True, style="cyan")


class _Rest(ProgressColumn):
    """As much as there is room for: what the run does, if it exports, then its accuracy, clock, clients and tiers, in this order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        numbers = len(f"round {task.total or 0:.0f}/{task.total or 0:.0f}") + len("0:00:00") + 4
        parts: Sequence[str] = task.fields["parts"]
        doing = task.fields["doing"]
        first = [*parts[:1], *([doing] if doing else []), *parts[1:]]
        return Text(fitting(first, self._width - numbers), no_wrap=True, overflow="ellipsis")


def fitting(parts: Sequence[str], width: int) -> str:
    """Return as many of the first ``parts`` as fit into ``width`` characters, the first one always.

    >>> fitting(["59.1 %", "clock 3.2 s", "trained 8/10"], 22)
    '59.1 %  clock 3.2 s'
    """
    text = ""
    for part in parts:
        longer = f"{text}{' ' * _GAP}{part}" if text else part
        if text and len(longer) > width:
            break
        text = longer
    return text


def _minutes(seconds: float) -> str:
    """Return a duration as a clock shows it.

    >>> _minutes(12), _minutes(3725)
    ('0:12', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
