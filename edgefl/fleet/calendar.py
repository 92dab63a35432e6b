"""When rounds may begin: dates, days of the week, hours of the day, how many a day, how far apart, and how often a device is asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from edgefl.fleet.availability import DAY_S
from edgefl.fleet.figures import Record
from edgefl.util.units import human_seconds

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOUR_S = 3600


@dataclass(frozen=True)
class Today:
    """The rounds and sessions that have begun on a day of a calendar.

    Attributes:
        day: its number, from 0.
        rounds: how many began on it.
        began_s: the clock at which the newest round began; None: none did.
        sessions: client → how many sessions it had on it.
    """

    day: int = 0
    rounds: int = 0
    began_s: float | None = None
    sessions: Mapping[int, int] = field(default_factory=dict)


def _named(days: tuple[str, ...]) -> tuple[str, ...]:
    if not days or len(set(days)) != len(days) or not set(days) <= set(WEEKDAYS):
        raise ValueError(
            f"expected at least one of {', '.join(WEEKDAYS)}, each once, got {', '.join(days) or 'none'}: name a day"
        )
    return days


def _apart(hours: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return the hours in the order of a day that begins with the first of them; ValueError if two overlap, or one is empty."""
    for begin, end in hours:
        if begin == end or not (0 <= begin < 24 and 0 <= end <= 24):
            raise ValueError(f"expected pairs of two different hours from 0 to 24, such as [22, 6], got [{begin:g}, {end:g}]")
    ordered = sorted(hours)
    for (begin, end), (later, its_end) in zip(ordered, [*ordered[1:], *ordered[:1]], strict=True):
        if len(ordered) > 1 and (later - begin) % 24 < ((end - begin) % 24 or 24):
            raise ValueError(
                f"[{begin:g}, {end:g}] and [{later:g}, {its_end:g}] overlap; give hours that do not, or one pair for both"
            )
    return tuple(ordered)


