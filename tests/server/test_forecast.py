"""What is expected of clients before anybody trains: seconds, joules, losses, batteries, and who is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from small_fleet import small, write_device, write_fleet

from edgefl.fleet import conditions as conditions_module
from edgefl.fleet.availability import Always, Daily
from edgefl.fleet.conditions import PATIENCE_S, Conditions
from edgefl.rng import normals, uniforms
from edgefl.server.forecast import Asked
from edgefl.server.sessions import cut, failed_after
from edgefl.server.state import FleetMemory

ALL = np.arange(12)


def expected(run, clients=ALL, turn=1, start_s=0.0, drained_j=None):
    """Return client → what is expected of it."""
    found = run.forecast.expected(Asked(np.asarray(clients, np.int64), turn, start_s), drained_j or {})
    return {outcome.client: outcome for outcome in found}


@pytest.fixture
def board(tmp_path):
    """A device that throttles after a millisecond, on a link whose path to the server takes energy too."""
    write_device(
        tmp_path, "board", spread_sigma=0.5, session_sigma=0.3, network_nj_per_byte=24_000, burst_s=0.001, sustained_share=0.4
    )
    return write_fleet(tmp_path, {"board": 1.0}, behaviour={"response_sigma": 0.2})


def test_a_session_s_seconds_and_joules_are_those_worked_out_by_hand(board):
    run = small(board)
    (cost,) = run.plan.costs.values()
    throttled = 0
    for client, outcome in expected(run, turn=7).items():
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
        assert timing.compute_j == pytest.approx(400e-12 * macs + 0.25 * sum(parts), rel=1e-12)
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
    alone = expected(once)
    for client, outcome in expected(thrice).items():
        train_s = 3 * alone[client].timing.train_s
        assert outcome.timing.train_s == pytest.approx(train_s, rel=1e-12)
        whole = thrice.plan.timing(thrice.forecast.class_plan_of(client, 1).device, outcome.tier, outcome.samples)
        assert whole.train_s == pytest.approx(train_s, rel=1e-12)


def test_under_ideal_conditions_links_and_answers_are_typical(board):
    run = small(board, conditions="ideal")
    (cost,) = run.plan.costs.values()
    for outcome in expected(run).values():
        assert outcome.timing.download_s == pytest.approx(0.05 + cost.download_bytes / 1e6)
        assert outcome.timing.upload_s == pytest.approx(0.05 + cost.upload_bytes / 0.5e6)
        timing = run.plan.timing(run.plan.classes[0].device, outcome.tier, outcome.samples)
        assert outcome.timing.train_s == timing.train_s


def test_a_slower_state_lasts_longer_before_it_throttles(tmp_path):
    write_device(tmp_path, "board", burst_s=0.004, sustained_share=0.5)
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={}, states=(("free", 0.5, 1, 1), ("busy", 0.5, 0.5, 0.5)))
    found = expected(small(profile, dynamic_devices=True))
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
    assert (Conditions().link_shares(3, many, sigmas, 5) == 1).all()
    assert (Conditions().responses(3, many, 5) == 1).all()


def test_a_client_s_link_is_its_own_and_each_session_s_besides():
    many, rounds = np.arange(4000), range(1, 9)
    varied = Conditions(links_vary=True)
    shares = np.array([varied.link_shares(0, many, (np.full(4000, 0.6), np.full(4000, 0.2)), r) for r in rounds])
    within, between = np.log(shares).std(axis=0, ddof=1).mean(), np.log(shares).mean(axis=0).std()
    assert within == pytest.approx(0.2, rel=0.06)
    assert between == pytest.approx(math.hypot(0.6, 0.2 / math.sqrt(8)), rel=0.06)


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
    whole = expected(replace(run, conditions=Conditions()), range(60), turn=2)
    seen = set()
    for client, outcome in expected(run, range(60), turn=2).items():
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
    cell, whole = run.plan.classes[0], expected(run)[3]
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
    assert took.timing.compute_j == pytest.approx(400e-12 * took.macs + 0.25 * at_s)
    assert took.timing.radio_j == pytest.approx(100e-9 * took.download_bytes + 300e-9 * took.upload_bytes)
    assert took.timing.network_j == pytest.approx(24e-6 * (took.download_bytes + took.upload_bytes))
    assert (took.client, took.tier, took.samples) == (whole.client, whole.tier, whole.samples)


def test_what_was_done_to_the_end_was_all_of_it(board):
    """A sum of seconds is not exact to the last bit: no MAC of a finished training may get lost in that, and no upload begin."""
    run = small(board, clients=200)
    cells = run.plan.class_plans_of(np.arange(200), 1)
    for cell, whole in zip(cells, expected(run, range(200)).values(), strict=True):
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
    plain = expected(run, turn=3, start_s=100.0)
    found = expected(replace(run, conditions=replace(run.conditions, availability=Until())), turn=3, start_s=100.0)
    for client, outcome in found.items():
        left_s = 5.0 if client % 2 == 0 else 0.01
        if plain[client].timing.total_s > left_s:
            assert outcome.status == "interrupted"
            assert outcome.timing.total_s == pytest.approx(left_s)
        else:
            assert outcome == plain[client]
    assert {o.status for o in found.values()} == {"interrupted", "expected"}
    assert all(o.download_bytes < plain[o.client].download_bytes and not o.macs for o in found.values() if o.client % 2)


def test_a_client_s_session_is_the_same_whoever_else_is_asked_and_in_any_order(tmp_path):
    for name, rate in (("quick", 0.5), ("slow", 0.1)):
        write_device(tmp_path, name, training=rate, spread_sigma=0.6, session_sigma=0.2, battery_wh=0.0001)
    behaviour = {"drop_out": 0.2, "interrupted": 0.1, "response_sigma": 0.3}
    states = (("free", 0.5, 1, 1), ("busy", 0.5, 0.5, 0.5))
    profile = write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour=behaviour, states=states)
    keys = {"clients": 40, "method": "heterofl", "tiers": (1.0, 0.5), "dynamic_devices": True, "tier_assignment": "dynamic"}
    run = small(profile, **keys)
    together = expected(run, range(40), turn=9)
    assert len({o.status for o in together.values()}) == 4  # expected, refused, dropped, interrupted
    alone = {client: expected(run, [client], turn=9)[client] for client in range(40)}
    backwards = expected(small(profile, **keys), range(39, -1, -1), turn=9)
    assert together == alone == backwards
    assert expected(run, range(40), turn=10) != together


def test_a_battery_that_a_session_would_drain_too_far_refuses_it_until_the_night(tmp_path):
    write_device(tmp_path, "board", battery_wh=0.0001)  # 0.36 J
    run = small(write_fleet(tmp_path, {"board": 1.0}, behaviour={}))
    levels_j = (0.3 + 0.7 * uniforms(0, ALL, "battery") - 0.2) * 0.36
    needs_j = {c: o.timing.total_j for c, o in expected(replace(run, conditions=Conditions())).items()}
    found = expected(run)
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
    while expected(run, [client], drained_j=memory.drained_j)[client].status == "expected":
        outcome = expected(run, [client], start_s=60.0 * times, drained_j=memory.drained_j)[client]
        memory = memory.at(60.0 * times).after([outcome], 60.0 * (times + 1), battery=True)
        times += 1
    assert times == int(levels_j[client] // needs_j[client])
    assert memory.drained_j == {client: pytest.approx(times * needs_j[client])}
    assert memory.at(86_399.0, day=0).drained_j == memory.drained_j
    tomorrow = memory.at(86_400.0, day=1)
    assert (tomorrow.drained_j, tomorrow.day) == ({}, 1)
    assert expected(run, [client], start_s=86_400.0, drained_j=tomorrow.drained_j)[client].status == "expected"


def test_batteries_of_clients_that_charge_or_have_none_refuse_nothing(tmp_path):
    write_device(tmp_path, "board", battery_wh=1e-6)
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={})
    assert {o.status for o in expected(small(profile)).values()} == {"refused"}
    for keys in ({"conditions": "ideal"}, {"availability": "daily"}):
        run = small(profile, **keys)
        assert not run.conditions.battery
        assert {o.status for o in expected(replace(run, conditions=replace(run.conditions, availability=Always()))).values()} == {
            "expected"
        }
    write_device(tmp_path, "board")
    assert {o.status for o in expected(small(profile)).values()} == {"expected"}
    assert FleetMemory().after(expected(small(profile)).values(), 0.0, battery=False).drained_j == {}


# Selection ---------------------------------------------------------------------------------------------------------------------


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
