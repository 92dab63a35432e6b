"""Rounds with devices that run the app's code in this process: the bits of the simulation, and every outcome in the record."""

from __future__ import annotations

import json
import logging
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from pydantic import ValidationError
from rehearsal import federation, joined, played
from safetensors.numpy import load, load_file, save
from small_fleet import small, write_device, write_fleet
from texts import write_texts

from edgefl.config import RunConfig
from edgefl.contrib.flower.devices import Device
from edgefl.contrib.flower.fleet import _SAID
from edgefl.contrib.flower.new import new_app
from edgefl.contrib.flower.server import Watch, _accuracies, connected, serve
from edgefl.contrib.flower.wire import Reply, _reply
from edgefl.errors import ConfigError, EdgeflError, WireError
from edgefl.records import RoundRecord, Tier

FEDAVG = {"method": "fedavg", "tiers": (1.0,), "tier_assignment": "auto"}


@pytest.fixture
def run(tmp_path):
    """A run of FedHM with a board, a phone and a laptop; the draws of seed 0 give them two tiers."""

    def ready(board=None, **keys):
        home = tmp_path / "fleet"
        home.mkdir(exist_ok=True)
        for name, gmacs in (("board", 0.01), ("phone", 0.5), ("laptop", 5)):
            write_device(home, name, training=gmacs, **(board or {} if name == "board" else {}))
        profile = write_fleet(home, {"board": 0.34, "phone": 0.33, "laptop": 0.33})
        chosen = {
            "method": "fedhm", "tiers": (1.0, 0.5), "tier_assignment": "uniform", "clients": 3, "per_round": 3, "data_share": 0.3,
            "deadline_s": 60.0, "conditions": "ideal",
        }  # fmt: skip
        return small(profile, **{**chosen, **keys})

    return ready


def statuses(record):
    return {client.client: client.status for client in record.clients}


def equal(one, other):
    return all(torch.equal(tensor, other.model.tensors[name]) for name, tensor in one.model.tensors.items())


@pytest.mark.parametrize("keys", [{}, {**FEDAVG, "objective": "dyn", "codec": "int8"}])
def test_devices_with_torch_make_the_bits_of_the_simulation(run, keys, tmp_path):
    of = run(**keys)
    link = federation(of, tmp_path / "data", trainer="torch")
    real, records = played(of, joined(of, tmp_path / "real", link), 2, tmp_path / "real")
    twin, simulated = played(of, None, 2, tmp_path)
    assert equal(real, twin)
    assert len({client.expected.tier for client in records[0].clients}) == len(of.tiers)
    for record, other in zip(records, simulated, strict=True):
        assert {c.client: c.outcome for c in record.clients} == {c.client: c.outcome for c in other.clients}
        for name in ("macs", "download_bytes", "upload_bytes", "clients"):
            assert getattr(record.useful, name) == getattr(other.useful, name)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {**FEDAVG, "objective": "scaffold", "optimizer": "sgd", "weight_decay": 0.0},
        {"method": "fjord", "model": "cnn-digits", "augment": "flip", "data_share": 0.1},
    ],
)
def test_devices_with_onnxruntime_draw_the_batches_of_the_simulation_and_are_counted_to_the_byte(run, keys, tmp_path):
    of, said = run(**keys), []
    link = federation(of, tmp_path / "data")
    state, records = played(of, joined(of, tmp_path / "real", link, said), 2, tmp_path)
    same, simulated = played(run(**keys, runtime="onnx"), None, 2, tmp_path / "onnx")
    assert equal(state, same)
    losses = [[(client.client, client.outcome.train_loss) for client in record.clients] for record in (*records, *simulated)]
    assert losses[:2] == losses[2:]
    twin, _ = played(of, None, 2, tmp_path / "torch")
    for name, tensor in twin.model.tensors.items():
        assert torch.allclose(state.model.tensors[name], tensor, rtol=1e-3, atol=1e-5), name
    assert sum(record.useful.download_bytes for record in records) == link.payload_bytes
    assert records[0].observed["setup_bytes"] > 0 == records[1].observed["setup_bytes"]
    assert [statuses(record) for record in records] == [dict.fromkeys(range(3), "trained")] * 2
    timing = records[0].clients[0].expected.timing
    assert (timing.train_s, timing.total_s, records[0].round_s) == (0.5, 1.0, 1.0)
    assert len([line for line in said if line.startswith("client ")]) == 3


