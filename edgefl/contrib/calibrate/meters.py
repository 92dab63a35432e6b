"""Meters of watts: sensors of this machine, and the CSV file of a meter."""

from __future__ import annotations

import contextlib
import csv
import math
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean

from edgefl.contrib.calibrate.sensors import SENSORS, Watts
from edgefl.errors import InputError

_EVERY_S = 0.2
_FEWEST = 3
_UNREAD = OSError, ValueError, subprocess.SubprocessError


@dataclass(frozen=True)
class MeterSpan:
    """The state of a device, "idle" or "training", and its begin and end in seconds since 1970; by default they are not known."""

    state: str
    begin_s: float = 0.0
    end_s: float = math.inf

    @property
    def timed(self) -> bool:
        """Whether it is known when it was."""
        return self.end_s < math.inf


def meter_of(name: str) -> Sensor | MeterLog:
    """Return the meter ``name``: one of this machine's sensors, or the path of a CSV file.

    Raises:
        InputError: there is no such meter, or it cannot be read.
    """
    if name in SENSORS:
        kind = SENSORS[name]
        try:
            watts = kind.reader()
            watts()
        except PermissionError as error:
            raise InputError(f"power {name}: {error.filename} may not be read; let your account read it") from None
        except _UNREAD as error:
            raise InputError(
                f"power {name}: no {kind.title} here ({error}); give another sensor, or the CSV file of a meter"
            ) from None
        return Sensor(kind.title, kind.part, watts)
    if not Path(name).exists():
        raise InputError(f"power: no file {name}; expected one of {', '.join(SENSORS)}, or the CSV file of a meter")
    log = MeterLog(Path(name))
    log.rows()
    return log


@dataclass(frozen=True)
class Sensor:
    """A sensor of this machine, which a thread reads five times a second.

    Attributes:
        title: what it is, for the source of a figure.
        part: the only part of the device that it sees; "": it sees all of it.
        readings: seconds since 1970, and watts.
    """

    title: str
    part: str
    watts: Watts
    readings: list[tuple[float, float]] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Read watts within a ``with`` block."""
        done = threading.Event()

        def read() -> None:
            while not done.wait(_EVERY_S):
                with contextlib.suppress(*_UNREAD):  # a reading is missing
                    self.readings.append((time.time(), self.watts()))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def mean_w(self, span: MeterSpan) -> float:
        """Return the mean watts of a span."""
        return _mean(self.title, span, [watts for at_s, watts in self.readings if span.begin_s <= at_s <= span.end_s])


@dataclass(frozen=True)
class MeterLog:
    """A CSV file with the columns ``watts``, or ``volts`` and ``amperes``; and ``time`` or ``state``.

    ``time`` is in seconds since 1970, or ISO 8601. ``state`` is ``idle`` or ``training``; other rows do not count.
    """

    path: Path
    part: str = ""

    @property
    def title(self) -> str:
        """The name of the file, for the source of a figure."""
        return f"the meter of {self.path.name}"

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Do nothing: the file is read afterwards."""
        return contextlib.nullcontext()

    def mean_w(self, span: MeterSpan) -> float:
        """Return the mean watts of the rows of a span: of its state if the file has one, otherwise of its time."""
        rows = self.rows()
        if not span.timed and not any(isinstance(at, str) for at, _ in rows):
            raise InputError(f"{self.path}: expected a column state, idle or training: when the steps were measured is not known")
        readings = [
            watts for at, watts in rows if (at == span.state if isinstance(at, str) else span.begin_s <= at <= span.end_s)
        ]
        return _mean(str(self.path), span, readings)

    def rows(self) -> list[tuple[float | str, float]]:
        """Return the state or the time of each row, and its watts.

        Raises:
            InputError: the file cannot be read, or a column or value is missing or wrong.
        """
        columns, lines = csv_lines(self.path)
        if not ("watts" in columns or {"volts", "amperes"} <= {*columns}) or not ({"time", "state"} & {*columns}):
            wanted = "watts (or volts and amperes), and time or state"
            raise InputError(f"{self.path}: expected the columns {wanted}; got {', '.join(map(str, columns)) or 'an empty file'}")
        return [(self._at(number, line), self._watts(number, line)) for number, line in lines]

    def _at(self, number: int, line: Mapping[str, str]) -> float | str:
        if "state" in line:
            return line["state"].strip()
        text = line["time"]
        with contextlib.suppress(ValueError):
            return float(text)
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(text).timestamp()
        raise InputError(
            f"{self.path}, line {number}: time: expected seconds since 1970, or such as 2026-06-01T22:00:03+02:00; got {text!r}"
        )

    def _watts(self, number: int, line: Mapping[str, str]) -> float:
        parts = ("watts",) if "watts" in line else ("volts", "amperes")
        return math.prod(number_of(f"{self.path}, line {number}", key, line[key], least=0) for key in parts)


@dataclass(frozen=True)
class MeterFigures:
    """Mean watts without work and while it trains; ``title`` and ``part`` are those of the meter, see :class:`Sensor`."""

    idle_w: float
    load_w: float
    title: str
    part: str

    @classmethod
    def of(cls, meter: Sensor | MeterLog, idle: MeterSpan, training: MeterSpan) -> MeterFigures:
        """Return the watts of two spans; InputError if the meter tells too little, or no more watts while it trains."""
        idle_w, load_w = meter.mean_w(idle), meter.mean_w(training)
        if load_w <= idle_w:
            raise InputError(
                f"{meter.title}: {load_w:.3g} W while it trains, {idle_w:.3g} W without work: is it this device's, and was it idle?"
            )
        return cls(idle_w, load_w, meter.title, meter.part)


def _mean(where: str, span: MeterSpan, watts: Sequence[float]) -> float:
    if len(watts) < _FEWEST:
        when = "" if not span.timed else f" ({span.begin_s:.0f} to {span.end_s:.0f} s since 1970)"
        raise InputError(f"{where}: {len(watts)} readings while the device is {span.state}{when}, expected at least {_FEWEST}")
    return fmean(watts)


def csv_lines(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns of a file, and each line with its number; InputError if it cannot be read. A value that is missing is empty."""
    try:
        table = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
        columns, lines = list(table.fieldnames or ()), [(table.line_num, line) for line in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table: {error}") from error
    return columns, [(number, {key: value or "" for key, value in line.items() if key}) for number, line in lines]


def number_of(where: str, key: str, text: str, least: float | None = None) -> float:
    """Return a finite number of at least ``least``, or above 0; InputError, which begins with ``where``, if the text is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < (least or 0) or (least is None and value == 0):
        raise InputError(f"{where}: {key}: expected a number {'of at least 0' if least == 0 else 'above 0'}, got {text!r}")
    return value
