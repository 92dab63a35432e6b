"""Who is eligible at which hour: shares, stretches and their ends, against a scan of every minute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ConfigError
from edgefl.fleet.availability import Always, Availability, Daily
from edgefl.rng import uniforms

MANY = np.arange(20_000)
PHONES = {"mean_share": 0.2, "day_night_ratio": 4.0, "peak_hour": 3.0}


def eligible(availability: Availability, clients: np.ndarray, clock_s: float) -> np.ndarray:
    return availability.until(clients, clock_s) > clock_s


def test_always_is_for_ever():
    until = Always().until(np.arange(3), 1e9)
    assert until.dtype == np.float64
    assert until.tolist() == [math.inf] * 3


@pytest.mark.parametrize("hour", [0, 3, 7.5, 9, 15, 20, 23.99, 24 + 3, 7 * 24 + 15])
def test_the_share_at_each_hour_is_the_cosines(hour):
    daily = Daily(seed=1, **PHONES)
    expected = 0.2 * (1 + 0.6 * math.cos(2 * math.pi * (hour - 3) / 24))  # a = (4 − 1) / (4 + 1)
    assert daily.share(hour * 3600) == pytest.approx(expected, abs=1e-6)
    found = eligible(daily, MANY, hour * 3600).mean()
    assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / len(MANY))


def test_night_to_day_is_four_to_one():
    daily = Daily(seed=2, **PHONES)
    night, day = (eligible(daily, np.arange(200_000), hour * 3600).mean() for hour in (3, 15))
    assert night == pytest.approx(0.32, abs=0.005)
    assert day == pytest.approx(0.08, abs=0.003)
    assert night / day == pytest.approx(4, rel=0.04)


@pytest.mark.parametrize(("peak", "start"), [(3, 0), (20, 5.5), (0, 12), (12.25, 23)])
def test_stretches_are_contiguous_and_end_when_a_scan_of_every_minute_says(peak, start):
    daily = Daily(seed=3, mean_share=0.4, day_night_ratio=3, peak_hour=peak, start_hour=start)
    clients = np.arange(40)
    trough_s = ((peak + 12 - start) % 24) * 3600
    for day in (0, 1):  # of two days from trough to trough
        begin_s = int(trough_s + 86_400 * day)
        u = uniforms(3, clients, "eligible", day + 1 if trough_s else day)
        scan = np.array([eligible(daily, clients, begin_s + 60 * minute) for minute in range(1440)])
        for client in clients:
            share = [
                0.4 * (1 + 0.5 * math.cos(2 * math.pi * ((start + (begin_s + 60 * m) / 3600) - peak) / 24)) for m in range(1440)
            ]
            disagreements = sum((p > u[client]) != there for p, there in zip(share, scan[:, client], strict=True))
            assert disagreements <= 1  # a minute at an end that was rounded to whole seconds
            assert (np.diff(scan[:, client].astype(int)) != 0).sum() <= 2
            minutes = np.flatnonzero(scan[:, client])
            if len(minutes):
                assert len(minutes) == minutes[-1] - minutes[0] + 1
                ends = {
                    float(daily.until(clients[client : client + 1], begin_s + 60 * int(m))[0])
                    for m in minutes[:: len(minutes) // 3 + 1]
                }
                (end,) = ends  # the same, whenever in its stretch a client is asked
                assert end == int(end)
                assert 0 < end - (begin_s + 60 * minutes[-1]) <= 60


def test_the_end_is_the_moment_of_change():
    daily = Daily(seed=4, **PHONES)
    until = daily.until(MANY, 3 * 3600.0)
    there = np.flatnonzero(until > 3 * 3600)
    for client in there[:50]:
        if until[client] != 15 * 3600:
            assert eligible(daily, np.array([client]), until[client] - 0.001)[0]
            assert not eligible(daily, np.array([client]), until[client])[0]


def test_who_is_below_the_troughs_share_stays_until_the_days_end():
    daily = Daily(seed=5, **PHONES)
    always = uniforms(5, MANY, "eligible", 0) < 0.08 - 1e-6
    assert (daily.until(MANY[always], 3 * 3600.0) == 15 * 3600).all()
    assert eligible(daily, MANY[always], 15 * 3600 - 1.0).all()


def test_days_and_seeds_differ_and_clients_do_not_depend_on_each_other():
    daily, other = Daily(seed=6, **PHONES), Daily(seed=7, **PHONES)
    today, tomorrow = (daily.until(MANY, 3 * 3600.0 + 86_400 * day) - 86_400 * day for day in (0, 1))
    assert 0.3 < (today > 3 * 3600).mean() < 0.34
    assert (today != tomorrow).mean() > 0.3
    assert (today != other.until(MANY, 3 * 3600.0)).mean() > 0.3
    assert (daily.until(MANY[::-7], 3 * 3600.0) == today[::-7]).all()
    assert (daily.until(np.array([10**12]), 0.0) == daily.until(np.array([5, 10**12]), 0.0)[1:]).all()


def test_the_clock_may_start_at_any_hour():
    midnight, evening = Daily(seed=8, **PHONES), Daily(seed=8, start_hour=20, **PHONES)
    assert evening.share(0) == midnight.share(20 * 3600)
    assert evening.share(7 * 3600) == 0.32
    # At 20 o'clock the day from 15 to 15 o'clock runs: the second of a clock that starts at midnight, the first of one that starts now.
    first = evening.until(MANY, 0.0) + 20 * 3600
    assert ((first > 20 * 3600) == (uniforms(8, MANY, "eligible", 0) < midnight.share(20 * 3600))).mean() > 0.999


def test_a_ratio_of_one_is_the_same_share_all_day():
    flat = Daily(seed=9, mean_share=0.3, day_night_ratio=1, peak_hour=12)
    there = eligible(flat, MANY, 100.0)
    assert there.mean() == pytest.approx(0.3, abs=0.015)
    assert set(flat.until(MANY[there], 100.0)) == {86_400.0}
    assert Daily(seed=0, mean_share=1, day_night_ratio=1, peak_hour=0).until(MANY, 5.0).min() > 5


@given(
    share=st.floats(0.01, 0.5),
    ratio=st.floats(1, 50),
    peak=st.floats(0, 23.99),
    start=st.floats(0, 23.99),
    clock_s=st.floats(0, 1e8),
)  # fmt: skip
def test_an_end_is_never_further_than_a_day_and_never_past(share, ratio, peak, start, clock_s):
    daily = Daily(0, share, ratio, peak, start)
    until = daily.until(np.arange(50), clock_s)
    assert until.dtype == np.float64
    assert (until >= clock_s).all()
    assert (until <= clock_s + 86_400).all()
    inside = until > clock_s
    assert (until[inside] == np.round(until[inside])).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_share": 0.0}, r"eligible_share: expected a share in \(0, 1\], got 0"),
        ({"mean_share": math.nan}, r"eligible_share: expected a share in \(0, 1\], got nan"),
        ({"mean_share": 0.7}, "eligible_share: expected at most 0.625 with a day_night_ratio of 4.*got 0.7, at the peak 1.12"),
        ({"day_night_ratio": 0.5}, "day_night_ratio: expected a finite ratio of at least 1, got 0.5"),
        ({"day_night_ratio": math.inf}, "day_night_ratio: expected a finite ratio of at least 1, got inf"),
        ({"peak_hour": 24.0}, r"peak_hour: expected an hour in \[0, 24\), got 24"),
        ({"start_hour": -1.0}, r"start_hour: expected an hour in \[0, 24\), got -1"),
        ({"start_hour": math.nan}, r"start_hour: expected an hour in \[0, 24\), got nan"),
    ],
)
def test_impossible_days_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Daily(**({"seed": 0} | PHONES | change))