def test_devices_train_networks_of_several_inputs_to_the_bits_of_the_simulation(run, tmp_path):
    keys = {**FEDAVG, "partition": "iid", "data_share": 1.0, **write_texts(tmp_path)}
    for trainer, runtime in (("onnx", "onnx"), ("torch", "torch")):
        of, home = run(**keys, runtime=runtime), tmp_path / trainer
        link = federation(of, home / "data", trainer=trainer)
        state, records = played(of, joined(of, home / "real", link), 1, home)
        assert equal(state, played(of, None, 1, home / "twin")[0])
        assert statuses(records[0]) == dict.fromkeys(range(3), "trained")


def test_a_device_keeps_its_memory_and_forgets_rounds_that_the_server_has_undone(run, tmp_path):
    of = run(**FEDAVG, objective="dyn")
    link = federation(of, tmp_path / "data")
    played(of, joined(of, tmp_path / "real", link), 2, tmp_path / "one")
    (home,) = (tmp_path / "data" / "state-0" / "runs").iterdir()

    def kept():
        return {path.name: {name: t.tobytes() for name, t in load_file(path).items()} for path in home.iterdir()}

    after = kept()
    assert sorted(after) == ["round-000001.safetensors", "round-000002.safetensors"]
    played(of, joined(of, tmp_path / "real", link), 2, tmp_path / "two")  # a server that begins again in the same folder
    assert kept() == after


