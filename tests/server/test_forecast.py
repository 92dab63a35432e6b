"""What is expected of a client before it trains: seconds, joules, links, states and batteries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from small_fleet import expected_by_client, small, write_device, write_fleet

from edgefl.fleet.availability import Always
from edgefl.fleet.conditions import Conditions
from edgefl.rng import normals, uniforms
from edgefl.server.state import FleetMemory


def test_a_session_s_seconds_and_joules_are_those_worked_out_by_hand(board):
    run = small(board)
    (cost,) = run.plan.costs.values()
    throttled = 0
    for client, outcome in expected_by_client(run, turn=7).items():
        samples = run.clients.shards.size(client)
        steps = -(-samples // 32)
        macs = samples * (cost.macs_forward + cost.macs_backward_input + cost.macs_backward_weight) + steps * cost.macs_compose
        one = np.array([client])
        link = round(math.exp(0.5 * normals(0, one, "link")[0] + 0.3 * normals(0, one, 7, "link")[0]), 6)
        response = round(math.exp(0.2 * normals(0, one, 7, "response")[0]), 6)
        work_s = macs / 0.5e9
        throttled += work_s > 0.001
        slowed_s = work_s if work_s <= 0.001 else 0.001 + (work_s - 0.001) / 0.4
        parts = 0.05 + cost.download_bytes / (1e6 * link), slowed_s * response, 0.05 + cost.upload_bytes / (0.5e6 * link)
        timing = outcome.timing
        assert (timing.download_s, timing.train_s, timing.upload_s) == pytest.approx(parts, rel=1e-12)
        assert timing.compute_j == pytest.approx(3 * parts[1] + 0.25 * (parts[0] + parts[2]), rel=1e-12)
        assert timing.radio_j == pytest.approx(100e-9 * cost.download_bytes + 300e-9 * cost.upload_bytes, rel=1e-12)
        assert timing.network_j == pytest.approx(24e-6 * (cost.download_bytes + cost.upload_bytes), rel=1e-12)
        assert timing.total_j == timing.compute_j + timing.radio_j
        assert timing.end_to_end_j == pytest.approx(timing.total_j + timing.network_j)
        assert (outcome.status, outcome.macs, outcome.samples) == ("expected", macs, samples)
        assert (outcome.download_bytes, outcome.upload_bytes) == (cost.download_bytes, cost.upload_bytes)
    assert throttled > 0


def test_epochs_in_micro_batches_take_as_long_as_each_alone():
    keys = {"conditions": "ideal", "clients": 40, "batch_size": 32, "micro_batch": 8}
    once, thrice = (small("phone", local_epochs=epochs, **keys) for epochs in (1, 3))
    alone = expected_by_client(once)
    for client, outcome in expected_by_client(thrice).items():
        train_s = 3 * alone[client].timing.train_s
        assert outcome.timing.train_s == pytest.approx(train_s, rel=1e-12)
        whole = thrice.plan.timing(thrice.forecast.class_plan_of(client, 1).device, outcome.tier, outcome.samples)
        assert whole.train_s == pytest.approx(train_s, rel=1e-12)


def test_under_ideal_conditions_links_and_answers_are_typical(board):
    run = small(board, conditions="ideal")
    (cost,) = run.plan.costs.values()
    for outcome in expected_by_client(run).values():
        assert outcome.timing.download_s == pytest.approx(0.05 + cost.download_bytes / 1e6)
        assert outcome.timing.upload_s == pytest.approx(0.05 + cost.upload_bytes / 0.5e6)
        timing = run.plan.timing(run.plan.classes[0].device, outcome.tier, outcome.samples)
        assert outcome.timing.train_s == timing.train_s


def test_a_slower_state_lasts_longer_before_it_throttles(tmp_path):
    write_device(tmp_path, "board", burst_s=0.004, sustained_share=0.5)
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={}, states=(("free", 0.5, 1, 1), ("busy", 0.5, 0.5, 0.5)))
    found = expected_by_client(small(profile, dynamic_devices=True))
    assert {o.state for o in found.values()} == {"free", "busy"}
    for outcome in found.values():
        work_s = outcome.macs / 0.5e9 / {"free": 1.0, "busy": 0.5}[outcome.state]
        assert outcome.timing.train_s == pytest.approx(work_s if work_s <= 0.004 else 0.004 + (work_s - 0.004) / 0.5)
        assert outcome.memory_bytes == {"free": 1e9, "busy": 0.5e9}[outcome.state]


def test_factors_are_log_normal_with_median_1_and_rounded_to_six_decimals():
    many = np.arange(20_000)
    varied = Conditions(links_vary=True, response_sigma=0.2)
    sigmas = np.full(len(many), 0.55), np.full(len(many), 0.37)
    for found, sigma in [
        (varied.link_shares(3, many, sigmas, 5), math.hypot(0.55, 0.37)),
        (varied.responses(3, many, 5), 0.2),
    ]:
        assert (np.round(found, 6) == found).all()
        # The median of n draws of a normal law errs by 1.2533 sigma / sqrt(n), their standard deviation by sigma / sqrt(2n): four times.
        assert abs(math.log(np.median(found))) < 4 * 1.2533 * sigma / math.sqrt(len(many))
        assert abs(np.log(found).std() - sigma) < 4 * sigma / math.sqrt(2 * len(many))
    widest = replace(varied, response_sigma=3.0)
    assert widest.link_shares(3, many, (np.full(len(many), 3.0), np.full(len(many), 3.0)), 5).min() == 1e-6
    assert widest.responses(3, np.arange(2_000_000), 5).min() == 1e-6
    assert (Conditions().link_shares(3, many, sigmas, 5) == 1).all()
    assert (Conditions().responses(3, many, 5) == 1).all()


def test_a_client_s_link_is_its_own_and_each_session_s_besides():
    many, rounds = np.arange(4000), range(1, 9)
    varied = Conditions(links_vary=True)
    shares = np.array([varied.link_shares(0, many, (np.full(4000, 0.6), np.full(4000, 0.2)), r) for r in rounds])
    within, between = np.log(shares).std(axis=0, ddof=1).mean(), np.log(shares).mean(axis=0).std()
    assert within == pytest.approx(0.2, rel=0.06)
    assert between == pytest.approx(math.hypot(0.6, 0.2 / math.sqrt(8)), rel=0.06)


def test_a_client_s_session_is_the_same_whoever_else_is_asked_and_in_any_order(tmp_path):
    for name, rate in (("quick", 0.5), ("slow", 0.1)):
        write_device(tmp_path, name, training=rate, spread_sigma=0.6, session_sigma=0.2, battery_wh=0.0001)
    behaviour = {"drop_out": 0.2, "interrupted": 0.1, "response_sigma": 0.3}
    states = (("free", 0.5, 1, 1), ("busy", 0.5, 0.5, 0.5))
    profile = write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour=behaviour, states=states)
    keys = {"clients": 40, "method": "heterofl", "tiers": (1.0, 0.5), "dynamic_devices": True, "tier_assignment": "dynamic"}
    run = small(profile, **keys)
    together = expected_by_client(run, range(40), turn=9)
    assert len({o.status for o in together.values()}) == 4  # expected, refused, dropped, interrupted
    alone = {client: expected_by_client(run, [client], turn=9)[client] for client in range(40)}
    backwards = expected_by_client(small(profile, **keys), range(39, -1, -1), turn=9)
    assert together == alone == backwards
    assert expected_by_client(run, range(40), turn=10) != together


def test_a_battery_that_a_session_would_drain_too_far_refuses_it_until_the_night(tmp_path):
    write_device(tmp_path, "board", battery_wh=0.0001)  # 0.36 J
    run = small(write_fleet(tmp_path, {"board": 1.0}, behaviour={}))
    levels_j = (0.3 + 0.7 * uniforms(0, np.arange(12), "battery") - 0.2) * 0.36
    needs_j = {c: o.timing.total_j for c, o in expected_by_client(replace(run, conditions=Conditions())).items()}
    found = expected_by_client(run)
    refused = {c for c, o in found.items() if o.status == "refused"}
    assert refused == {c for c in range(12) if needs_j[c] > levels_j[c]}
    assert 0 < len(refused) < 12
    for client in refused:
        (short,) = found[client].refusal
        assert (short.budget, short.device, short.tier) == ("battery_j", "board", 1.0)
        assert short.need == needs_j[client]
        assert short.have == pytest.approx(levels_j[client])
        assert (found[client].timing, found[client].macs, found[client].download_bytes) == (None, 0, 0)
    client = next(c for c in range(12) if levels_j[c] > needs_j[c])
    memory, times = FleetMemory(), 0
    while expected_by_client(run, [client], drained_j=memory.drained_j)[client].status == "expected":
        outcome = expected_by_client(run, [client], start_s=60.0 * times, drained_j=memory.drained_j)[client]
        memory = memory.at(60.0 * times).after([outcome], 60.0 * (times + 1), battery=True)
        times += 1
    assert times == int(levels_j[client] // needs_j[client])
    assert memory.drained_j == {client: pytest.approx(times * needs_j[client])}
    assert memory.at(86_399.0, day=0).drained_j == memory.drained_j
    tomorrow = memory.at(86_400.0, day=1)
    assert (tomorrow.drained_j, tomorrow.day) == ({}, 1)
    assert expected_by_client(run, [client], start_s=86_400.0, drained_j=tomorrow.drained_j)[client].status == "expected"


def test_batteries_of_clients_that_charge_or_have_none_refuse_nothing(tmp_path):
    write_device(tmp_path, "board", battery_wh=1e-6)
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={})
    assert {o.status for o in expected_by_client(small(profile)).values()} == {"refused"}
    for keys in ({"conditions": "ideal"}, {"availability": "daily"}):
        run = small(profile, **keys)
        assert not run.conditions.battery
        assert {
            o.status for o in expected_by_client(replace(run, conditions=replace(run.conditions, availability=Always()))).values()
        } == {"expected"}
    write_device(tmp_path, "board")
    assert {o.status for o in expected_by_client(small(profile)).values()} == {"expected"}
    assert FleetMemory().after(expected_by_client(small(profile)).values(), 0.0, battery=False).drained_j == {}
