"""Rounds with columns instead of clients: to the bit the figures of rounds with a record per client."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from small_fleet import WITHOUT_ENERGY, small, write_device, write_fleet

from edgefl.run.policy_reach import played
from edgefl.run.trained import without_training
from edgefl.server.light_round import LightRecord, light_round
from edgefl.server.rounds import run_round

ROUNDS = 12
LOSSES = {"drop_out": 0.2, "interrupted": 0.1, "response_sigma": 0.5, "over_selection": 1.3}
STATES = (("free", 0.6, 1.0, 1.0), ("busy", 0.4, 0.5, 0.3))
CALENDAR = "[calendar]\nstart = 2026-06-01\nend = 2026-06-02\nhours = [[22, 6]]\nrounds_per_day = 5\nsessions_per_day = 1\n"


@pytest.fixture
def fleet(tmp_path):
    """Boards that throttle, phones with batteries, meters without figures of energy on a slow link, and devices that fit no tier."""
    write_device(tmp_path, "board", burst_s=0.01, sustained_share=0.5, spread_sigma=0.4, session_sigma=0.3, tail_s=2, tail_w=0.5)
    write_device(tmp_path, "phone", battery_wh=0.0006, network_nj_per_byte=50, spread_sigma=0.6)
    write_device(tmp_path, "meter", upload_mbps=0.01, spread_sigma=0.2, **WITHOUT_ENERGY)
    write_device(tmp_path, "tiny", training_bytes=1000)

    def written(behaviour=None, states=(), calendar=""):
        path = write_fleet(tmp_path, {"board": 0.4, "phone": 0.3, "meter": 0.2, "tiny": 0.1}, "", behaviour, states)
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(calendar)
        return path

    return written


def rounds_of(run, run_one):
    """Return the records of a run's rounds, their lines, and their columns."""
    records = list(without_training(run, ROUNDS, run_one))
    lines = [{key: value for key, value in record.to_json(clients=False).items() if key != "host_s"} for record in records]
    return records, lines, [played(record) for record in records]


CASES = {
    "nothing varies": ({}, {}),
    "losses": ({"behaviour": LOSSES}, {"availability": "daily"}),
    "states": ({"behaviour": LOSSES, "states": STATES}, {"availability": "always", "clients": 60, "per_round": 10}),
    "deadline": ({"behaviour": LOSSES}, {"deadline_s": 0.7, "per_round": 8, "availability": "always"}),
    "nights": ({"calendar": CALENDAR}, {"clients": 40}),
    "drawn tiers": ({"behaviour": LOSSES}, {"method": "heterofl", "tier_assignment": "dynamic", "clients": 40, "per_round": 10}),
    "dealt tiers": ({}, {"method": "heterofl", "tier_assignment": "uniform", "tier_shares": (0.2, 0.3, 0.5), "per_round": 10}),
    "batteries": ({"calendar": "[calendar]\nrounds_per_day = 6\n"}, {"per_round": 12}),
}


@pytest.mark.parametrize("name", CASES)
def test_columns_have_the_bits_of_clients(name, fleet):
    of_fleet, keys = CASES[name]
    run = small(fleet(**of_fleet), rounds=ROUNDS, **keys)
    light, light_lines, light_columns = rounds_of(run, light_round)
    full, lines, columns = rounds_of(run, run_round)
    assert all(isinstance(record, LightRecord) for record in light)
    assert light_lines == lines
    assert len({status for record in full for status in (client.status for client in record.clients)}) >= 2
    assert name != "batteries" or any(record.foreseen.empty.any() for record in light)
    for found, wanted in zip(light_columns, columns, strict=True):
        assert found.start_s == wanted.start_s
        for key in ("clients", "statuses", "bytes", "joules"):
            np.testing.assert_array_equal(getattr(found, key), getattr(wanted, key), err_msg=key)
        for field in fields(wanted.timed):
            np.testing.assert_array_equal(getattr(found.timed, field.name), getattr(wanted.timed, field.name), err_msg=field.name)


@pytest.mark.parametrize("keys", [{"mode": "async", "buffer": 3}, {"sampler": "fresh"}, {"secure_aggregation": "secagg"}])
def test_rounds_that_need_every_session_have_clients(keys, fleet):
    run = small(fleet(), **keys)
    (record,) = without_training(run, 1, light_round)
    assert not isinstance(record, LightRecord)
    assert record.clients