class Calendar(Record):
    """The moments at which rounds may begin.

    A day begins with the first of its ``hours``, so that a night from 22 to 6 is one day, that of its evening.

    Attributes:
        start: the date at clock 0; None: days have numbers only.
        end: the last day on which rounds begin; None: rounds begin for ever.
        weekdays: on which rounds begin, such as ``("sat", "sun")``; they need a ``start``.
        hours: in which rounds begin, pairs of local hours; empty: at any hour.
        rounds_per_day: how many begin on a day, evenly over its hours, unless ``every_s`` says otherwise.
        every_s: the least seconds from the beginning of a round to that of the next.
        sessions_per_day: the most sessions of one device on a day.

    Raises:
        ValidationError: a value is wrong, or no day is left.

    >>> nights = Calendar(start="2026-06-01", hours=((22, 6),), rounds_per_day=2)
    >>> nights.told(nights.next_s(0.0, Today()))
    '2026-06-01 22:00'
    """

    start: date | None = None
    end: date | None = None
    weekdays: Annotated[tuple[str, ...], AfterValidator(_named)] = WEEKDAYS
    hours: Annotated[tuple[tuple[float, float], ...], AfterValidator(_apart)] = ()
    rounds_per_day: float | None = Field(None, ge=0.001, le=DAY_S, strict=True)
    every_s: float | None = Field(None, gt=0, strict=True)
    sessions_per_day: int | None = Field(None, ge=1, strict=True)
    _start_hour: float = PrivateAttr(0.0)

    @model_validator(mode="after")
    def _some_day(self) -> Calendar:
        if self.start is None and (self.end is not None or self.weekdays != WEEKDAYS):
            raise ValueError("start: missing; end and weekdays need the date of the first day, such as start = 2026-06-01")
        if self.start is not None and self.end is not None:
            if self.end < self.start:
                raise ValueError(f"end: expected a date from start ({self.start}) on, got {self.end}")
            if not any(map(self._open, range((self.end - self.start).days + 1))):
                raise ValueError(
                    f"weekdays: no {' or '.join(self.weekdays)} lies between {self.start} and {self.end}: the calendar has no day; "
                    "give a later end or other weekdays"
                )
        return self

    def of_run(self, start_hour: float, rounds_per_day: float | None = None) -> Calendar:
        """Return the calendar of a run whose clock starts at a local hour, with other rounds a day if they are given."""
        asked = {} if rounds_per_day is None else {"rounds_per_day": rounds_per_day, "every_s": None}
        calendar = self.model_copy(update=asked)
        calendar._start_hour = start_hour  # noqa: SLF001, a copy of this object
        return calendar

    @property
    def spacing_s(self) -> float:
        """The least seconds from the beginning of a round to that of the next."""
        if self.every_s is not None or self.rounds_per_day is None:
            return self.every_s or 0.0
        open_s = sum(end - begin for begin, end in self._windows)
        return (open_s if self.rounds_per_day >= 1 else DAY_S) / self.rounds_per_day

    def next_s(self, clock_s: float, today: Today) -> float:
        """Return the first moment from ``clock_s`` on at which a round may begin after what has begun, whatever the calendar's end."""
        if today.began_s is not None:
            clock_s = max(clock_s, today.began_s + self.spacing_s)
            if self.rounds_per_day is not None and today.rounds >= math.ceil(self.rounds_per_day):
                clock_s = max(clock_s, self._begin_s(today.day + 1))
        return self.open_s(clock_s)

    def open_s(self, clock_s: float) -> float:
        """Return the first moment from ``clock_s`` on within days and hours."""
        day = max(0, self.day(clock_s))
        while True:
            for begin, end in self._windows if self._open(day) else ():
                if clock_s < self._begin_s(day) + end:
                    return max(clock_s, self._begin_s(day) + begin)
            day += 1

    def over(self, clock_s: float) -> bool:
        """Whether a moment lies after the calendar's last day."""
        return self.end is not None and self.start is not None and self.day(clock_s) > (self.end - self.start).days

    def begun(self, today: Today, start_s: float, clients: Iterable[int]) -> Today:
        """Return what has begun by the time of a round that begins sessions of ``clients`` at ``start_s``."""
        day = self.day(start_s)
        before = today if day == today.day else Today(day)
        sessions = dict(before.sessions)
        for client in clients if self.sessions_per_day is not None else ():
            sessions[client] = sessions.get(client, 0) + 1
        return Today(day, before.rounds + 1, start_s, sessions)

    def resting(self, today: Today) -> dict[int, float]:
        """Return client → the clock from which it may be asked again, of those that have had all sessions of the day."""
        until_s = self._begin_s(today.day + 1)
        return {client: until_s for client, count in today.sessions.items() if count >= (self.sessions_per_day or math.inf)}

    def day(self, clock_s: float) -> int:
        """Return the number of the day; 0 is the one that begins on the date of clock 0."""
        return math.floor((clock_s - self._begin_s(0)) / DAY_S)

    def told(self, clock_s: float) -> str:
        """Return a moment for people, to the minute: a date and the hour, or the number of the day from 1."""
        minutes = round((clock_s + self._start_hour * _HOUR_S) / 60)
        days, minute = divmod(minutes, DAY_S // 60)
        hour = f"{minute // 60:02d}:{minute % 60:02d}"
        return f"day {days + 1} {hour}" if self.start is None else f"{self.start + timedelta(days=days)} {hour}"

    def __str__(self) -> str:
        """Return the calendar in words.

        >>> str(Calendar(start="2026-06-01", end="2026-06-30", hours=((22, 6),), rounds_per_day=8, sessions_per_day=1))
        '8 rounds a day, from 22 to 6 h, 2026-06-01 to 2026-06-30, at most 1 session of a device a day'
        """
        parts = [
            f"{self.rounds_per_day:g} rounds a day" if self.rounds_per_day is not None else "",
            f"a round at most every {human_seconds(self.every_s)}" if self.every_s is not None else "",
            f"from {' and '.join(f'{begin:g} to {end:g}' for begin, end in self.hours)} h" if self.hours else "",
            f"on {', '.join(self.weekdays)}" if self.weekdays != WEEKDAYS else "",
            "" if self.start is None else f"{self.start} to {self.end}" if self.end is not None else f"from {self.start} on",
            f"at most {self.sessions_per_day} session{'s' * (self.sessions_per_day != 1)} of a device a day"
            if self.sessions_per_day is not None
            else "",
        ]
        return ", ".join(filter(None, parts)) or "one round after the other"

    @property
    def _windows(self) -> tuple[tuple[float, float], ...]:
        """The hours as seconds after the beginning of a day."""
        first = self._first_hour
        return tuple(
            (((begin - first) % 24) * _HOUR_S, ((begin - first) % 24 + ((end - begin) % 24 or 24)) * _HOUR_S)
            for begin, end in self.hours or ((0.0, 24.0),)
        )

    @property
    def _first_hour(self) -> float:
        return self.hours[0][0] if self.hours else 0.0

    def _begin_s(self, day: int) -> float:
        """Return the clock at which a day begins."""
        return day * DAY_S + (self._first_hour - self._start_hour) * _HOUR_S

    def _open(self, day: int) -> bool:
        return self.start is None or WEEKDAYS[(self.start + timedelta(days=day)).weekday()] in self.weekdays
