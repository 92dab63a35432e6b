"""Whom the server asks, how many, and how long it waits for clients that are eligible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from small_fleet import small

from edgefl.fleet import conditions as conditions_module
from edgefl.fleet.availability import Daily
from edgefl.fleet.conditions import PATIENCE_S, Conditions


def chosen(conditions, clients=1000, wanted=10, round_=1, clock_s=0.0, busy=None, seed=0):
    return conditions.select(seed, clients, wanted, round_, clock_s, busy or {})


@pytest.mark.parametrize(("wanted", "over", "clients", "asked"), [
    (10, 1.3, 1000, 13), (7, 1.3, 1000, 10), (10, 1.3, 12, 12), (10, 1.0, 10, 10), (100, 1.1, 1000, 110), (3, 10.0, 1000, 30),
    (1, 1.0, 1, 1),
])  # fmt: skip
def test_as_many_are_asked_as_the_server_over_selects(wanted, over, clients, asked):
    conditions = Conditions(over_selection=over)
    found, clock_s = chosen(conditions, clients, wanted, clock_s=5.0)
    assert conditions.asked(wanted, clients) == asked == len(found) == len(set(found.tolist()))
    assert (np.sort(found) == found).all()
    assert 0 <= found[0] <= found[-1] < clients
    assert clock_s == 5.0


def test_rounds_ask_others_and_the_same_round_the_same():
    first, again, other, seed = (chosen(Conditions(), round_=r, seed=s)[0].tolist() for r, s in ((1, 0), (1, 0), (2, 0), (1, 1)))
    assert first == again
    assert first != other
    assert first != seed


def test_everybody_is_asked_where_all_are_wanted():
    assert chosen(Conditions(over_selection=1.3), 20, 20)[0].tolist() == list(range(20))


def test_who_is_busy_is_left_out_until_it_is_done():
    busy = dict.fromkeys(range(0, 20, 2), 100.0)
    found, clock_s = chosen(Conditions(), 20, 10, clock_s=99.0, busy=busy)
    assert (found.tolist(), clock_s) == (list(range(1, 20, 2)), 99.0)
    assert chosen(Conditions(), 20, 20, clock_s=100.0, busy=busy)[1] == 100.0  # done at that very moment
    # Ten are free, eleven are wanted: the server waits for the first of the others, no longer.
    busy[4] = 250.5
    found, clock_s = chosen(Conditions(), 20, 11, clock_s=0.0, busy=busy)
    assert clock_s == 100.0
    assert 4 not in found
    assert chosen(Conditions(), 20, 20, clock_s=0.0, busy=busy)[1] == 250.5


NIGHT = Daily(seed=0, mean_share=0.2, day_night_ratio=4, peak_hour=3)


def eligible(availability, clients, clock_s):
    return int((availability.until(np.arange(clients), clock_s) > clock_s).sum())


def test_the_server_waits_ten_minutes_at_a_time_until_enough_are_eligible():
    conditions, start_s = Conditions(availability=NIGHT), 21 * 3600.0
    counts = [eligible(NIGHT, 1000, start_s + 600 * turn) for turn in range(7)]
    assert sorted(counts) == counts  # it is getting late
    wanted = counts[3] + 1
    first = next(turn for turn, count in enumerate(counts) if count >= wanted)
    found, clock_s = chosen(conditions, 1000, wanted, clock_s=start_s)
    assert clock_s == start_s + 600 * first
    assert len(found) == wanted
    assert (NIGHT.until(found, clock_s) > clock_s).all()
    assert chosen(conditions, 1000, counts[0], clock_s=start_s)[1] == start_s


def test_after_an_hour_the_server_goes_on_with_those_that_there_are():
    found, clock_s = chosen(Conditions(availability=NIGHT, over_selection=1.3), 200, 150, clock_s=7.0)
    assert clock_s == 7.0 + PATIENCE_S == 3607.0
    assert len(found) == eligible(NIGHT, 200, 3607.0) < 150
    assert (NIGHT.until(found, clock_s) > clock_s).all()


@dataclass(frozen=True)
class From:
    """Clients are eligible from 100 s times their number and ``start_s`` on, for ever."""

    start_s: float

    def until(self, clients, clock_s):
        return np.where(self.start_s + 100.0 * clients <= clock_s, np.inf, clock_s)


def test_where_there_is_nobody_the_server_goes_on_with_the_first_who_come_within_a_week():
    found, clock_s = chosen(Conditions(availability=From(50_000.0)), 50, 10)
    assert (found.tolist(), clock_s) == (
        [0, 1, 2, 3, 4],
        50_400.0,
    )  # the first time, 600 s after another, at which there is anybody
    found, clock_s = chosen(Conditions(availability=From(700_000.0)), 50, 5, clock_s=7.0)
    assert (len(found), clock_s) == (0, 7.0 + 7 * 86_400)
    assert (
        chosen(Conditions(availability=From(700_000.0)), 50, 5, clock_s=clock_s)[1] <= 700_600.0
    )  # the next round has another week


def test_a_trace_says_who_is_asked_when(tmp_path):
    rows = ["client,from,to,state"]
    rows += [f"{client},{3600 * (client // 5)},{3600 * (client // 5) + 1800},eligible" for client in range(10)]
    rows.append("10,0,7200,none")
    (tmp_path / "trace.csv").write_text("\n".join(rows) + "\n")
    run = small("phone", clients=11, per_round=5, over_selection=1.0, availability=str(tmp_path / "trace.csv"))
    select = run.conditions.select
    assert select(0, 11, 5, 1, 0.0, {})[0].tolist() == [0, 1, 2, 3, 4]
    found, clock_s = select(0, 11, 5, 1, 1800.0, {})  # the first five have just left
    assert (found.tolist(), clock_s) == ([5, 6, 7, 8, 9], 3600.0)
    found, clock_s = select(0, 11, 5, 1, 0.0, {2: 1000.0})
    assert (found.tolist(), clock_s) == ([0, 1, 2, 3, 4], 1000.0)


@pytest.mark.parametrize("clients", [10_000, 1_000_000])
def test_the_work_of_asking_grows_with_those_asked_not_with_all(monkeypatch, clients):
    looked, real = [], conditions_module.shuffled

    def counted(seed, n, positions, *key):
        looked.append(len(positions))
        return real(seed, n, positions, *key)

    monkeypatch.setattr(conditions_module, "shuffled", counted)
    found, _ = chosen(Conditions(), clients, 100)
    assert len(found) == 100
    assert sum(looked) <= 4096
    looked.clear()
    daily = Daily(seed=0, mean_share=0.2, day_night_ratio=4, peak_hour=3, start_hour=3)
    assert len(chosen(Conditions(availability=daily), clients, 1500)[0]) == 1500
    assert sum(looked) <= 3 * 4096


def test_every_client_is_as_likely_to_be_asked_as_any_other():
    """Chi-square of 3000 rounds of 10 out of 50: its mean is 49, less what drawing without replacement takes; 99.99 % lie below 100."""
    counts = np.zeros(50)
    for round_ in range(1, 3001):
        counts[chosen(Conditions(), 50, 10, round_=round_)[0]] += 1
    statistic = ((counts - 600) ** 2 / 600).sum() / (1 - 10 / 50)
    assert 15 < statistic < 100
