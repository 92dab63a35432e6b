"""Rounds, the plan, checkpoints and payloads: the server's part, seen from inside."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from server_states import server_state

from edgefl import RunConfig
from edgefl.engine.contract import open_engine
from edgefl.errors import BudgetError, CheckpointError, StorageError, WireError
from edgefl.records import Expected, Shortfall, Tier, Timing
from edgefl.run.dry_run import outcome_of
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare
from edgefl.server.checkpoint import of_file, restore, save, to_bytes
from edgefl.server.client_store import ClientStore
from edgefl.server.state import FleetMemory, OpenSession
from edgefl.util.files import write_bytes
from edgefl.wire.payload import decode, encode, payload_bytes

SMALL = {"clients": 6, "per_round": 6, "local_epochs": 1, "rounds": 1, "conditions": "ideal"}


def play(run, state, round_=1):
    store = ClientStore(Path(tempfile.mkdtemp()) / "clients.sqlite")
    with open_engine("inline", 1, run.clients) as engine:
        after, record = run.round(dataclasses.replace(run.start(), model=state, round=round_ - 1), engine, store)
    return after.model, record


@pytest.fixture(scope="module")
def run():
    return prepare(RunConfig.of(SMALL))


def test_a_round_leaves_the_state_it_started_from_alone(run):
    state = run.first_state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    after, record = play(run, state)
    assert all(torch.equal(before[n], state.tensors[n]) for n in before)
    assert any(not torch.equal(before[n], after.tensors[n]) for n in before)
    assert [o.client for o in record.clients] == [0, 1, 2, 3, 4, 5]
    assert all(not o.outcome.payload for o in record.clients)


def test_a_round_in_which_nobody_may_train_changes_nothing(run):
    closed = tuple((dataclasses.replace(c, options=()),) for c in run.plan.classes)
    shut = dataclasses.replace(run, plan=dataclasses.replace(run.plan, class_plans=closed))
    state = shut.first_state()
    after, record = play(shut, state)
    assert after is state
    assert {o.status for o in record.clients} == {"refused"}
    assert (record.round_s, record.waited_s, record.clock_s) == (0.0, 600.0, 600.0)  # the server looks again
    assert outcome_of("closed", shut, 2).round_s is None
    with pytest.raises(BudgetError, match=r"no device of the fleet fits any tier:\n.*\ngive smaller tiers"):
        shut.plan.require_someone()
    costs = {tier: dataclasses.replace(cost, uncounted_ops=("aten.inverse",)) for tier, cost in shut.plan.costs.items()}
    with pytest.raises(
        BudgetError, match=r"fits any tier: the cost of aten.inverse is not known, so no .*; use other operations"
    ):
        dataclasses.replace(shut.plan, costs=costs).require_someone()


def test_the_phone_fleet_spreads_over_the_three_tiers():
    """Each class takes the largest tier that meets the deadline with the largest shard; the reasons for the others are kept."""
    plan = prepare(RunConfig()).plan
    assert [c.tier for c in plan.classes] == [Tier(1.0), Tier(0.5), Tier(0.25)]
    assert [len(c.refusals) for c in plan.classes] == [0, 1, 2]
    assert all(r.budget == "deadline_s" and r.need > r.have for c in plan.classes for r in c.refusals)
    assert plan.home_of(Tier(0.5)).device.name == "mid-range-phone"


def test_a_tier_that_no_class_takes_still_has_a_device():
    plan = prepare(RunConfig.of({**SMALL, "profile": "laptop"})).plan
    assert [plan.home_of(tier).device.name for tier in plan.costs] == ["laptop"] * 3
    assert [c.tier for c in plan.classes] == [Tier(1.0)]


shapes_of_tensors = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), max_size=4).map(tuple),
    min_size=1,
    max_size=5,
)


@given(shapes_of_tensors, st.integers(0, 100))
def test_payloads_round_trip_and_have_the_declared_length(shapes, seed):
    rng = np.random.default_rng(seed)
    tensors = {n: torch.from_numpy(np.asarray(rng.standard_normal(s))).float() for n, s in shapes.items()}
    payload = encode(tensors)
    assert len(payload) == payload_bytes(shapes)
    decoded = decode(payload, shapes, "client 0")
    assert all(torch.equal(decoded[n], tensors[n]) for n in tensors)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.zeros(2)}, "client 7: tensors missing or not expected: b"),
        ({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}, "tensors missing or not expected: c"),
        ({"a": torch.zeros(1), "b": torch.zeros(3)}, r"client 7: a is \(1,\) torch.float32, expected \(2,\) torch.float32"),
        ({"a": torch.zeros(2).half(), "b": torch.zeros(3)}, r"a is \(2,\) torch.float16, expected"),
    ],
)
def test_payloads_with_other_tensors_are_refused(tensors, message):
    with pytest.raises(WireError, match=message):
        decode(encode(tensors), {"a": (2,), "b": (3,)}, "client 7")


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_cut_payloads_are_refused(cut):
    with pytest.raises(WireError, match="client 7: the payload is not a valid safetensors file"):
        decode(encode({"a": torch.zeros(2)})[:cut], {"a": (2,)}, "client 7")


def test_checkpoints_keep_the_last_three_and_restore_the_newest(tmp_path):
    assert restore(tmp_path) is None
    for round_ in range(1, 6):
        save(tmp_path, server_state(round_, {"w": torch.full((2,), float(round_))}, clock_s=0.1 * round_))
    assert len(list(tmp_path.iterdir())) == 3
    restored = restore(tmp_path)
    assert restored.warnings == ()
    assert restored.state.round == 5
    assert restored.state.clock_s == 0.1 * 5
    assert restored.state.model.tensors["w"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: bytes([b[0] ^ 1]) + b[1:]])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    paths = [save(tmp_path, server_state(r, {"w": torch.full((2,), float(r))})) for r in (1, 2)]
    paths[1].write_bytes(damage(paths[1].read_bytes()))
    restored = restore(tmp_path)
    assert restored.state.round == 1
    assert "round-000002" in restored.warnings[0]


def test_a_checkpoint_carries_all_that_a_run_needs_and_equal_states_make_equal_files(tmp_path):
    tensors, server = {"b": torch.ones(2), "a": torch.zeros(1)}, {"optimizer:m/a": torch.tensor([0.5])}
    options, fleet = {"phase": "lowrank", "tiers": [0.5]}, FleetMemory({3: 4.5}, {7: 0.25, 1: 1.0}, 2, (session(5),), 6)
    state = server_state(3, tensors, memory=server, clock_s=1.5, options=options, clients="ab12", fleet=fleet)
    path = save(tmp_path, state)
    assert all(to_bytes(state) == path.read_bytes() for _ in range(20))
    read = of_file(path)
    assert (read.round, read.clock_s, read.options, read.clients, read.fleet) == (3, 1.5, options, "ab12", fleet)
    assert (read.model.architecture, read.model.tiers) == (state.model.architecture, state.model.tiers)
    assert {name: tensor.tolist() for name, tensor in read.model.tensors.items()} == {"a": [0.0], "b": [1.0, 1.0]}
    assert {name: tensor.tolist() for name, tensor in read.memory.items()} == {"optimizer:m/a": [0.5]}
    assert to_bytes(read) == to_bytes(state)


def session(client):
    """Return a session with a value in every field."""
    refusal = (Shortfall("memory_bytes", 3.0, 2.5, "board", 1.0, 4),)
    expected = Expected(
        client,
        "board",
        "expected",
        Tier(0.5),
        9,
        Timing(0.1, 0.2, 0.3, 1.0, 2.0, 0.7),
        10,
        20,
        30,
        40,
        50.5,
        4,
        ("body.0",),
        1.25,
    )
    return OpenSession(4, 2, dataclasses.replace(expected, state="busy", refusal=refusal))


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.server.checkpoint.FORMAT", 1)
    save(tmp_path, server_state())
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="its format is 1, expected 2"):
        restore(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(run):
    with pytest.raises(CheckpointError, match="here: its tensors are of another model"):
        run.resumed(dataclasses.replace(run.start(), model=run.first_state().replace({"w": torch.zeros(3)})), "here")


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="no space left on the device"):
        write_bytes(path, b"after")
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_in_place_of_a_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        write_bytes(tmp_path / "file" / "child", b"x")


def test_a_path_that_no_file_can_have_is_a_clear_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / ("a" * 300), tmp_path / "loop" / "run"):
        with pytest.raises(StorageError, match="cannot be written"):
            write_bytes(path, b"x")
    with pytest.raises(StorageError, match="cannot be written"):
        RunFolder(tmp_path / ("a" * 300)).check(RunConfig(), resume=False)
    if Path("/proc/self").exists():  # a folder in which no file can be made
        with pytest.raises(StorageError, match="cannot be written"):
            write_bytes(Path("/proc/x"), b"x")