def test_a_silent_device_is_dropped_at_the_deadline_and_takes_part_when_it_has_answered(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data")
    link.devices[101].takes_s = 60.5
    _, records = played(of, joined(of, tmp_path / "real", link), 3, tmp_path)
    assert [statuses(record).get(1) for record in records] == ["dropped", None, "dropped"]
    assert [record.observed["late_answers"] for record in records] == [0, 1, 0]
    assert records[0].round_s == pytest.approx(60, abs=0.5)
    assert records[0].clients[1].expected.upload_bytes == 0 < records[0].clients[1].expected.download_bytes


def test_a_device_that_vanishes_is_dropped_at_once(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data")
    fleet = joined(of, tmp_path / "real", link)
    answers = fleet.answers

    def vanishing():
        link.devices.pop(101, None)
        return answers()

    link.devices[101].takes_s, fleet.answers = None, vanishing
    _, (record,) = played(of, fleet, 1, tmp_path)
    assert statuses(record) == {0: "trained", 1: "dropped", 2: "trained"}
    assert record.round_s < 5


def test_a_device_without_signs_of_life_is_dropped_even_if_it_is_back(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data")
    gone = Reply(error="Flower's error 5, Error: Node Unavailable", gone=True)
    link.devices[101].changed = lambda asked, reply: gone if "round" in asked else reply
    _, (record,) = played(of, joined(of, tmp_path / "real", link), 1, tmp_path)
    assert statuses(record) == {0: "trained", 1: "dropped", 2: "trained"}
    assert record.round_s < 5
    assert record.observed["late_answers"] == 0


def test_a_round_closes_when_enough_have_answered(run, tmp_path):
    of = run(per_round=2, over_selection=1.5)
    link = federation(of, tmp_path / "data")
    link.devices[102].takes_s = 10.0
    _, records = played(of, joined(of, tmp_path / "real", link), 1, tmp_path)
    assert statuses(records[0]) == {0: "trained", 1: "trained", 2: "late"}
    assert records[0].round_s == 1.0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (Reply(error="Flower's error 8"), "Flower's error 8"),
        (Reply({"status": "trained"}), "ready_s: missing"),
        (Reply({"status": "trained", "ready_s": 0.1, "train_s": float("nan")}), "train_s"),
        (Reply({"status": "crashed", "ready_s": 0.1, "train_s": 0.1, "steps": 10**400}), "steps must be at most"),
        (Reply({"status": "trained", "ready_s": 0.1, "train_s": 0.1}, {"payload": b"zero"}), "not a valid safetensors file"),
        (Reply({"status": "trained", "ready_s": 0.1, "train_s": 0.1}), "trained: the answer has no update"),
        (Reply({"status": "diverged", "ready_s": 0.1, "train_s": 0.1, "steps": 4, "problem": "NaN"}), "diverged: NaN"),
    ],
)
def test_an_answer_that_is_wrong_ends_its_session_only(run, changed, told, tmp_path):
    of, said = run(), []
    link = federation(of, tmp_path / "data")
    link.devices[100].changed = lambda asked, reply: changed if "round" in asked else reply
    _, (record,) = played(of, joined(of, tmp_path / "real", link, said), 1, tmp_path)
    assert statuses(record) == {
        0: changed.fields.get("status") if "problem" in changed.fields else "crashed",
        1: "trained",
        2: "trained",
    }
    assert any(line.startswith("round 1, client 0: ") and told in line for line in said)
    assert record.clients[0].expected.upload_bytes == 0


def test_a_round_in_which_every_answer_is_wrong_changes_nothing_with_a_defence_either(run, tmp_path):
    of = run(defence="norm-filter")
    link = federation(of, tmp_path / "data")
    for node in link.devices.values():
        node.changed = lambda asked, reply: Reply(error="gone") if asked.get("round") == 1 else reply
    state, records = played(of, joined(of, tmp_path / "real", link), 2, tmp_path)
    assert [set(statuses(record).values()) for record in records] == [{"crashed"}, {"trained"}]
    assert state.round == 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"labels": [0, 99]}, r"labels: got 0, 99; expected labels from 0 to 9"),
        ({"labels": [2, 1]}, r"labels: got 2, 1"),
        ({"labels": []}, r"labels: got none"),
    ],
)
def test_labels_that_there_are_not_end_the_session_of_their_device_only(run, fields, told, tmp_path):
    of, said = run(method="heterofl"), []
    link = federation(of, tmp_path / "data")
    link.devices[100].changed = lambda asked, reply: (
        replace(reply, fields={**reply.fields, **fields}) if "round" in asked else reply
    )
    _, (record,) = played(of, joined(of, tmp_path / "real", link, said), 1, tmp_path)
    assert statuses(record) == {0: "crashed", 1: "trained", 2: "trained"}
    assert any(line.startswith("round 1, client 0: ") and told in line for line in said)


def test_a_device_without_samples_does_not_take_part(run, tmp_path):
    of, said = run(), []
    link = federation(of, tmp_path / "data")
    link.devices[100].changed = lambda asked, reply: (
        replace(reply, fields={**reply.fields, "samples": 0}) if asked.get("ask") == "hello" else reply
    )
    _, (record,) = played(of, joined(of, tmp_path / "real", link, said, join_s=20.0), 1, tmp_path)
    assert statuses(record) == {1: "trained", 2: "trained"}
    assert any("does not take part: device" in line and "no samples" in line for line in said)


@pytest.mark.parametrize("objective", ["dyn", "scaffold"])
def test_an_update_that_is_refused_leaves_nothing_in_the_servers_memory(run, objective, tmp_path):
    of, said = run(**FEDAVG, objective=objective, optimizer="sgd", weight_decay=0.0, momentum=0.0), []
    link = federation(of, tmp_path / "data")

    def huge(asked, reply):
        if "round" not in asked:
            return reply
        tensors = load(reply.blobs["payload"])
        name = next(name for name in tensors if objective == "dyn" or name.startswith("control:"))
        return replace(reply, blobs={"payload": save({**tensors, name: tensors[name] + np.float32(1e20)})})

    link.devices[100].changed = huge
    state, (record,) = played(of, joined(of, tmp_path / "real", link, said), 1, tmp_path)
    assert statuses(record) == {0: "crashed", 1: "trained", 2: "trained"}
    assert any("holds 1e+20, expected finite values" in line for line in said)
    assert max(float(tensor.abs().max()) for tensor in state.memory.values()) < 1e6


