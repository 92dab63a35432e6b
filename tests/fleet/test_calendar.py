"""Calendars of rounds: when the next one may begin, worked out by hand, and tables that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_fleet import write_device, write_fleet

from edgefl.errors import ProfileError
from edgefl.fleet.calendar import Calendar, Today
from edgefl.fleet.load import load_fleet

HOUR = 3600.0


def begun(calendar: Calendar, rounds: int, lasts_s: float = 60.0) -> list[float]:
    """Return the hours at which rounds begin that each last some seconds."""
    clock_s, today, found = 0.0, Today(), list[float]()
    for _ in range(rounds):
        start_s = calendar.next_s(clock_s, today)
        today, clock_s = calendar.begun(today, start_s, (1, 2)), start_s + lasts_s
        found.append(start_s / HOUR)
    return found


def test_rounds_of_a_night_begin_evenly_and_go_on_the_next_evening():
    nights = Calendar(hours=((22, 6),), rounds_per_day=4)
    assert begun(nights, 9) == [22, 24, 26, 28, 46, 48, 50, 52, 70]
    assert begun(nights, 3, lasts_s=3 * HOUR) == [22, 25, 28]  # a round that lasts longer delays the next
    assert begun(nights, 4, lasts_s=3 * HOUR)[-1] == 46


def test_a_clock_that_starts_in_the_evening_begins_at_once():
    assert begun(Calendar(hours=((22, 6),), rounds_per_day=2).of_run(23.0), 3) == [0, 4, 23]


def test_rounds_of_all_day_are_that_many_and_fewer_than_one_a_day_are_days_apart():
    assert begun(Calendar(rounds_per_day=24), 25)[-1] == 24
    assert begun(Calendar(rounds_per_day=0.5), 3) == [0, 48, 96]
    assert begun(Calendar(every_s=7200.0), 3) == [0, 2, 4]
    assert begun(Calendar(every_s=60.0, rounds_per_day=2.0), 5) == pytest.approx([0, 1 / 60, 24, 24 + 1 / 60, 48])
    assert begun(Calendar(), 2) == [0, 1 / 60]


def test_several_hours_and_days_of_the_week():
    weekend = Calendar(start="2026-06-01", weekdays=("sat", "sun"), hours=((6, 7), (22, 23)), rounds_per_day=2)
    # 2026-06-01 is a Monday.
    assert begun(weekend, 5) == [5 * 24 + 6, 5 * 24 + 22, 6 * 24 + 6, 6 * 24 + 22, 12 * 24 + 6]
    assert weekend.told(begun(weekend, 2)[-1] * HOUR) == "2026-06-06 22:00"
    assert Calendar().told(90_000.0) == "day 2 01:00"


def test_the_end_is_the_last_day_on_which_a_round_begins():
    nights = Calendar(start="2026-06-01", end="2026-06-02", hours=((22, 6),))
    assert [nights.over(hour * HOUR) for hour in (22, 46, 53, 70)] == [False, False, False, True]


def test_a_device_that_had_its_sessions_rests_until_the_next_day():
    twice = Calendar(hours=((22, 6),), sessions_per_day=2)
    today = twice.begun(Today(), 22 * HOUR, (1, 2))
    assert twice.resting(today) == {}
    today = twice.begun(today, 25 * HOUR, (2, 3))
    assert twice.resting(today) == {2: 46 * HOUR}
    assert twice.begun(today, 46 * HOUR, (2,)).sessions == {2: 1}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("weekdays = []", "calendar.weekdays: expected at least one of mon, .*, each once, got none: name a day"),
        (
            'start = 2026-06-01\nend = 2026-06-03\nweekdays = ["sun"]',
            "calendar: .*the calendar has no day; give a later end or other",
        ),
        ("start = 2026-06-02\nend = 2026-06-01", r"calendar: end: expected a date from start \(2026-06-02\) on, got 2026-06-01"),
        ("end = 2026-06-01", "calendar: start: missing; end and weekdays need the date of the first day"),
        ("hours = [[22, 6], [5, 7]]", r"calendar.hours: \[22, 6\] and \[5, 7\] overlap; give hours that do not, or one pair"),
        ("hours = [[0, 24], [5, 7]]", "overlap"),
        ("hours = [[5, 5]]", "calendar.hours: expected pairs of two different hours from 0 to 24"),
        ("rounds_per_day = 0", "calendar.rounds_per_day must be at least 0.001, got 0"),
        ("sessions_per_day = 0", "calendar.sessions_per_day must be at least 1, got 0"),
        ("round_per_day = 3", "calendar.round_per_day: unknown key; did you mean 'rounds_per_day'?"),
        ('every_s = "1h"', "calendar.every_s"),
    ],
)
def test_a_calendar_that_is_wrong_is_one_message_with_file_key_value_and_remedy(table, message, tmp_path):
    write_device(tmp_path, "board")
    path = write_fleet(tmp_path, {"board": 1.0})
    Path(path).write_text(Path(path).read_text() + f"[calendar]\n{table}\n")
    with pytest.raises(ProfileError, match=message) as raised:
        load_fleet(path)
    assert str(raised.value).startswith(f"{path}: calendar")
    assert "\n" not in str(raised.value)
