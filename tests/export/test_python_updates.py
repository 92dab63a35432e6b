"""States and updates that the Python client writes: what they say, and what is refused."""

from __future__ import annotations

import json
import os

import numpy as np
import safetensors.numpy
from handmade import Regression
from python_client import called, header
from spoiled_bundles import edit_train


def test_states_that_do_not_belong_are_refused(bundle, data, tmp_path, capsys):
    state = tmp_path / "state"
    assert called(capsys, "train", bundle, "0.5", data, "--out", state)[0] == 0
    later = Regression(seed=2).write(tmp_path / "later", round_=3)
    cases = [
        (later, "it is of round 3 of another bundle, this one is of round 3"),
        (Regression(seed=2).write(tmp_path / "other", round_=4, label="0.25"), "it is of tier 0.5, expected 0.25"),
    ]
    for folder, message in cases:
        label = "0.25" if folder.name == "other" else "0.5"
        status, _, errors = called(capsys, "train", folder, label, data, "--state", state, "--out", tmp_path / "no")
        assert (status, message in errors) == (2, True), errors
    for content in (b"", b"\x10\x00\x00\x00\x00\x00\x00\x00{}", safetensors.numpy.save({}), state.read_bytes()[:-1]):
        (tmp_path / "bad").write_bytes(content)
        assert called(capsys, "update", tmp_path / "bad", "--out", tmp_path / "no")[0] == 2
    assert not (tmp_path / "no").exists()


def test_an_update_says_what_it_is(bundle, data, tmp_path, capsys):
    state, sent = tmp_path / "state", tmp_path / "up.safetensors"
    assert called(capsys, "train", bundle, "0.5", data, "--out", state, "--client", "c1")[0] == 0
    assert called(capsys, "update", state, "--out", sent)[0] == 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert header(sent) == {
        "format": "edgefl-update", "version": "1", "bundle": manifest["manifest_sha256"], "round": "3", "tier": "0.5",
        "samples": "10", "steps": "6", "client": "c1",
    }  # fmt: skip
    tensors, kept = (safetensors.numpy.load(path.read_bytes()) for path in (sent, state))
    assert {n: list(t.shape) for n, t in tensors.items()} == manifest["tiers"][0]["train"]["upload"]
    assert all(np.array_equal(tensor, kept[name]) and tensor.dtype == np.float32 for name, tensor in tensors.items())


def test_an_update_states_the_labels_of_the_device_only_if_the_bundle_asks_for_them(bundle, data, tmp_path, capsys):
    edit_train(bundle, labels=True)
    x = np.load(data)["x"]
    np.savez(tmp_path / "some.npz", x=x[:3], y=np.array([2, 0, 2]))
    np.savez(tmp_path / "more.npz", x=x[:2], y=np.array([1, 1]))
    state, said = tmp_path / "state", []
    for name, before in (("some.npz", ()), ("more.npz", ("--state", state))):
        assert called(capsys, "train", bundle, "0.5", tmp_path / name, "--out", state, *before)[0] == 0
        assert called(capsys, "update", state, "--out", tmp_path / "up")[0] == 0
        said.append(header(tmp_path / "up")["labels"])
    assert said == ["0,2", "0,1,2"]


def test_a_model_that_nobody_can_aggregate_sends_nothing(bundle, data, tmp_path, capsys):
    edit_train(bundle, no_update="its server mixes models of clients that it knows")
    state = tmp_path / "state"
    assert called(capsys, "train", bundle, "0.5", data, "--out", state)[0] == 0
    status, _, errors = called(capsys, "update", state, "--out", tmp_path / "no")
    assert status == 2
    assert "cannot be aggregated outside of a simulation: its server mixes models of clients that it knows" in errors
    assert not (tmp_path / "no").exists()


def test_files_that_cannot_be_written_are_named(bundle, data, tmp_path, capsys):
    for out in (tmp_path, tmp_path / "none" / "state"):
        status, _, errors = called(capsys, "train", bundle, "0.5", data, "--out", out)
        assert (status, "expected the name of a file" in errors) == (2, True)
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "cannot be written" in called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "closed" / "state")[2]