def test_what_is_over_the_limit_of_a_devices_owner_is_refused_and_not_sent(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data")
    played(of, joined(of, tmp_path / "one", link), 1, tmp_path / "one")  # all devices store the training graphs
    link.devices[100].owner = replace(link.devices[100].owner, memory_bytes=1000)
    link.asked.clear()
    _, records = played(of, joined(of, tmp_path / "real", link), 2, tmp_path)
    for record in records:
        (short,) = record.clients[0].expected.refusal
        assert statuses(record)[0] == "refused"
        assert (short.budget, short.have) == ("memory_bytes", 1000)
        assert short.need == of.plan.costs[record.clients[0].expected.tier].training_memory_bytes
        assert record.clients[0].expected.download_bytes == 0
    assert [asked for node, asked in link.asked if node == 100] == [{"ask": "hello"}]


def test_a_tier_that_fits_in_micro_batches_only_is_refused_by_a_device_without_torch(run, tmp_path):
    conv = {**FEDAVG, "model": "cnn-digits", "data_share": 0.1}
    whole = run(**conv).plan.costs[Tier(1.0)].training_memory_bytes
    of = run(board={"training_bytes": whole - 1}, **conv)
    assert next(plan for plan in of.plan.classes if plan.device.name == "board").assignment.micro_batch
    for trainer, status in (("onnx", "refused"), ("torch", "trained")):
        link = federation(of, tmp_path / trainer, trainer=trainer)
        _, (record,) = played(of, joined(of, tmp_path / trainer, link), 1, tmp_path / trainer)
        (board,) = (client for client in record.clients if client.expected.device == "board")
        assert board.status == status
        assert [(short.need, short.have) for short in board.expected.refusal] == [(whole, whole - 1)] * (trainer == "onnx")


def test_devices_that_do_not_belong_to_the_run_are_named_and_left_out(run, tmp_path):
    of, said = run(), []
    link = federation(of, tmp_path / "data")
    link.devices[100].owner = replace(link.devices[100].owner, device="fridge")
    link.devices[101].owner = replace(link.devices[101].owner, data=tmp_path / "none.npz")
    _, (record,) = played(of, joined(of, tmp_path / "real", link, said, join_s=20.0), 1, tmp_path)
    assert statuses(record) == {2: "trained"}
    assert sum("does not take part" in line for line in said) == 2
    assert any("the fleet of the run has board, laptop, phone" in line for line in said)
    assert any("none.npz" in line and "expected an .npz file" in line for line in said)
    assert [line for line in said if "waiting" in line] == ["waiting for 2 more of 3 devices, for at most 20 s"]


def test_a_device_says_what_is_wrong_with_its_owners_values_and_files(run, tmp_path):
    of, said = run(), []
    link = federation(of, tmp_path / "data")
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 no archive")
    (tmp_path / "file").write_text("")
    given = {"client": "one", "memory-mb": -3, "trainer": "tf"}
    owners = [
        type(link.devices[100].owner).of({"device": "board", **given}, 7),
        replace(link.devices[101].owner, data=tmp_path / "broken.npz"),
        replace(link.devices[102].owner, state=tmp_path / "file" / "state"),
    ]
    for node, owner in zip(link.devices, owners, strict=True):
        link.devices[node].owner = owner
    with pytest.raises(EdgeflError, match="no device for"):
        played(of, joined(of, tmp_path / "real", link, said, join_s=5.0), 1, tmp_path)
    values, data, state, *_ = said
    assert "trainer: got 'tf', expected 'onnx' or 'torch'; client: got 'one', expected a whole number from 0" in values
    assert "memory-mb: got -3, expected a number above 0" in values
    assert "broken.npz: File is not a zip file; expected an .npz file with x and y" in data
    assert "state: " in state
    assert "expected a folder that this SuperNode may write" in state


def test_samples_of_another_shape_end_the_session_of_their_device_only(run, tmp_path):
    of, said = run(), []
    link = federation(of, tmp_path / "data")
    np.savez(link.devices[101].owner.data, x=np.zeros((9, 28, 28), np.float32), y=np.zeros(9, np.int64))
    _, (record,) = played(of, joined(of, tmp_path / "real", link, said), 1, tmp_path)
    assert statuses(record) == {0: "trained", 1: "crashed", 2: "trained"}
    assert any("client 1: crashed: " in line and "x: got shape (9, 28, 28), expected (samples, 1, 8, 8)" in line for line in said)


def test_without_any_device_the_run_ends_with_a_remedy(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data")
    link.devices = {}
    with pytest.raises(EdgeflError, match="no device for .* s; start SuperNodes"):
        played(of, joined(of, tmp_path / "real", link, join_s=5.0), 1, tmp_path)


def test_a_resumed_run_gives_devices_their_numbers_again_and_sends_no_setup_twice(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data", client=None)
    played(of, joined(of, tmp_path / "real", link), 1, tmp_path / "one")
    listed = json.loads((tmp_path / "real" / "devices.json").read_text())
    link.devices = {node + 50: device for node, device in reversed(link.devices.items())}
    _, (record,) = played(of, joined(of, tmp_path / "real", link), 1, tmp_path / "two")
    again = json.loads((tmp_path / "real" / "devices.json").read_text())
    assert {n: d["key"] for n, d in again["devices"].items()} == {n: d["key"] for n, d in listed["devices"].items()}
    assert record.observed["setup_bytes"] == 0
    assert link.now_s < 60


def test_a_resumed_run_waits_for_the_devices_that_it_had_only(run, tmp_path):
    of = run()
    link = federation(of, tmp_path / "data", client=None)
    link.devices.popitem()
    played(of, joined(of, tmp_path / "real", link, join_s=50.0), 1, tmp_path / "one")
    waited_s = link.now_s
    assert waited_s >= 50
    played(of, joined(of, tmp_path / "real", link, join_s=50.0), 1, tmp_path / "two")
    assert link.now_s - waited_s < 10


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({**FEDAVG, "mode": "async"}, "mode: got 'async', expected 'sync'"),
        ({**FEDAVG, "eval_after_training": True}, "eval_after_training: got true, expected false"),
        ({"method": "fedper", "tiers": (1.0,)}, "method fedper: the clients have models .* of their own"),
        ({**FEDAVG, "secure_aggregation": "secagg"}, "secure_aggregation: .* the app of devices has no messages for masks"),
    ],
)
def test_what_real_devices_cannot_train_is_refused_before_the_first_round(run, keys, message, tmp_path):
    of = run(**keys)
    with pytest.raises(ConfigError, match=message):
        connected(federation(of, tmp_path / "data"), None, of, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out": "here"}, "out: got 'here', expected the absolute path"),
        ({"join-s": "soon"}, "join-s: got 'soon', expected seconds, a number from 0"),
        ({"max-drop": -1}, "max-drop: got -1, expected a number from 0"),
        ({}, "rounds must be at least 1, got 0"),
    ],
)
def test_the_server_says_what_is_wrong_and_flower_shows_no_traceback(tmp_path, caplog, monkeypatch, settings, message):
    log = logging.getLogger("flwr")
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(log, "filters", [])
    (tmp_path / "run.toml").write_text("rounds = 0")
    with pytest.raises(ConfigError) as raised:
        serve(None, {"out": str(tmp_path / "run"), **settings}, tmp_path / "run.toml")
    log.error("ServerApp raised an exception", exc_info=raised.value)  # as Flower does
    assert "Error: " in caplog.text
    assert message in caplog.text
    assert "Traceback" not in caplog.text
    assert not (tmp_path / "run").exists()


