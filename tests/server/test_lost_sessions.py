"""Sessions that are lost: how often, at which moment, and what they took until then."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from small_fleet import expected_by_client, small, write_device, write_fleet

from edgefl.fleet.conditions import Conditions
from edgefl.rng import uniforms
from edgefl.server.sessions import cut, failed_after


def test_fates_are_as_frequent_as_the_profile_says_and_fall_at_any_moment():
    many = np.arange(20_000)
    interrupted, dropped, moments = Conditions(drop_out=0.06, interrupted=0.02).fates(1, many, 4)
    assert not (interrupted & dropped).any()
    for found, share in ((interrupted, 0.02), (dropped, 0.06)):
        assert abs(found.mean() - share) < 4 * math.sqrt(share * (1 - share) / len(many))
        assert abs(moments[found].mean() - 0.5) < 4 * math.sqrt(1 / 12 / found.sum())
    assert ((moments >= 0) & (moments < 1)).all()
    again, _, _ = Conditions(drop_out=0.06, interrupted=0.02).fates(1, many, 5)
    assert (again != interrupted).any()
    nobody, lost, _ = Conditions().fates(1, many, 4)
    assert not nobody.any()
    assert not lost.any()


def test_lost_sessions_end_where_their_moment_says(tmp_path):
    write_device(tmp_path, "board")
    fates = {"drop_out": 0.3, "interrupted": 0.4}
    run = small(write_fleet(tmp_path, {"board": 1.0}, behaviour=fates), clients=60)
    whole = expected_by_client(replace(run, conditions=Conditions()), range(60), turn=2)
    seen = set()
    for client, outcome in expected_by_client(run, range(60), turn=2).items():
        fate, moment = (uniforms(0, np.array([client]), 2, key)[0] for key in ("fate", "moment"))
        full = whole[client].timing
        wanted = "interrupted" if fate < 0.4 else "dropped" if fate < 0.7 else "expected"
        at_s = {
            "interrupted": full.download_s + moment * full.train_s,
            "dropped": moment * full.total_s,
            "expected": full.total_s,
        }[wanted]
        assert outcome.status == wanted
        assert outcome.timing.total_s == pytest.approx(at_s, rel=1e-12)
        if wanted == "interrupted":  # in mid-training, by definition
            assert outcome.download_bytes == whole[client].download_bytes
            assert outcome.upload_bytes == 0
        seen.add(wanted)
    assert seen == {"interrupted", "dropped", "expected"}


@pytest.mark.parametrize("part", ["download", "training", "upload", "beginning", "end"])
def test_what_is_cut_took_its_share_of_work_bytes_and_joules(board, part):
    run = small(board, conditions="ideal")
    cell, whole = run.plan.classes[0], expected_by_client(run)[3]
    full = whole.timing
    share = {"download": 0.25, "training": 0.5, "upload": 0.75, "beginning": 0.0, "end": 1.0}[part]
    at_s = {
        "download": share * full.download_s,
        "training": full.download_s + share * full.train_s,
        "upload": full.download_s + full.train_s + share * full.upload_s,
        "beginning": 0.0,
        "end": full.total_s,
    }[part]
    took = cut(cell, whole, at_s, "dropped")
    down, train, up = {
        "download": (share, 0, 0),
        "training": (1, share, 0),
        "upload": (1, 1, share),
        "beginning": (0, 0, 0),
        "end": (1, 1, 1),
    }[part]
    assert took.status == "dropped"
    assert took.timing.total_s == pytest.approx(at_s)
    assert took.download_bytes == pytest.approx(down * whole.download_bytes, abs=1)
    assert took.upload_bytes == pytest.approx(up * whole.upload_bytes, abs=1)
    assert took.macs == pytest.approx(train * whole.macs, abs=1)
    assert took.timing.compute_j == pytest.approx(3 * train * full.train_s + 0.25 * (at_s - train * full.train_s))
    assert took.timing.radio_j == pytest.approx(100e-9 * took.download_bytes + 300e-9 * took.upload_bytes)
    assert took.timing.network_j == pytest.approx(24e-6 * (took.download_bytes + took.upload_bytes))
    assert (took.client, took.tier, took.samples) == (whole.client, whole.tier, whole.samples)


def test_what_was_done_to_the_end_was_all_of_it(board):
    """A sum of seconds is not exact to the last bit: no MAC of a finished training may get lost in that, and no upload begin."""
    run = small(board, clients=200)
    cells = run.plan.class_plans_of(np.arange(200), 1)
    for cell, whole in zip(cells, expected_by_client(run, range(200)).values(), strict=True):
        lost = failed_after(cell, whole, 5, 5)
        assert (lost.macs, lost.download_bytes, lost.upload_bytes) == (whole.macs, whole.download_bytes, 0)
        assert lost.timing.upload_s == 0.0
        assert lost.timing.train_s == whole.timing.train_s


def test_who_stops_being_eligible_is_interrupted(board):
    class Until:
        """Everybody is eligible for five seconds from 100 s on, but clients of odd number for an instant only."""

        def until(self, clients, clock_s):
            return np.where(clients % 2 == 0, 105.0, np.nextafter(100.0, 200.0) + 0.01)

    run = small(board)
    plain = expected_by_client(run, turn=3, start_s=100.0)
    found = expected_by_client(replace(run, conditions=replace(run.conditions, availability=Until())), turn=3, start_s=100.0)
    for client, outcome in found.items():
        left_s = 5.0 if client % 2 == 0 else 0.01
        if plain[client].timing.total_s > left_s:
            assert outcome.status == "interrupted"
            assert outcome.timing.total_s == pytest.approx(left_s)
        else:
            assert outcome == plain[client]
    assert {o.status for o in found.values()} == {"interrupted", "expected"}
    assert all(o.download_bytes < plain[o.client].download_bytes and not o.macs for o in found.values() if o.client % 2)
