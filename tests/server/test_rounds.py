"""Rounds: when they close, who is late, what makes room for whom, and that a rehearsal is the round itself without training."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from small_fleet import play, small, write_device, write_fleet

from edgefl import RunConfig
from edgefl.methods.create import create
from edgefl.records import ClientRecord, Expected, Outcome, RoundRecord, Tier, Timing, Totals
from edgefl.run.dry_run import outcome_of
from edgefl.run.prepare import prepare
from edgefl.run.trained import without_training
from edgefl.run.whatif import whatif
from edgefl.server.client_store import ClientStore
from edgefl.server.schedule import Round, ask
from edgefl.server.state import FleetMemory, ServerState


def by_status(record):
    found = {}
    for client in record.clients:
        found.setdefault(client.status, []).append(client.client)
    return found


def without(run, *clients):
    """Return the run in which ``clients`` are given nothing: no session of theirs begins."""
    forecast = run.forecast

    class Without(type(forecast)):
        def expected(self, asked, drained_j):
            found = super().expected(asked, drained_j)
            return [replace(o, status="refused", timing=None) if o.client in clients else o for o in found]

    copy = replace(run)
    values = {name: getattr(forecast, name) for name in ("plan", "conditions", "seed", "size_of")}
    copy.__dict__["forecast"] = Without(**values)
    return copy


def simulated(expected: Expected) -> ClientRecord:
    return ClientRecord(expected, Outcome(expected.client, "trained"))


def session_of(client, seconds, status="expected"):
    return Expected(client, "board", status, Tier(1.0), 10, timing=Timing(0.1, seconds - 0.2, 0.1, 1.0, 0.5))


@pytest.fixture
def fleet(tmp_path):
    """Two classes of devices whose sessions take different times, none of them lost."""
    write_device(tmp_path, "quick", spread_sigma=0.4)
    write_device(tmp_path, "slow", training=0.001, spread_sigma=0.4)
    return write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour={"over_selection": 1.5})


# When a round closes -----------------------------------------------------------------------------------------------------------


def test_a_round_closes_with_the_answer_that_makes_as_many_as_are_wanted():
    asked = tuple(session_of(c, s) for c, s in ((0, 9.0), (1, 3.0), (2, 5.0), (3, 4.0)))
    round_ = Round(1, 0.0, asked, deadline_s=60.0)
    assert [o.client for o in round_.arrivals] == [1, 3, 2, 0]
    final, closes_s = round_.closed(list(map(simulated, round_.arrivals[:2])), 2)
    assert closes_s == pytest.approx(4.0)
    assert [o.status for o in final] == ["late", "trained", "late", "trained"]
    assert [o.expected.timing for o in final] == [o.timing for o in asked]  # who is late works to its end


def test_equal_answers_arrive_in_the_order_of_clients():
    round_ = Round(1, 0.0, (session_of(5, 3.0), session_of(2, 3.0), session_of(9, 3.0)), None)
    assert [o.client for o in round_.arrivals] == [2, 5, 9]


@pytest.mark.parametrize(
    ("deadline_s", "closes_s", "statuses"),
    [(6.0, 6.0, ["late", "trained", "dropped"]), (None, 9.0, ["trained", "trained", "dropped"]), (3.0, 3.0, ["late", "trained", "dropped"]),
     (2.0, 2.0, ["late", "late", "dropped"]), (20.0, 9.0, ["trained", "trained", "dropped"])],
)  # fmt: skip
def test_with_fewer_than_are_wanted_it_lasts_to_the_last_end_or_the_deadline(deadline_s, closes_s, statuses):
    round_ = Round(1, 0.0, (session_of(0, 9.0), session_of(1, 3.0), session_of(2, 7.0, "dropped")), deadline_s)
    final, found_s = round_.closed(list(map(simulated, round_.arrivals)), 3)
    assert found_s == pytest.approx(closes_s)
    assert [o.status for o in final] == statuses


def test_a_round_of_nobody_takes_no_time():
    assert Round(1, 0.0, (), 60.0).closed([], 3) == ((), 0.0)
    refused = replace(session_of(0, 1.0, "refused"), timing=None)
    assert Round(1, 0.0, (refused,), 60.0).closed([], 1) == ((ClientRecord(refused),), 0.0)


def test_the_first_answers_are_aggregated_and_the_rest_is_late_and_busy(fleet):
    run = small(fleet, per_round=4)
    state, record = play(run)
    times = sorted((o.expected.total_s, o.client) for o in record.clients)
    assert len(times) == 6  # 1.5 times as many
    assert by_status(record) == {"trained": sorted(c for _, c in times[:4]), "late": sorted(c for _, c in times[4:])}
    assert (record.round_s, record.clock_s, record.waited_s) == (times[3][0], times[3][0], 0.0)
    assert state.clock_s == record.clock_s
    assert state.fleet.busy == {client: seconds for seconds, client in times[4:]}
    assert state.fleet.drained_j == {o.client: o.expected.timing.total_j for o in record.clients}
    late = [o for o in record.clients if o.status == "late"]
    assert all(o.expected.macs > 0 and o.expected.upload_bytes > 0 and o.outcome is None for o in late)
    assert all(o.to_json()["train_loss"] is None and not o.to_json()["steps"] for o in late)
    alone, _ = play(without(run, *state.fleet.busy))
    assert all(torch.equal(tensor, state.model.tensors[name]) for name, tensor in alone.model.tensors.items())


def test_who_is_late_cannot_be_asked_until_it_is_done(fleet):
    run = small(fleet, clients=6, per_round=4)
    state, record = play(run, engine=False)
    busy = set(state.fleet.busy)
    assert len(busy) == 2
    _, second = play(run, state, engine=False)
    assert {o.client for o in second.clients} == set(range(6)) - busy
    assert second.waited_s == 0.0
    assert {o.expected.start_s for o in second.clients} == {record.clock_s}
    # Five are wanted and four are free: the server waits for the first of the two.
    more = replace(run, config=run.config.model_copy(update={"per_round": 5}))
    _, third = play(more, state, engine=False)
    assert third.waited_s == pytest.approx(min(state.fleet.busy.values()) - state.clock_s)
    assert third.clock_s == pytest.approx(record.clock_s + third.waited_s + third.round_s)
    assert state.fleet.at(max(state.fleet.busy.values())).busy == {}


def test_who_answers_after_the_deadline_is_late(fleet):
    whole = ask(small(fleet, over_selection=1.0, per_round=12).forecast, ServerState(None), 12)
    middle_s = sorted(o.timing.total_s for o in whole.expected)[6]
    run = small(fleet, over_selection=1.0, per_round=12, deadline_s=middle_s, on_shortfall=("send",))
    _, record = play(run, engine=False)
    assert record.deadline_s == middle_s == record.round_s
    assert len(by_status(record)["trained"]) == 7  # the one that takes just as long among them
    assert all((o.expected.total_s > middle_s) == (o.status == "late") for o in record.clients)


# Who is lost in training makes room for the next -------------------------------------------------------------------------------


def test_a_client_that_runs_out_of_memory_makes_room_and_leaves_no_trace(tmp_path):
    write_device(tmp_path, "quick", spread_sigma=0.4)
    write_device(tmp_path, "tiny", training_bytes=1000, spread_sigma=0.4)
    profile = write_fleet(tmp_path, {"quick": 0.6, "tiny": 0.4}, behaviour={"over_selection": 2})
    run = small(profile, per_round=5, on_shortfall=("send",))
    state, record = play(run)
    _, dry = play(run, engine=False)
    found = by_status(record)
    assert len(found["out_of_memory"]) > 1
    assert len(found["trained"]) == 5 == len(by_status(dry)["trained"])
    assert {o.expected.device for o in record.clients if o.status == "out_of_memory"} == {"tiny"}
    assert record.round_s > dry.round_s
    clean, same = play(without(run, *found["out_of_memory"]))
    assert by_status(same)["trained"] == found["trained"]
    assert same.round_s == record.round_s
    assert all(torch.equal(tensor, state.model.tensors[name]) for name, tensor in clean.model.tensors.items())
    start = run.first_state()
    assert any(not torch.equal(tensor, start.tensors[name]) for name, tensor in clean.model.tensors.items())
    planned = {o.client: o.expected for o in dry.clients}
    for record_of in (o for o in record.clients if o.status == "out_of_memory"):
        lost, full = record_of.expected, planned[record_of.client]
        steps = -(-full.samples // 32)
        assert lost.timing.download_s == full.timing.download_s
        assert lost.timing.train_s == pytest.approx(full.timing.train_s / steps)
        assert (lost.timing.upload_s, lost.upload_bytes, record_of.outcome.steps) == (0.0, 0, 1)
        assert lost.macs == pytest.approx(full.macs / steps, abs=1)
        assert lost.download_bytes == full.download_bytes
        assert record_of.outcome.measured_training_memory_bytes > lost.memory_bytes == 1000
        assert lost.client not in state.fleet.busy


@dataclass(frozen=True)
class Spoiling:
    """An engine in which some clients train at a rate that no weight survives."""

    clients: object
    spoilt: frozenset

    def map(self, jobs):
        for number, job in enumerate(jobs):
            training = self.clients.task.training
            if job.client in self.spoilt:
                self.clients.task = replace(self.clients.task, training=replace(training, lr=1e30))
            found = self.clients.run(job)
            self.clients.task = replace(self.clients.task, training=training)
            yield number, found


def test_a_client_that_diverges_makes_room_and_sends_nothing(fleet):
    run = small(fleet, per_round=4)
    _, dry = play(run, engine=False)
    first, second = sorted((o for o in dry.clients if o.status == "trained"), key=lambda o: o.expected.total_s)[:2]
    spoilt = frozenset({first.client, second.client})
    store = ClientStore(Path(tempfile.mkdtemp()) / "clients.sqlite")
    state, record = run.round(run.start(), Spoiling(run.clients, spoilt), store)
    found = by_status(record)
    assert set(found["diverged"]) == spoilt
    assert len(found["trained"]) == 4
    assert "late" not in found
    clean, _ = play(without(run, *spoilt))
    assert all(torch.equal(tensor, state.model.tensors[name]) for name, tensor in clean.model.tensors.items())
    for lost in (o.expected for o in record.clients if o.status == "diverged"):
        full = next(o.expected for o in dry.clients if o.client == lost.client)
        assert (lost.upload_bytes, lost.timing.upload_s) == (0, 0.0)
        assert (lost.macs, lost.download_bytes) == (full.macs, full.download_bytes)
        assert lost.timing.radio_j == pytest.approx(100e-9 * full.download_bytes)


def test_an_update_too_large_to_multiply_is_left_out(fleet):
    """FedHM multiplies factors: two that are finite may have an infinite product."""
    run = small(fleet, method="fedhm", tiers=(1.0, 0.5), per_round=6, adversary="sign-flip:0.3(scale=1e25)")
    state, record = play(run)
    found = by_status(record)
    assert 1 <= len(found["diverged"]) <= 0.3 * run.config.clients
    assert all(run.clients.task.conduct.departs(client) for client in found["diverged"])
    assert found["trained"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.model.tensors.values())


def test_a_round_that_everybody_is_lost_in_leaves_the_model_as_it_was(fleet):
    run = small(fleet, lr=1e30)
    state, record = play(run)
    start = run.first_state()
    assert all(torch.equal(tensor, start.tensors[name]) for name, tensor in state.model.tensors.items())
    assert by_status(record).keys() == {"diverged"}
    assert record.round_s == max(o.expected.total_s for o in record.clients)
    assert state.clock_s == record.clock_s > 0


def test_an_empty_round_leaves_everything_as_it_was_but_the_clock(fleet):
    run = small(fleet, clients=4, per_round=4)
    away = FleetMemory(busy=dict.fromkeys(range(4), 1e9))
    state, record = play(run, replace(run.start(), clock_s=5.0, fleet=away))
    assert (record.clients, record.round_s) == ((), 0.0)
    assert record.waited_s == 7 * 86_400
    assert state.clock_s == record.clock_s == 5.0 + 7 * 86_400
    assert record.to_json()["useful"]["clients"] == 0


# A rehearsal is the round without training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_dry_rounds_are_the_real_ones_but_for_what_training_measures(tmp_path, mode):
    for name, rate in (("quick", 0.5), ("slow", 0.02)):
        write_device(tmp_path, name, training=rate, spread_sigma=0.6, session_sigma=0.3, battery_wh=0.01)
    behaviour = {"drop_out": 0.15, "interrupted": 0.1, "response_sigma": 0.3, "over_selection": 1.3}
    states = (("free", 0.6, 1, 1), ("busy", 0.4, 0.5, 0.4))
    profile = write_fleet(
        tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour=behaviour, states=states, budget="round_deadline_s = 2.5"
    )
    keys = {"method": "heterofl", "tiers": (1.0, 0.5), "tier_assignment": "uniform", "clients": 16, "per_round": 6, "rounds": 4}
    run = small(profile, **keys, mode=mode, dynamic_devices=True, partition="iid")
    real, seen, store = run.start(), set(), ClientStore(tmp_path / "clients.sqlite")
    for dry in without_training(run, 4):
        real, record = play(run, real, store=store)
        bare = [replace(o, outcome=o.outcome and Outcome(o.client, o.outcome.status)) for o in record.clients]
        assert tuple(bare) == dry.clients
        assert (record.round_s, record.clock_s, record.waited_s) == (dry.round_s, dry.clock_s, dry.waited_s)
        assert record.groups() == dry.groups()
        seen |= set(by_status(dry))
    assert {"trained", "dropped", "interrupted"} <= seen


@pytest.mark.parametrize("method", ["fedhm", "fjord", "pufferfish", "prism", "splitmix", "fedpara", "orthdrop", "factorized-fl"])
def test_every_phase_of_a_method_can_be_simulated(method):
    run = small("phone", method=method, model="cnn-digits", rounds=5, per_round=3)
    records = list(without_training(run, 5))
    assert [record.round for record in records] == [1, 2, 3, 4, 5]
    assert all(record.observed == {} for record in records)


# Records and what is read from them --------------------------------------------------------------------------------------------


def test_sums_of_a_record_are_those_of_its_clients_told_apart_by_use():
    whole = replace(session_of(0, 2.0), macs=10, download_bytes=100, upload_bytes=50)
    done, smaller = simulated(whole), simulated(replace(whole, client=4, tier=Tier(0.5), macs=4))
    late = ClientRecord(replace(session_of(1, 3.0), macs=20, download_bytes=100, upload_bytes=50))
    refused = ClientRecord(replace(session_of(2, 1.0, "refused"), tier=None, timing=None))
    record = RoundRecord(3, (done, late, refused, smaller), 2.0, 7.0, {}, 0.1)
    assert Totals.of((done, smaller)) == Totals(2, 14, 200, 100, 3.0, 3.0, 4.0)
    found = record.to_json()
    assert [(g["status"], g["tier"], g["clients"], g["macs"]) for g in found["groups"]] == [
        ("refused", None, 1, 0), ("trained", 0.5, 1, 4), ("late", 1, 1, 20), ("trained", 1, 1, 10),
    ]  # fmt: skip
    assert found["trained"] == found["useful"]["clients"] == 2
    assert found["wasted"] == {
        "clients": 1, "macs": 20, "download_bytes": 100, "upload_bytes": 50, "energy_j": 1.5, "end_to_end_j": 1.5, "device_s": 3.0,
    }  # fmt: skip
    assert (found["macs"], found["download_bytes"], found["energy_j"]) == (34, 300, 4.5)
    assert "clients" not in record.to_json(clients=False)


def test_a_policy_s_figures_are_those_worked_out_from_the_records(tmp_path):
    write_device(tmp_path, "quick", spread_sigma=0.5)
    write_device(tmp_path, "slow", training=0.001, spread_sigma=0.5)
    profile = write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour={"drop_out": 0.1, "over_selection": 1.3})
    keys = {
        "method": "fedavg",
        "model": "mlp",
        "profile": profile,
        "clients": 40,
        "per_round": 10,
        "local_epochs": 1,
        "rounds": 5,
    }
    config = RunConfig.of(keys)
    row = outcome_of("mine", prepare(config), 5)
    records = list(without_training(small(profile, clients=40, per_round=10, partition="dirichlet:0.5"), 5))
    everyone = [o for record in records for o in record.clients]
    used = [o for o in everyone if o.status == "trained"]

    def share(device):
        of = [o for o in everyone if o.expected.device == device]
        return sum(o.status == "trained" for o in of) / len(of)

    seconds = sum(o.expected.total_s for o in everyone)
    used_s = sum(o.expected.total_s for o in used)
    assert (row.label, row.tiers, row.deadline_s, row.over_selection) == ("mine", (1,), None, 1.3)
    assert row.round_s == sorted(record.round_s for record in records)[2]
    assert row.inclusion == len(used) / len(everyone)
    assert row.inclusion_by_class == {"quick": share("quick"), "slow": share("slow")}
    assert (row.weakest, row.weakest_inclusion) == ("slow", share("slow"))
    assert row.useful_share == pytest.approx(used_s / seconds)
    assert row.wasted_share == pytest.approx(1 - used_s / seconds)
    assert 0.02 < row.wasted_share < 0.9
    assert row.energy_j == pytest.approx(sum(o.expected.timing.total_j for o in everyone) / len(used))
    assert row.rounds_per_hour == pytest.approx(3600 * 5 / records[-1].clock_s)


def test_a_round_in_which_all_are_refused_is_waiting_and_enters_no_median(tmp_path):
    write_device(tmp_path, "board")
    write_device(tmp_path, "tiny", training_bytes=1000)
    run = small(write_fleet(tmp_path, {"board": 0.5, "tiny": 0.5}, behaviour={}), clients=6, per_round=2, rounds=12)
    records = list(without_training(run, 12))
    idle = [record for record in records if by_status(record).keys() == {"refused"}]
    lasted = [record.round_s for record in records if record not in idle]
    assert 2 < len(idle) < len(records)
    assert {(record.round_s, record.waited_s) for record in idle} == {(0.0, 600.0)}
    assert min(lasted) > 0
    assert records[-1].clock_s == pytest.approx(sum(lasted) + 600 * len(idle))
    row = outcome_of("mine", run, 12)
    assert row.round_s == median(lasted)
    assert row.rounds_per_hour == pytest.approx(3600 * 12 / records[-1].clock_s)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_refuses_all_clients_waits_between_rounds(fleet, mode):
    run = small(fleet, mode=mode)
    closed = tuple((replace(plan, options=()),) for plan in run.plan.classes)
    records = list(without_training(replace(run, plan=replace(run.plan, class_plans=closed)), 3))
    assert [(record.round_s, record.waited_s, record.clock_s) for record in records] == [
        (0.0, 600.0, 600.0), (0.0, 600.0, 1200.0), (0.0, 600.0, 1800.0)
    ]  # fmt: skip


def test_what_if_tries_every_combination(fleet):
    config = RunConfig.of({
        "method": "heterofl", "model": "mlp", "profile": fleet, "clients": 20, "per_round": 5, "local_epochs": 1, "rounds": 2
    })  # fmt: skip
    labels = []
    found = whatif(config, (2.0, 90.0), ((1.0, 0.5), (0.25,)), (1.0, 2.0), on_policy=labels.append)
    assert [row.label for row in found.rows] == labels
    assert len(set(labels)) == 8
    assert labels[0] == "2 s · tiers 1, 0.5 · 1 × asked"
    assert [(r.deadline_s, r.tiers, r.over_selection) for r in found.rows][:3] == [
        (2.0, (1, 0.5), 1.0), (2.0, (1, 0.5), 2.0), (2.0, (0.25,), 1.0),
    ]  # fmt: skip
    # A variation is the run that it would be if it had been configured.
    for label, row in zip(labels, found.rows, strict=True):
        changes = {"deadline_s": row.deadline_s, "tiers": row.tiers, "over_selection": row.over_selection}
        assert row == outcome_of(label, prepare(RunConfig.of({**config.model_dump(), **changes})), 2)
    assert (found.profile, found.rounds, found.titles) == (fleet, 2, {"quick": "quick", "slow": "slow"})
    (plain,) = whatif(config).rows
    assert plain.label == "as configured"


def test_a_million_clients_are_rehearsed_without_being_listed():
    run = small("phone", clients=1_000_000, per_round=200, partition="index:60", availability="daily", start_hour=3)
    records = list(without_training(run, 3))
    assert [len(record.clients) for record in records] == [260, 260, 260]
    first = {o.client for o in records[0].clients}
    assert len(first & {o.client for o in records[1].clients}) < 5
    assert np.mean(sorted(first)) == pytest.approx(500_000, abs=4 * 1_000_000 / np.sqrt(12 * 260))


def test_methods_are_what_they_were_after_a_rehearsal():
    run = small("phone", method="pufferfish", model="cnn-digits")
    list(without_training(run, 3))
    assert run.method == create("pufferfish", {}, tiers=tuple(tier.ratio for tier in run.tiers))