def test_relative_paths_of_a_run_begin_where_its_app_was_written(tmp_path):
    (tmp_path / "lab.toml").write_text("name = 1")
    (tmp_path / "run.toml").write_text('profile = "lab.toml"')
    settings = {"out": str(tmp_path / "run")}
    with pytest.raises(EdgeflError, match="lab.toml: name"):
        serve(None, {**settings, "files": str(tmp_path)}, tmp_path / "run.toml")
    with pytest.raises(EdgeflError, match="lab.toml: no such file"):
        serve(None, settings, tmp_path / "run.toml")


def test_a_model_that_falls_slowly_ends_the_run(tmp_path):
    """Three points less in every round: compared with the round before, each would pass."""

    def row(number: int, accuracy: dict[str, float]) -> RoundRecord:
        return RoundRecord(number, (), 1.0, float(number), accuracy, 0.1)

    watch, rows = Watch(0.1, []), [row(number, {"global": 0.9 - 0.03 * number, "1": 0.9}) for number in range(1, 6)]
    for one in (*rows[:4], row(5, {})):  # the last one was not evaluated
        watch.round(one)
    told = r"round 5: the global model .*: accuracy 0\.7500, 0\.8700 at best, more than max-drop allows \(0\.1\)"
    with pytest.raises(EdgeflError, match=told):
        watch.round(rows[4])
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(one.to_json()) + "\n" for one in rows[:2]))
    assert [values["global"] for values in _accuracies(tmp_path)] == pytest.approx([0.87, 0.84])
    with pytest.raises(EdgeflError, match="0.8700 at best"):
        Watch(0.1, _accuracies(tmp_path)).round(rows[4])


