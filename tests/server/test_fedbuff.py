"""Asynchronous training with a buffer: who is at work when, what counts, and that it always goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_fleet import play, small, write_device, write_fleet

from edgefl import RunConfig
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.records import Outcome
from edgefl.registry import methods
from edgefl.rng import generator, shuffled
from edgefl.run.prepare import prepare
from edgefl.run.trained import without_training
from edgefl.server.checkpoint import of_file, save
from edgefl.server.client_store import ClientStore
from edgefl.server.fedbuff import blob_of
from edgefl.server.forecast import Asked
from edgefl.wire.payload import decode, encode


@pytest.fixture
def fleet(tmp_path):
    """Devices a hundred times as fast as others, on links that vary; some sessions are lost."""
    write_device(tmp_path, "quick", training=0.5, spread_sigma=0.7, session_sigma=0.4)
    write_device(tmp_path, "slow", training=0.005, spread_sigma=0.7, session_sigma=0.4)
    behaviour = {"drop_out": 0.1, "interrupted": 0.1, "response_sigma": 0.5, "over_selection": 1.3}
    return write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour=behaviour)


def simulated(run, at_work, size, steps, deadline_s=None):
    """Return (client, start, end, status, staleness) of the sessions of each step, and the clock then: second by second, by brute force."""
    clients, clock_s, turn, found = run.config.clients, 0.0, 0, []
    sky = []  # (end, client, start, status, step)
    for step in range(steps):
        over, answered = [], []
        while len(answered) < size:
            idle = set(range(clients)) - {client for _, client, *_ in sky} - set(answered)
            while len(sky) < at_work and idle:
                turn += 1
                order = shuffled(run.config.seed, clients, np.arange(clients), turn, "select").tolist()
                client = next(c for c in order if c in idle)
                idle.remove(client)
                (o,) = run.forecast.expected(Asked(np.array([client]), turn, clock_s), {})
                sky.append((clock_s + o.timing.total_s, client, clock_s, o.status, step))
            if not sky:
                break
            sky.sort()
            end_s, client, start_s, status, begun = sky.pop(0)
            clock_s = end_s
            if status == "expected":
                status = "late" if deadline_s is not None and end_s - start_s > deadline_s else "trained"
            if status == "trained":
                answered.append(client)
            over.append((client, start_s, end_s, status, step - begun))
        found.append((clock_s, over))
    return found


@pytest.mark.parametrize(
    ("clients", "at_work", "size", "deadline_s"),
    [
        (30, 8, 4, None), (12, 12, 5, None), (12, 12, 12, None),
        (9, 3, 9, None), (30, 8, 6, 0.35), (4, 1, 3, None),
    ],
)  # fmt: skip
def test_the_timeline_is_that_of_a_simulation_by_brute_force(fleet, clients, at_work, size, deadline_s):
    keys = {"on_shortfall": ("send",)} if deadline_s else {}
    run = small(fleet, mode="async", clients=clients, per_round=at_work, buffer=size, deadline_s=deadline_s, **keys)
    statuses, stale = set(), set()
    wanted = simulated(run, at_work, size, 12, deadline_s)
    for (clock_s, over), record in zip(wanted, without_training(run, 12), strict=True):
        found = [
            (o.client, o.expected.start_s, o.expected.start_s + o.expected.total_s, o.status, o.staleness) for o in record.clients
        ]
        assert sorted(found) == sorted(over)
        assert record.clock_s == clock_s
        statuses |= {o.status for o in record.clients}
        stale |= {o.staleness for o in record.clients}
    assert {"trained", "dropped", "interrupted"} <= statuses
    assert ("late" in statuses) == (deadline_s is not None)
    if at_work > 1 and size < clients:
        assert max(stale) > 0


def test_as_many_are_at_work_as_shall_be_and_nobody_twice(fleet):
    run = small(fleet, mode="async", clients=40, per_round=8, buffer=4)
    state, records = run.start(), []
    for _ in range(1, 15):
        state, record = play(run, state, engine=False)
        assert sum(o.status == "trained" for o in record.clients) == 4
        assert len(state.fleet.sessions) == 7  # whoever answered last is replaced after the step
        records.append(record)
    spans = [
        (o.expected.start_s, o.expected.start_s + o.expected.total_s, o.client) for record in records for o in record.clients
    ]
    spans += [(f.expected.start_s, f.end_s, f.client) for f in state.fleet.sessions]
    for moment in np.linspace(0.001, state.clock_s - 0.001, 400):
        at_work = [client for start_s, end_s, client in spans if start_s <= moment < end_s]
        assert len(at_work) == len(set(at_work)) == 8
    assert state.fleet.turns == len(spans)
    assert sum(record.round_s for record in records) == pytest.approx(state.clock_s)


def test_a_step_with_nobody_else_to_ask_ends_with_the_updates_that_there_are(fleet):
    run = small(fleet, mode="async", clients=5, per_round=5, buffer=5)
    for record in without_training(run, 3):
        trained = [o.client for o in record.clients if o.status == "trained"]
        assert sorted(trained) == [0, 1, 2, 3, 4]


def test_who_takes_longer_than_the_deadline_is_late_and_at_work_to_its_end(fleet):
    run = small(fleet, mode="async", clients=30, per_round=8, buffer=6, deadline_s=0.35, on_shortfall=("send",))
    everyone = [o for record in without_training(run, 8) for o in record.clients]
    late = [o for o in everyone if o.status == "late"]
    assert late
    assert all(o.expected.total_s > 0.35 and o.expected.upload_bytes and o.expected.macs for o in late)
    assert all(o.expected.total_s <= 0.35 for o in everyone if o.status == "trained")


def test_nothing_stale_and_everybody_in_the_buffer_is_a_synchronous_round(tmp_path):
    write_device(tmp_path, "board", spread_sigma=0.4)
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={})
    keys = {"clients": 6, "per_round": 6}
    buffered, one = play(small(profile, mode="async", buffer=6, **keys))
    together, other = play(small(profile, **keys))
    start = small(profile, **keys).first_state().tensors
    for name, tensor in together.model.tensors.items():
        assert torch.allclose(buffered.model.tensors[name], tensor, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(start[name], tensor, rtol=1e-5, atol=1e-6)
    assert {o.client: o.outcome.train_loss for o in one.clients} == {o.client: o.outcome.train_loss for o in other.clients}
    assert {o.staleness for o in one.clients} == {0}
    assert {o.staleness for o in other.clients} == {None}
    assert (one.round_s, one.clock_s) == (other.round_s, other.clock_s)


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedavg", {}), ("heterofl", {"tiers": (1.0, 0.5)}), ("fjord", {"tiers": (1.0, 0.5)}), ("fedpara", {}), ("splitmix", {}),
        ("fedper", {}), ("origdrop", {"tiers": (1.0, 0.5)}), ("lowrank", {}), ("flanc", {}), ("pfedpara", {}), ("per-fedavg", {}),
        ("fedhm", {"method_options": {"aggregation": "residual"}}),
        ("fedhm", {"method_options": {"aggregation": "bands"}, "tiers": (1.0, 0.5)}),
    ],
)  # fmt: skip
def test_methods_that_take_old_updates_train_with_them(fleet, method, keys, tmp_path):
    values = {"mode": "async", "clients": 10, "per_round": 5, "buffer": 3, "tier_assignment": "uniform", **keys}
    run = small(fleet, method=method, model="cnn-digits", partition="index:10", **values)
    state, store = run.start(), ClientStore(tmp_path / "kept.sqlite")
    stale = set()
    for _ in range(1, 4):
        before = state
        state, record = play(run, state, store=store)
        stale |= {o.staleness for o in record.clients if o.status == "trained"}
        assert all(bool(torch.isfinite(tensor).all()) for tensor in state.model.tensors.values())
        assert any(not torch.equal(before.model.tensors[n], tensor) for n, tensor in state.model.tensors.items())
    assert stale >= {0, 1}
    # A run that is resumed here knows the same sessions, and finds what they were sent.
    state = replace(state, clients=store.commit(3))
    assert of_file(save(tmp_path, state)).fleet == state.fleet
    assert state.fleet.sessions
    names = {blob_of(session, run.method.per_client) for session in state.fleet.sessions}
    with ClientStore(store.path) as again:
        again.go_to(3, state.clients)
        assert all(again.blob(name) == store.blob(name) for name in names)


class AddsOne:
    """Answers with what was sent, plus one."""

    def __init__(self, run):
        self.run = run

    def map(self, jobs):
        for number, job in enumerate(jobs):
            shapes = download_shapes(self.run.method, self.run.architecture, job.tier)
            sent = decode(job.payload, shapes, "the server")
            answer = encode({name: tensor + 1 for name, tensor in sent.items()})
            yield number, Outcome(job.client, "trained", steps=1, payload=answer)


def test_an_old_update_moves_the_part_of_the_model_that_was_sent(fleet, tmp_path):
    """Which base networks a client trains is drawn anew every time: an update changes those that were drawn when it was asked."""
    keys = {"method": "splitmix", "tiers": (1.0, 0.25), "tier_assignment": "uniform", "tier_shares": (0.0, 1.0)}
    run = small(fleet, mode="async", clients=6, per_round=3, buffer=1, conditions="ideal", **keys)
    state, store, stale = run.start(), ClientStore(tmp_path / "kept.sqlite"), 0
    for number in range(1, 7):
        before = state.model
        state, record = run.round(state, AddsOne(run), store)
        (outcome,) = (o for o in record.clients if o.status == "trained")
        stale += outcome.staleness > 0
        drawn = generator(0, number - outcome.staleness, outcome.client, "submodel")
        sent = run.method.submodel(before, outcome.expected.tier, drawn, outcome.client)
        wanted = {name: torch.zeros_like(tensor) for name, tensor in before.tensors.items()}
        for place in sent.places.values():
            wanted[place.target][place.index] = (1 + outcome.staleness) ** -0.5
        for name, tensor in state.model.tensors.items():
            assert torch.allclose(tensor - before.tensors[name], wanted[name], atol=1e-5)
    assert stale >= 2


REFUSED = [
    "clustered-fl",
    "factorized-fl",
    "feddf",
    "fedfomo",
    "fedhm",
    "flexlora",
    "flora",
    "hetlora",
    "orthdrop",
    "prism",
    "pufferfish",
    "standalone",
]


@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_old_updates_mean_nothing_to_say_why(method):
    reason = create(method).lacks["stale_updates"]
    with pytest.raises(ConfigError) as error:
        prepare(RunConfig(method=method, mode="async"))
    assert str(error.value).startswith("mode: async makes no sense with ")
    assert str(error.value).endswith(reason)
    assert len(reason) > 20


def test_the_methods_that_refuse_are_these():
    assert [name for name in methods.names() if "stale_updates" in create(name).lacks and not name.endswith("beta")] == REFUSED


# It always goes on -------------------------------------------------------------------------------------------------------------


def test_where_everybody_diverges_a_step_is_given_up(fleet, tmp_path):
    run = small(fleet, mode="async", clients=6, per_round=3, buffer=2, lr=1e30, local_epochs=3)
    start = run.first_state()
    store = ClientStore(tmp_path / "kept.sqlite")
    state, record = play(run, store=store)
    assert all(torch.equal(tensor, start.tensors[name]) for name, tensor in state.model.tensors.items())
    assert "trained" not in {o.status for o in record.clients}
    assert state.clock_s > 0
    later, second = play(run, state, store=store)
    assert later.clock_s > state.clock_s
    assert len(second.clients) > 0


def test_where_nobody_has_the_memory_a_step_is_given_up(tmp_path):
    write_device(tmp_path, "tiny", training_bytes=1000)
    profile = write_fleet(tmp_path, {"tiny": 1.0}, behaviour={})
    run = small(profile, mode="async", clients=6, per_round=3, buffer=2, on_shortfall=("send",), partition="index:4")
    _, record = play(run)
    assert {o.status for o in record.clients} == {"out_of_memory"}


def test_where_nobody_ever_answers_in_time_a_step_is_given_up(fleet):
    run = small(fleet, mode="async", clients=20, per_round=3, buffer=2, deadline_s=0.101, on_shortfall=("send",))
    first, second = without_training(run, 2)
    assert {o.status for o in first.clients} <= {"late", "dropped", "interrupted"}
    assert 0 < first.clock_s < second.clock_s


def test_many_lost_sessions_between_answers_are_not_given_up(tmp_path):
    write_device(tmp_path, "board")
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={"drop_out": 0.5, "interrupted": 0.3})
    run = small(profile, mode="async", clients=400, per_round=1, buffer=60, partition="index:4")
    (record,) = without_training(run, 1)
    assert sum(o.status == "trained" for o in record.clients) == 60
    assert len(record.clients) > 200


def test_where_nobody_is_eligible_the_clock_goes_on_and_nobody_is_looked_for_in_vain(tmp_path):
    rows = ["client,from,to,state", "0,1000,2000,eligible", "1,5000,6000,eligible", "2,0,7000,none"]
    (tmp_path / "trace.csv").write_text("\n".join(rows) + "\n")
    run = small(
        "phone",
        mode="async",
        clients=3,
        per_round=2,
        buffer=2,
        conditions="ideal",
        partition="index:4",
        availability=str(tmp_path / "trace.csv"),
    )
    first, second = without_training(run, 2)
    assert [(o.client, o.status) for o in first.clients] == [(0, "trained"), (1, "trained")]
    assert [o.expected.start_s for o in first.clients] == [pytest.approx(1000, abs=600), pytest.approx(5000, abs=600)]
    assert {o.client for o in second.clients} == {0, 1}
    assert second.clock_s > first.clock_s > 5000


def test_everybody_at_work_is_not_searched_for_more(fleet, monkeypatch):
    """Nobody is free while all are at work: the days ahead are not searched for who might be."""
    from edgefl.fleet import conditions

    looked = []
    real = conditions.shuffled
    monkeypatch.setattr(conditions, "shuffled", lambda *given: looked.append(1) or real(*given))
    run = small(fleet, mode="async", clients=12, per_round=12, buffer=6)
    turns = sum(len(record.clients) for record in without_training(run, 5)) + 12
    assert len(looked) <= turns


def test_refused_clients_are_asked_once_a_step(tmp_path):
    write_device(tmp_path, "board")
    write_device(tmp_path, "tiny", training_bytes=1000)
    profile = write_fleet(tmp_path, {"board": 0.5, "tiny": 0.5}, behaviour={})
    run = small(profile, mode="async", clients=10, per_round=4, buffer=3)
    for record in without_training(run, 4):
        refused = [o.client for o in record.clients if o.status == "refused"]
        assert len(refused) == len(set(refused)) <= 5
        assert {o.expected.device for o in record.clients if o.status == "trained"} == {"board"}
        assert all(
            o.staleness is None and o.expected.refusal[0].budget == "memory_bytes"
            for o in record.clients
            if o.status == "refused"
        )


def test_batteries_are_drained_by_sessions_that_are_over(tmp_path):
    write_device(tmp_path, "board", battery_wh=0.01)
    run = small(write_fleet(tmp_path, {"board": 1.0}, behaviour={}), mode="async", per_round=3, buffer=3)
    state, spent = run.start(), {}
    for _ in range(1, 4):
        state, record = play(run, state, engine=False)
        for o in record.clients:
            if o.expected.timing:
                spent[o.client] = spent.get(o.client, 0.0) + o.expected.timing.total_j
    assert state.fleet.drained_j == pytest.approx(spent)
    assert replace(state.fleet, sessions=()).at(86_400.0, day=1).drained_j == {}
