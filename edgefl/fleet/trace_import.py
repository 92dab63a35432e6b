"""A log of devices, with times as clocks write them, as a trace: seconds from the first local midnight, and clients by number."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal
from zoneinfo import ZoneInfo

from edgefl.errors import ConfigError, DataError, nearest
from edgefl.fleet.trace_file import COLUMNS, states_bits

_HOUR_S = 3600.0


@dataclass(frozen=True)
class LogColumns:
    """Which columns of a log say what, and how its times are written.

    Attributes:
        id: the device's name.
        time: "iso" for dates with hours, "unix" for seconds since 1970.
        begin: when a row's state begins.
        end: when it ends; if the log has no such column, with the next row of the device.
        state: the state, as a trace has it; if the log has no such column, every row is ``eligible``.
        zone: of hours without an offset, and of the days of the run.
    """

    id: str
    time: Literal["iso", "unix"] = "iso"
    begin: str = "from"
    end: str = "to"
    state: str = "state"
    zone: str = "UTC"


@dataclass(frozen=True)
class LogRow:
    """A state of a device: the line of the log, the device, seconds, and the state."""

    line: int
    device: str
    from_s: float
    to_s: float
    state: str


@dataclass(frozen=True)
class Imported:
    """A trace that was made of a log.

    Attributes:
        begins: the local midnight that is second 0.
        rows: by device and time, without overlaps.
        overlaps: rows that began before the device's row before them ended; the row before ends there.
        open_ended: last rows of devices, which nothing ends; they are left out.
    """

    begins: datetime
    devices: tuple[str, ...]
    rows: tuple[LogRow, ...]
    overlaps: int
    open_ended: int

    def text(self) -> str:
        """Return the trace as CSV."""
        number = {device: place for place, device in enumerate(self.devices)}
        lines = (f"{number[row.device]},{row.from_s:.15g},{row.to_s:.15g},{row.state}" for row in self.rows)
        return "\n".join([",".join(COLUMNS), *lines]) + "\n"

    def facts(self) -> list[tuple[str, str]]:
        """Return what to know of a trace before it is used: what, and the figure."""
        hours, by_hour, gaps = dict.fromkeys(self.devices, 0.0), Counter[int](), list[float]()
        for row in self.rows:
            if states_bits(row.state) == states_bits("eligible"):
                hours[row.device] += (row.to_s - row.from_s) / _HOUR_S
                for hour in range(int(row.from_s // _HOUR_S), int(-(-row.to_s // _HOUR_S))):
                    by_hour[hour % 24] += 1
        for before, after in pairwise(self.rows):
            if before.device == after.device and after.from_s > before.to_s:
                gaps.append((after.from_s - before.to_s) / _HOUR_S)
        last_s = max(row.to_s for row in self.rows)
        days = max(1, round(last_s / 86_400))
        shares = {hour: by_hour[hour] / days / len(self.devices) for hour in range(24)}
        most, least = (end(shares, key=lambda hour: shares[hour]) for end in (max, min))
        return [
            ("devices", f"{len(self.devices):,}"),
            ("days", f"{last_s / 86_400:.3g}, from {self.begins:%Y-%m-%d %H:%M} ({self.begins.tzinfo})"),
            ("rows", f"{len(self.rows):,}"),
            (
                "eligible hours of a device",
                f"median {median(hours.values()):.3g}, {sum(hour == 0 for hour in hours.values()):,} devices never",
            ),
            ("eligible by hour", f"most at {most} o'clock ({shares[most]:.0%}), fewest at {least} o'clock ({shares[least]:.0%})"),
            ("gaps", f"{len(gaps):,}" + (f", median {median(gaps):.3g} h; none of the states holds in them" if gaps else "")),
            ("overlaps", f"{self.overlaps:,}" + ("; the earlier row ends where the later begins" if self.overlaps else "")),
            ("left out", f"{self.open_ended:,} last rows of devices, whose end no row tells" if self.open_ended else "nothing"),
        ]


def import_log(path: Path, columns: LogColumns) -> Imported:
    """Return the trace of a CSV log.

    Raises:
        ConfigError: the zone is unknown.
        DataError: the file is missing, a column is missing, or a row is wrong; names file, line, column, value and expectation.
    """
    try:
        zone = ZoneInfo(columns.zone)
    except (ValueError, OSError, KeyError):
        raise ConfigError(f"zone: expected a name of the tz database such as Europe/Berlin, got {columns.zone!r}") from None
    try:
        rows = sorted(_rows(path, columns, zone), key=lambda row: (row.device, row.from_s, row.line))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from None
    ended, open_ended, overlaps = list[LogRow](), 0, 0
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        follows = after is not None and after.device == row.device
        if row.to_s == float("inf") and not follows:
            open_ended += 1
            continue
        cut_s = row.to_s if after is None or not follows else min(row.to_s, after.from_s)
        overlaps += row.to_s != float("inf") and cut_s < row.to_s
        if cut_s > row.from_s:
            ended.append(replace(row, to_s=cut_s))
    if not ended:
        raise DataError(f"{path}: expected rows that end; got none: give --end with the column of ends, or a longer log")
    first = datetime.fromtimestamp(min(row.from_s for row in ended), zone)
    begins = first.replace(hour=0, minute=0, second=0, microsecond=0)
    at_s = begins.timestamp()
    moved = tuple(replace(row, from_s=row.from_s - at_s, to_s=row.to_s - at_s) for row in ended)
    return Imported(begins, tuple(dict.fromkeys(row.device for row in moved)), moved, overlaps, open_ended)


def _rows(path: Path, columns: LogColumns, zone: ZoneInfo) -> Iterator[LogRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or ())
        for name in (columns.id, columns.begin):
            if name not in header:
                raise DataError(
                    f"{path}, line 1: expected a column {name!r}, got {', '.join(header) or 'none'};{nearest(name, header)}"
                )
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            device, state = (row[columns.id] or "").strip(), (row.get(columns.state) or "eligible").strip()
            if not device:
                raise DataError(f"{where}: {columns.id}: expected the name of a device, got ''")
            if states_bits(state) is None:
                raise DataError(
                    f"{where}: {columns.state}: expected states of a trace, such as idle+charging or eligible, got {state!r}"
                )
            begin_s = _seconds(row[columns.begin], columns, zone, f"{where}: {columns.begin}")
            end_s = float("inf")
            if columns.end in header:
                end_s = _seconds(row[columns.end], columns, zone, f"{where}: {columns.end}")
                if end_s <= begin_s:
                    raise DataError(
                        f"{where}: {columns.end}: expected a time after {row[columns.begin]!r}, got {row[columns.end]!r}"
                    )
            yield LogRow(reader.line_num, device, begin_s, end_s, state)


def _seconds(text: str | None, columns: LogColumns, zone: ZoneInfo, where: str) -> float:
    """Return the seconds since 1970 of a time in a log."""
    try:
        if columns.time == "unix":
            seconds = float(text or "")
        else:
            moment = datetime.fromisoformat((text or "").strip())
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
        datetime.fromtimestamp(seconds, zone) + timedelta(days=1)
    except (ValueError, OverflowError, OSError):
        other = "unix" if columns.time == "iso" else "iso"
        expected = "a date and hour such as 2026-06-01T22:00" if columns.time == "iso" else "seconds since 1970"
        raise DataError(f"{where}: expected {expected}, got {text!r}; --time {other} reads the other form") from None
    return seconds
