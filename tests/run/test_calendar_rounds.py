"""Rounds under a calendar: when they begin, who is asked, what is recorded, and what a checkpoint restores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_fleet import small, write_device, write_fleet

from edgefl import RunConfig
from edgefl.errors import ConfigError
from edgefl.run.calendar_rounds import prepare_to_train, require_rounds, rounds_that_fit
from edgefl.run.policy_reach import policy_outcome
from edgefl.run.trained import without_training
from edgefl.server.checkpoint import of_file, to_bytes
from edgefl.server.client_store import ClientStore

TABLE = "[calendar]\nstart = 2026-06-01\nhours = [[22, 6]]\nrounds_per_day = 4\n"


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    def of(table: str) -> str:
        folder = tmp_path_factory.mktemp("fleet")
        write_device(folder, "board")
        path = write_fleet(folder, {"board": 1.0}, behaviour={})
        Path(path).write_text(Path(path).read_text() + table)
        return path

    return of


def test_rounds_begin_by_the_calendar_and_the_wait_is_recorded(write):
    records = list(without_training(small(write(TABLE), conditions="ideal"), 5))
    assert [record.began for record in records] == [
        "2026-06-01 22:00", "2026-06-02 00:00", "2026-06-02 02:00", "2026-06-02 04:00", "2026-06-02 22:00",
    ]  # fmt: skip
    assert records[0].waited_s == 22 * 3600
    assert records[1].waited_s == pytest.approx(7200 - records[0].round_s)
    assert records[4].clock_s == pytest.approx(46 * 3600 + records[4].round_s)
    assert records[3].next_s == 46 * 3600
    assert records[0].to_json()["began"] == "2026-06-01 22:00"


def test_a_device_has_at_most_its_sessions_of_a_day(write):
    run = small(write(TABLE + "sessions_per_day = 1\n"), clients=12, per_round=3, conditions="ideal")
    nights = [[c.client for record in of for c in record.clients] for of in _nights(list(without_training(run, 8)))]
    assert all(sorted(clients) == list(range(12)) for clients in nights)
    unlimited = list(without_training(small(write(TABLE), clients=12, per_round=3, conditions="ideal"), 4))
    assert len({c.client for record in unlimited for c in record.clients}) < 12


def _nights(records):
    return records[:4], records[4:]


def test_who_is_available_is_asked_at_the_hour_at_which_the_round_begins(write):
    run = small(write(TABLE), clients=4000, per_round=1000, partition="index:60", availability="daily", rounds_per_day=24.0)
    hours = list(without_training(run, 3))
    assert [record.began[-5:] for record in hours] == ["22:00", "22:20", "22:40"]
    shares = [run.conditions.availability.share(record.clock_s) for record in without_training(run, 24)]
    assert max(shares) > 1.3 * min(shares)


def test_the_flag_makes_a_calendar_of_a_fleet_without_one():
    run = small("lab", rounds_per_day=24.0, start_hour=1.5)
    assert [record.began for record in without_training(run, 2)] == ["day 1 01:30", "day 1 02:30"]


def test_a_checkpoint_restores_what_has_begun_today(write, tmp_path):
    run = small(write(TABLE + "sessions_per_day = 1\n"), clients=12, per_round=3, conditions="ideal", model=None)
    state, _ = run.round(run.start(), None, ClientStore(tmp_path / "clients"))
    (path := tmp_path / "state").write_bytes(to_bytes(state))
    restored = replace(run.start(), fleet=of_file(path).fleet, clock_s=state.clock_s, round=1)
    assert restored.fleet == state.fleet
    assert restored.fleet.today.rounds == 1
    assert (
        run.round(restored, None, ClientStore(tmp_path / "clients"))[1].clients
        == run.round(state, None, ClientStore(tmp_path / "clients"))[1].clients
    )


def test_a_run_has_the_rounds_that_begin_before_the_end(write):
    said: list[str] = []
    keys = {"profile": write(TABLE + "end = 2026-06-02\n"), "model": "mlp", "clients": 6, "per_round": 2, "conditions": "ideal"}
    run = prepare_to_train(RunConfig.of({**keys, "rounds": 20}), said.append)
    assert (run.config.rounds, said) == (8, ["the calendar ends after 8 of 20 rounds: the run has 8"])
    assert rounds_that_fit(run) == 8
    assert prepare_to_train(RunConfig.of({**keys, "rounds": 3})).config.rounds == 3


def test_a_calendar_without_time_for_a_round_is_refused(write):
    run = small(write(TABLE + "end = 2026-06-01\n"), start_hour=7.0)
    with pytest.raises(ConfigError, match="calendar: no round begins from 2026-06-01 to 2026-06-01; give a later end"):
        require_rounds(run, 0)


def test_mode_async_has_no_rounds_for_a_calendar(write):
    with pytest.raises(ConfigError, match="mode: async has no rounds that a calendar could begin, but the fleet small has a"):
        small(write(TABLE), mode="async", method="heterofl")


def test_the_days_of_a_policy_are_whole_ones_and_each_device_is_counted(write):
    """Twelve boards, all asked each night: of six rounds the last two, of a day that is not over, are left out."""
    run = small(write(TABLE + "sessions_per_day = 1\n"), clients=12, per_round=3, conditions="ideal")
    row, played = policy_outcome("p", run, 6, 30)
    assert (row.rounds, row.days, len(played), row.began) == (4, 1.0, 4, "2026-06-01 22:00")
    reach = row.reach["board"]
    assert (reach.trained, reach.asked, reach.days, dict(reach.lost)) == (12, 12, 1.0, {})
    assert reach.bytes_median == reach.bytes_p90 == row.uses["board"].download_bytes / 12 + row.uses["board"].upload_bytes / 12
    assert reach.updates_days == pytest.approx(30 / 12)  # beyond the simulated day, at its rate
    assert policy_outcome("p", run, 8, 12)[0].reach["board"].updates_days == pytest.approx(6 / 24, abs=0.01)