def test_an_app_has_a_defence_unless_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.contrib.flower.new.prepare", lambda config: config)
    monkeypatch.setattr("edgefl.contrib.flower.new.check_run", lambda run: None)
    for name, keys, defence in (
        ("on", {}, "norm-filter"),
        ("off", {"defence": "none"}, "none"),
        ("own", {"defence": "median"}, "median"),
    ):
        app = new_app(RunConfig.of({**FEDAVG, **keys}), tmp_path / name)
        assert tomllib.loads((app / "edgefl_app" / "run.toml").read_text())["defence"] == defence


HELLO = {"key": "ab" * 8, "device": "laptop", "samples": 5, "trainer": "onnx"}


@pytest.mark.parametrize("key", ["client", "memory_bytes", "samples"])
@pytest.mark.parametrize("number", [-1, -(10**400), 10**400, 1.5, float("nan")])
def test_an_odd_number_of_a_node_is_no_device(key, number):
    with pytest.raises(WireError, match=f"cannot be read: .*{key}"):
        Device.read({**HELLO, key: number})
    said = {"status": "trained", "ready_s": 0.0, "train_s": 0.0, "measured_peak_activation_bytes": number}
    with pytest.raises(ValidationError):
        _SAID.validate_python(said)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"edgefl": ConfigRecord({"json": "[" * 100_000})}), RecordDict({"edgefl": ConfigRecord({"json": b"\xff"})}),
        RecordDict({"edgefl": ConfigRecord({"json": [1, 2]})}), RecordDict({}), RecordDict({"edgefl": ArrayRecord({})}), None,
        RecordDict({"edgefl": ConfigRecord({"json": "{}"}), "blobs": ConfigRecord({"a": 1})}),
        RecordDict({"edgefl": ConfigRecord({"json": "1" * 5000}), "blobs": ArrayRecord({})}),
    ],
)  # fmt: skip
def test_a_message_of_a_hostile_node_is_an_error_of_its_own(content):
    found = _reply(SimpleNamespace(has_error=lambda: False, content=content))
    assert found.error
    assert found.fields == {}
