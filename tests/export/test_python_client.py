"""The client for devices: what it computes against NumPy, what it refuses, and that it runs without torch and edgefl."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import safetensors.numpy
from handmade import PREPROCESSING, SCALE, Regression, changed, samples, seal, without_defaults
from torch_free import CLIENT, client, torch_free_python

sys.path.insert(0, str(CLIENT.parent))

import edgefl_bundle
import edgefl_client
import edgefl_training
from edgefl_client import Training, infer, read_bundle, read_data, train, update

DEFAULT = Training()


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    return torch_free_python(tmp_path_factory)


@pytest.fixture
def bundle(tmp_path):
    return Regression().write(tmp_path / "bundle")


@pytest.fixture
def data(tmp_path):
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path / "data.npz"


def called(capsys, *arguments) -> tuple[int, str, str]:
    """Call the client's command line; the bundles of these tests are not signed."""
    arguments = (*arguments, *unsigned(arguments))
    try:
        status = edgefl_client.main([str(argument) for argument in arguments])
    except SystemExit as left:  # argparse's own
        status = int(left.code)
    output, errors = capsys.readouterr()
    return status, output, errors


def unsigned(arguments) -> list[str]:
    return ["--allow-unsigned"] if arguments[0] in ("infer", "train") and "--key" not in arguments else []


def header(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


def played(model: Regression, folder: Path, state=None, n: int = 10, how: Training = DEFAULT, **reference):
    """Train on n samples and return the state, what NumPy makes of the same batches, and NumPy's losses."""
    x, y = samples(n, model.shape, model.classes)
    loaded = read_bundle(folder)
    after = train(loaded, "0.5", x, y, how, state)
    batches = [(x[index], y[index]) for index in replace(how, epochs=how.epochs or 2, batch_size=how.batch_size or 4).batches(n)]
    return after, *model.trained(batches, **reference)


def same(found, expected):
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=2e-4, atol=2e-5, err_msg=name)


# Training.


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("objective", ["none", "prox", "dyn", "scaffold"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_steps_are_those_of_the_formulas(optimizer, objective, present, tmp_path):
    model = Regression(classes=4, optimizer=optimizer, objective=objective, strength=0.3, present=present)
    x, y = samples(10, classes=3)  # nobody has a sample of the fourth class
    batches = [(x[index], y[index]) for index in Training(epochs=2, batch_size=4).batches(10)]
    expected, losses = model.trained(batches)
    after = train(read_bundle(model.write(tmp_path / "b")), "0.5", x, y)
    same(after.tensors, expected)
    np.testing.assert_allclose(after.losses, losses, rtol=1e-4)
    assert len(losses) == 6  # two epochs of 4, 4 and 2 samples
    assert after.about["steps"] == "6"


def test_each_step_draws_one_of_several_graphs(tmp_path):
    model = Regression(width=2, optimizer="sgd")
    draws = np.random.default_rng([7, 1])
    graphs = [int(2 * draws.random()) for _ in range(6)]
    assert set(graphs) == {0, 1}
    after, expected, _ = played(model, model.write(tmp_path / "b"), how=Training(seed=7), graphs=graphs)
    same(after.tensors, expected)


def test_images_are_mirrored_as_the_bundle_says(tmp_path):
    model = Regression(shape=(1, 2, 3))
    folder = model.write(tmp_path / "b")
    edit_train(folder, augment="flip")
    how, flips = Training(epochs=2, batch_size=4), np.random.default_rng([0, 2])
    x, y = samples(10, model.shape, model.classes)
    before, batches = x.copy(), []
    for index in how.batches(10):
        mirrored = flips.integers(2, size=len(index)).astype(bool)
        batches.append((np.where(mirrored[:, None, None, None], x[index, :, :, ::-1], x[index]), y[index]))
    expected, losses = model.trained(batches)
    after = train(read_bundle(folder), "0.5", x, y, how)
    same(after.tensors, expected)
    np.testing.assert_allclose(after.losses, losses, rtol=1e-4)
    np.testing.assert_array_equal(x, before)


def test_given_settings_go_before_those_of_the_manifest(tmp_path):
    model = Regression()
    how = Training(epochs=3, batch_size=5, lr=0.02, seed=1)
    after, expected, _ = played(model, model.write(tmp_path / "b"), how=how, lr=0.02)
    same(after.tensors, expected)
    assert after.about["steps"] == "6"
    assert played(model, tmp_path / "b", how=Training(max_steps=4))[0].about["steps"] == "4"


def test_training_leaves_what_it_was_given_as_it_is(tmp_path):
    loaded = read_bundle(Regression(objective="prox", strength=1.0).write(tmp_path / "b"))
    x, y = samples(10)
    before = x.copy(), y.copy()
    first, second = (train(loaded, "0.5", x, y, client="a") for _ in range(2))
    assert first.to_bytes() != second.to_bytes() or first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        np.testing.assert_array_equal(tensor, second.tensors[name])
    assert all(np.array_equal(a, b) for a, b in zip(before, (x, y), strict=True))


def test_a_state_of_the_same_bundle_is_trained_further(tmp_path):
    model = Regression(optimizer="sgd", objective="dyn", strength=0.3)
    folder = model.write(tmp_path / "b")
    once = played(model, folder, how=Training(epochs=2, batch_size=10))[0]
    half = played(model, folder, how=Training(epochs=1, batch_size=10))[0]
    twice = played(model, folder, half, how=Training(epochs=1, batch_size=10))[0]
    same(twice.tensors, once.tensors)  # every batch is all samples: their order does not matter
    assert (twice.about["steps"], twice.about["client"]) == ("2", half.about["client"])


def test_personal_tensors_stay_on_the_device_from_round_to_round(tmp_path):
    model = Regression(personal=("fc.bias",))
    first = played(model, model.write(tmp_path / "b3"))[0]
    assert "fc.bias" in first.tensors
    assert set(safetensors.numpy.load(update(first))) == {"fc.weight", "mean"}
    later = replace(model, seed=9)
    second, expected, _ = played(
        later, later.write(tmp_path / "b4", round_=4), first, first={"fc.bias": first.tensors["fc.bias"].astype(np.float64)}
    )
    same(second.tensors, expected)
    fresh = played(later, tmp_path / "b4")[0]
    assert not np.allclose(fresh.tensors["fc.bias"], second.tensors["fc.bias"], atol=1e-3)
    assert second.about["client"] != first.about["client"]  # rounds cannot be put together by it


@pytest.mark.parametrize("objective", ["dyn", "scaffold"])
def test_what_an_objective_remembers_is_kept_and_sent(objective, tmp_path):
    """The formulas of FedDyn's Algorithm 1 and of SCAFFOLD's option II, from the weights alone."""
    model = Regression(optimizer="sgd", objective=objective, strength=0.3)
    first, _, _ = played(model, model.write(tmp_path / "b3"))
    start = model.first()
    for name in ("fc.weight", "fc.bias"):
        moved = first.tensors[name] - start[name]
        kept = -0.3 * moved if objective == "dyn" else -start[f"control:{name}"] - moved / (6 * 0.1)
        np.testing.assert_allclose(first.tensors[f"memory:{name}"], kept, rtol=1e-3, atol=1e-4)
        if objective == "scaffold":
            np.testing.assert_allclose(first.tensors[f"control:{name}"], kept, rtol=1e-3, atol=1e-4)
    sent = set(safetensors.numpy.load(update(first)))
    controls = {"control:fc.weight", "control:fc.bias"} if objective == "scaffold" else set()
    assert sent == {"fc.weight", "fc.bias", "mean"} | controls
    memory = {name: first.tensors[f"memory:{name}"].astype(np.float64) for name in ("fc.weight", "fc.bias")}
    later = replace(model, seed=9)
    second, expected, _ = played(later, later.write(tmp_path / "b4", round_=4), first, memory=memory)
    same(second.tensors, expected)


def test_divergence_is_an_error_and_nothing_is_written(bundle, data, tmp_path, capsys):
    status, _, errors = called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state", "--lr", "1e38")
    assert status == 1
    assert "training diverged; a smaller --lr may help" in errors
    assert not (tmp_path / "state").exists()


# Budgets.


def test_time_ends_training_early_and_what_was_done_counts(tmp_path, monkeypatch):
    clock = iter(np.arange(100) * 1.0)  # read once before, and once after each step: a step takes one second
    monkeypatch.setattr(edgefl_training.time, "perf_counter", lambda: next(clock))
    keys = {"budget": {"memory_bytes": None, "round_s": 3.5, "energy_j": None}}
    folder = Regression().write(tmp_path / "b")
    tier = json.loads((folder / "manifest.json").read_text())["tiers"][0]
    changed(folder, tiers=[{**tier, **keys}])
    x, y = samples(10)
    assert train(read_bundle(folder), "0.5", x, y).about["steps"] == "3"
    assert train(read_bundle(folder), "0.5", x, y, Training(max_seconds=2.0)).about["steps"] == "2"
    assert train(read_bundle(folder), "0.5", x, y, Training(max_seconds=0)).about["steps"] == "6"
    with pytest.raises(edgefl_client.BudgetError, match=r"the first step took 1 s, 0.5 s are allowed") as caught:
        train(read_bundle(folder), "0.5", x, y, Training(max_seconds=0.5))
    assert (caught.value.exit_code, caught.value.need, caught.value.have) == (3, 1.0, 0.5)


def test_memory_is_held_to_the_budget(tmp_path):
    """96 weights of 3 × 1024 and their momentum lie outside of onnxruntime's arena, a batch's copies of 64 × 1024 inside."""
    folder = Regression(shape=(1, 32, 32)).write(tmp_path / "b")
    x, y = samples(64, (1, 32, 32))
    np.savez(tmp_path / "d.npz", x=x, y=y)
    batch_bytes, state_bytes = 64 * 1024 * 4, 2 * (2 * 3 * 1024 + 1024) * 4

    def run(memory_bytes: int, batch_size: int = 64) -> tuple[int, str]:
        command = ["train", str(folder), "0.5", str(tmp_path / "d.npz"), "--out", str(tmp_path / "state")]
        limits = ["--memory-bytes", str(memory_bytes), "--batch-size", str(batch_size)]
        done = subprocess.run(
            [sys.executable, str(CLIENT), *command, *limits, "--allow-unsigned"], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    status, errors = run(state_bytes)
    assert status == 3
    assert f"{state_bytes:,} are allowed" in errors
    assert "weights, optimizer state and a batch take" in errors
    status, errors = run(state_bytes + batch_bytes + batch_bytes // 2)  # the batch itself, and half of its scaled copy
    assert status == 3
    assert "a step of 64 samples needs at least" in errors
    assert "a smaller --batch-size needs less" in errors
    assert not (tmp_path / "state").exists()
    assert run(state_bytes + batch_bytes + batch_bytes // 2, batch_size=16)[0] == 0
    assert run(state_bytes + 3 * batch_bytes)[0] == 0
    assert header(tmp_path / "state")["steps"] == "2"


# Inference.


def test_probabilities_are_those_of_the_formula(bundle):
    x, _ = samples(10)
    first = Regression().first()
    logits = SCALE * x.reshape(10, -1) @ first["fc.weight"].T + first["fc.bias"]
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(infer(read_bundle(bundle), "0.5", x), expected, rtol=1e-5, atol=1e-6)


def test_inference_takes_the_trained_weights(bundle, data, tmp_path, capsys):
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state", "--epochs", 30)[0] == 0
    status, output, _ = called(capsys, "infer", bundle, "0.5", data, "--state", tmp_path / "state")
    lines = output.splitlines()
    assert status == 0
    assert len(lines) == 11
    x, y = samples(10)
    weights = safetensors.numpy.load((tmp_path / "state").read_bytes())
    logits = SCALE * x.reshape(10, -1) @ weights["fc.weight"].T + weights["fc.bias"]
    assert lines[-1] == f"accuracy: {(logits.argmax(1) == y).mean():.4f} of 10 samples"
    assert lines[3].split("\t")[:2] == ["3", ["ant", "bee", "cat"][int(logits[3].argmax())]]


def test_outputs_that_are_no_numbers_are_an_error(bundle):
    x, _ = samples(10)
    with pytest.raises(edgefl_bundle.ClientError, match=r"0\.5/forward\.onnx: the graph computes \S+, expected finite outputs"):
        infer(read_bundle(bundle), "0.5", np.sign(x) * np.float32(3e38))


def test_samples_without_labels_are_classified(bundle, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=samples(2)[0])
    status, output, _ = called(capsys, "infer", bundle, "0.5", tmp_path / "x.npz")
    assert (status, len(output.splitlines())) == (0, 2)


# Data.


def test_raw_pixels_are_prepared_as_the_manifest_says(bundle, tmp_path):
    pixels = np.array([[[[0, 4, 8], [12, 16, 2]]]], np.uint8)
    np.savez(tmp_path / "x.npz", x=pixels)
    x, y = read_data(tmp_path / "x.npz", read_bundle(bundle).manifest, labels=False)
    assert (x.dtype, y) == (np.float32, None)
    np.testing.assert_allclose(x, [[[[-0.5, 0.0, 0.5], [1.0, 1.5, -0.25]]]])


def test_pixels_of_channels_have_each_their_own_mean(tmp_path):
    folder = Regression(shape=(3, 1, 1)).write(tmp_path / "b")
    changed(folder, preprocessing={"scale": 1.0, "mean": [1, 2, 3], "std": [1, 2, 4]})
    np.savez(tmp_path / "x.npz", x=np.array([[[[5]], [[6]], [[7]]]], np.uint8))
    assert read_data(tmp_path / "x.npz", read_bundle(folder).manifest, labels=False)[0].ravel().tolist() == [4, 2, 1]


def test_raw_features_are_prepared_as_the_manifest_says(tmp_path):
    folder = Regression(shape=(2,)).write(tmp_path / "b")
    changed(folder, preprocessing={"scale": 1.0, "raw": "float32", "mean": [1, 2], "std": [2, 4]})
    np.savez(tmp_path / "x.npz", x=np.array([[5, 0], [1, 2]], np.float32))
    assert read_data(tmp_path / "x.npz", read_bundle(folder).manifest, labels=False)[0].tolist() == [[2, -0.5], [0, 0]]


def test_images_in_folders_named_like_classes(bundle, tmp_path, python):
    """Greymaps are written here by hand; the last one is twice as large as what the network takes."""
    for name, rows in (("bee", [[0, 51, 102], [153, 204, 255]]), ("ant", [[255] * 6] * 4)):
        (tmp_path / "images" / name).mkdir(parents=True)
        image = np.array(rows, np.uint8)
        (tmp_path / "images" / name / ".DS_Store").write_bytes(b"hidden")
        (tmp_path / "images" / name / "1.pgm").write_bytes(b"P5 %d %d 255 " % image.shape[::-1] + image.tobytes())
    code = (
        f"import sys, json; sys.path.insert(0, {str(CLIENT.parent)!r}); from pathlib import Path; from edgefl_client import *;"
        f"x, y = read_data(Path({str(tmp_path / 'images')!r}), read_bundle(Path({str(bundle)!r})).manifest, True);"
        "print(json.dumps([x.tolist(), y.tolist()]))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    x, y = json.loads(done.stdout)
    assert y == [0, 1]
    mean, std = PREPROCESSING["mean"], PREPROCESSING["std"]
    expected = (np.array([[[[1.0] * 3] * 2], [[[0, 0.2, 0.4], [0.6, 0.8, 1.0]]]]) - mean) / std
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    trained = client(python, "train", bundle, "0.5", tmp_path / "images", "--out", tmp_path / "state", "--allow-unsigned")
    assert trained.returncode == 0, trained.stderr
    (tmp_path / "images" / "dog").mkdir()
    refused = client(python, "train", bundle, "0.5", tmp_path / "images", "--out", tmp_path / "other", "--allow-unsigned")
    assert refused.returncode == 2
    assert "no class of that name; expected one subfolder per class: ant, bee, cat" in refused.stderr


def arrays(**changes):
    x, y = samples(10)
    return {"x": x, "y": y, **changes}


X, Y = samples(10)
NAN = X.copy()
NAN[3, 0, 1, 1] = np.nan


WRONG_DATA = [
    (arrays(x=X[:, :, :1]), "x: got shape (10, 1, 1, 3), expected (samples, 1, 2, 3)"),
    (arrays(x=X.astype(np.float64)), "x: got float64, expected float32"),
    (arrays(x=NAN), "x holds NaN or infinity"),
    (arrays(x=X[:0], y=Y[:0]), "x: no sample"),
    (arrays(y=Y[:9]), "y: got int64 of shape (9,), expected integers of shape (10,)"),
    (arrays(y=Y.astype(np.float32)), "y: got float32"),
    (arrays(y=np.full(10, 3)), "y: labels 3 to 3, expected 0 to 2"),
    (arrays(y=np.full(10, -1)), "y: labels -1 to -1, expected 0 to 2"),
    ({"x": X}, "y: no labels, expected one per sample"),
    ({"y": Y}, "x: missing, expected arrays x and y; it has y"),
    (arrays(x=np.array([object()])), "not an .npz file of plain arrays"),
]


@pytest.mark.parametrize(("given", "message"), WRONG_DATA)
def test_wrong_data_are_refused_in_one_message(given, message, bundle, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", **given)
    status, output, errors = called(capsys, "train", bundle, "0.5", tmp_path / "d.npz", "--out", tmp_path / "state")
    assert (status, output) == (2, "")
    assert errors.startswith(f"Error: {tmp_path / 'd.npz'}: ")
    assert message in errors
    assert not (tmp_path / "state").exists()


def test_other_files_than_data_are_refused(bundle, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.npz").write_bytes(b"text")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as file:
        file.writestr("x.npy", b"\x93NUMPY")
    for path, message in ((tmp_path / "a.npz", "not an .npz file"), (tmp_path / "b.npz", "not an .npz file")):
        status, _, errors = called(capsys, "infer", bundle, "0.5", path)
        assert (status, message in errors) == (2, True), errors
    assert "No such file" in called(capsys, "infer", bundle, "0.5", tmp_path / "none.npz")[2]
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "needs the package Pillow" in called(capsys, "infer", bundle, "0.5", tmp_path)[2]


def test_token_ids_stay_below_the_vocabulary(tmp_path):
    folder = Regression().write(tmp_path / "b")
    changed(folder, input_dtype="int64", input_shape=[4], preprocessing={"alphabet": "abc"})
    manifest = read_bundle(folder).manifest
    np.savez(tmp_path / "x.npz", x=np.array([[0, 1, 2, 2]], np.int32))
    assert read_data(tmp_path / "x.npz", manifest, labels=False)[0].dtype == np.int64
    for wrong in (np.array([[0, 1, 2, 3]]), np.array([[0, -1, 2, 2]])):
        np.savez(tmp_path / "x.npz", x=wrong)
        with pytest.raises(edgefl_client.InputError, match=r"token ids -?\d to \d, expected 0 to 2"):
            read_data(tmp_path / "x.npz", manifest, labels=False)


# Bundles, states and updates.


def edit_train(folder: Path, **keys):
    tier = json.loads((folder / "manifest.json").read_text())["tiers"][0]
    changed(folder, tiers=[{**tier, "train": {**tier["train"], **keys}}])


def edit_tier(folder: Path, **keys):
    tier = json.loads((folder / "manifest.json").read_text())["tiers"][0]
    changed(folder, tiers=[{**tier, **keys}])


def damage(folder: Path, name: str, content: bytes | None = None):
    path = folder / "0.5" / name
    path.write_bytes(path.read_bytes()[:-1] + b"\x00" if content is None else content)


def link(folder: Path):
    real = folder.parent / "elsewhere.onnx"
    (folder / "0.5" / "train.onnx").rename(real)
    (folder / "0.5" / "train.onnx").symlink_to(real)


SPOILED = [
    (lambda f: changed(f, format_version=1), "format_version: got 1, expected 2"),
    (lambda f: changed(f, format_version=True), "format_version: got True, expected 2"),
    (lambda f: changed(f, classes="3"), "classes: got '3', expected a value of type int"),
    (lambda f: changed(f, tiers=[[]]), "tiers.0: got list, expected a table"),
    (lambda f: (f / "manifest.json").write_text("[" * 100_000), "not valid JSON"),
    (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes().replace(b'"round": 3', b'"round": 4')),
        "its SHA-256 is not its manifest_sha256",
    ),
    (lambda f: (f / "manifest.json").unlink(), "expected a folder that edgefl export wrote"),
    (lambda f: damage(f, "train.onnx"), "train.onnx: changed: its SHA-256"),
    (lambda f: damage(f, "train.onnx", b"short"), "train.onnx: changed: 5 bytes, expected"),
    (lambda f: damage(f, "parameters.safetensors"), "parameters.safetensors: changed"),
    (lambda f: (f / "0.5" / "train.onnx").unlink(), "train.onnx: missing, or a link"),
    (link, "train.onnx: missing, or a link"),
    (lambda f: edit_train(f, graphs=["../elsewhere.onnx"]), "'../elsewhere.onnx' is no file of the bundle"),
    (lambda f: edit_train(f, graphs=["/etc/passwd"]), "'/etc/passwd' is no file of the bundle"),
    (lambda f: edit_train(f, trained={"fc.weight": [6, 3], "fc.bias": [3]}), "fc.weight: got [3, 6], expected shape [6, 3]"),
    (lambda f: edit_train(f, frozen={"other": [1]}), "other: got nothing, expected shape [1]"),
    (lambda f: edit_train(f, frozen={}), "has an input 'f.scale', for which the bundle has no value"),
    (lambda f: edit_train(f, lr="fast"), "tier 0.5: train: lr: got 'fast', expected a value of type number"),
    (lambda f: edit_train(f, graphs=["0.5/parameters.safetensors"]), "parameters.safetensors: not an ONNX model"),
    (lambda f: edit_train(f, graphs=[]), "train: graphs: got [], expected at least one training graph"),
    (lambda f: edit_train(f, graphs=[1]), "train: graphs: got [1], expected a list of texts"),
    (lambda f: edit_train(f, objective={"name": 1}), "train: objective: name: got 1, expected a value of type str"),
    (lambda f: edit_train(f, epochs=0), "train: epochs: got 0, expected at least 1"),
    (lambda f: edit_train(f, trained={"fc.weight": "big"}), "trained.fc.weight: got 'big', expected a list of sizes"),
    (lambda f: edit_train(f, trained={"fc.weight": [1 << 20, 1 << 20]}), "expected a list of sizes"),
    (lambda f: edit_tier(f, budget={"round_s": "long"}), "budget: round_s: got 'long', expected a number from 0, or none"),
    (lambda f: changed(f, classes=10**9), "class_names: got '3 names', expected one for each of 1000000000 classes"),
    (lambda f: changed(f, class_names=[1, 2, 3]), "class_names: got [1, 2, 3], expected a list of texts"),
    (lambda f: changed(f, input_shape=[-1, "a"]), "input_shape: got [-1, 'a'], expected a list of sizes"),
    (lambda f: changed(f, files={"a": 1}), "files.a: got int, expected a table"),
    (lambda f: edit_train(f, lr=-1e300), "lr: got -1e+300, expected a finite number of at most 63 bits"),
    (lambda f: edit_train(f, no_update="\ud800"), "no_update: got 'half a character', expected text"),
    (
        lambda f: edit_train(f, personal=["fc.bias"]),
        "upload: got 'fc.bias', expected one of the tier's tensors, not a personal one",
    ),
    (lambda f: edit_train(f, upload={"other": [1]}), "upload: got 'other', expected one of the tier's tensors"),
    (lambda f: edit_tier(f, batch_size=0), "tiers.0: batch_size: got 0, expected at least 1"),
    (lambda f: edit_tier(f, variants=[{}]), "tiers.0: variants: kind: got None, expected a value of type str"),
    (lambda f: changed(f, preprocessing={"scale": 1, "mean": "x", "std": 1}), "preprocessing: mean: got 'x', expected numbers"),
    (
        lambda f: changed(f, preprocessing={"scale": 1, "mean": 0, "std": [0]}),
        "preprocessing: std: got [0], expected numbers, and none of",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_a_wrong_bundle_is_refused_in_one_message(spoil, message, bundle, data, tmp_path, capsys):
    spoil(bundle)
    status, output, errors = called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state")
    assert (status, output) == (2, "")
    assert errors.startswith("Error: ")
    assert message in errors
    assert not (tmp_path / "state").exists()


def test_weights_beside_a_graph_must_be_files_of_the_bundle(bundle, data, capsys):
    """The text of protobuf: an entry of external_data is {key: "location", value: the file's name}."""
    from onnx import TensorProto, load_from_string

    for name in ("../../secret.bin", "secret.bin"):
        model = load_from_string(Regression().predict(weights=False))
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        content = model.SerializeToString()
        (bundle / "0.5" / "forward.onnx").write_bytes(content)
        files = json.loads((bundle / "manifest.json").read_text())["files"]
        files["0.5/forward.onnx"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        changed(bundle, files=files)
        status, _, errors = called(capsys, "infer", bundle, "0.5", data)
        assert status == 2
        assert f"'0.5/{name}' is no file of the bundle" in errors


def test_weights_beside_a_graph_are_read(bundle, data, capsys):
    """A model of more than 2 GB has its weights in a second file, in the folder of the graph."""
    from onnx import TensorProto, load_from_string, numpy_helper

    inside = called(capsys, "infer", bundle, "0.5", data)
    model = load_from_string((bundle / "0.5" / "forward.onnx").read_bytes())
    tensor = model.graph.initializer[0]
    values = numpy_helper.to_array(tensor)
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    put(bundle, "forward.onnx", model.SerializeToString())
    put(bundle, "weights.bin", values.tobytes())
    assert called(capsys, "infer", bundle, "0.5", data) == inside
    put(bundle, "weights.bin", np.zeros_like(values).tobytes())
    assert called(capsys, "infer", bundle, "0.5", data) != inside


def test_a_bundle_for_inference_only_trains_nothing(bundle, data, tmp_path, capsys):
    tier = json.loads((bundle / "manifest.json").read_text())["tiers"][0]
    changed(bundle, tiers=[{**tier, "train": None}])
    status, _, errors = called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state")
    assert (status, "exported for inference only" in errors) == (2, True)
    assert called(capsys, "infer", bundle, "0.5", data)[0] == 0


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


@pytest.mark.parametrize("objective", ["dyn", "scaffold"])
def test_what_an_objective_remembers_of_another_model_is_refused(objective, tmp_path):
    model = Regression(shape=(1, 2, 2), optimizer="sgd", objective=objective)
    state = played(model, model.write(tmp_path / "small"))[0]
    later = replace(model, shape=(1, 2, 3))
    with pytest.raises(edgefl_bundle.InputError, match=r"memory:fc.weight: .* expected \(3, 6\): it is of another model"):
        played(later, later.write(tmp_path / "large", round_=4), state)


def test_keys_with_a_default_may_be_missing(bundle, data, tmp_path, capsys):
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "whole")[0] == 0
    inferred = called(capsys, "infer", bundle, "0.5", data)
    without_defaults(bundle)
    assert called(capsys, "infer", bundle, "0.5", data) == inferred
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "brief")[0] == 0
    whole, brief = (safetensors.numpy.load_file(tmp_path / name) for name in ("whole", "brief"))
    assert whole.keys() == brief.keys()
    assert all((brief[name] == value).all() for name, value in whole.items())
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["round"]
    seal(bundle, manifest)
    assert read_bundle(bundle).manifest["round"] == 0


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


def test_numbers_of_options_are_checked(bundle, data, capsys):
    for flag, value in (
        ("--epochs", "0"),
        ("--lr", "nan"),
        ("--lr", "-1"),
        ("--max-seconds", "inf"),
        ("--threads", "x"),
        ("--client", "a b"),
    ):
        assert called(capsys, "train", bundle, "0.5", data, "--out", "x", flag, value)[0] == 2


# Without torch.


def test_all_of_it_runs_where_neither_torch_nor_edgefl_is(python, bundle, data, tmp_path):
    for name in ("torch", "edgefl"):
        missing = subprocess.run([str(python), "-I", "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in missing.stderr
    state, sent = tmp_path / "state", tmp_path / "up.safetensors"
    trained = client(python, "train", bundle, "0.5", data, "--out", state, "--memory-bytes", 10**8, "--allow-unsigned")
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.startswith("6 steps in ")
    classified = client(python, "infer", bundle, "0.5", data, "--state", state, "--allow-unsigned")
    assert "accuracy: " in classified.stdout
    assert client(python, "update", state, "--out", sent).returncode == 0
    here = train(read_bundle(bundle), "0.5", *samples(10))
    for name, tensor in safetensors.numpy.load(sent.read_bytes()).items():
        np.testing.assert_allclose(tensor, here.tensors[name], rtol=1e-5, atol=1e-6)
    assert edgefl_bundle.FORMAT_VERSION == 2


def put(bundle: Path, name: str, content: bytes) -> None:
    """Put a graph into a bundle, whose manifest then agrees with it."""
    (bundle / "0.5" / name).write_bytes(content)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files[f"0.5/{name}"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    changed(bundle, files=files)


def alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), *map(str, arguments), *unsigned(arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def hostile(body: str, shape: str) -> bytes:
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[batch,1,2,3] x) => (float[{shape}] out) {{ {body} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


ENDLESS = """
    more = Constant<value = bool {1}>() start = ReduceSum<keepdims = 0>(x)
    out = Loop ("", more, start) <body = b (int64 i, bool go, float[] was) => (bool on, float[] now)
        { on = Identity(go) now = Sin(was) }>"""
GROWING = """
    sizes = Constant<value_ints = [100000, 20000]>() one = ConstantOfShape<value = float {1}>(sizes)
    all = ReduceSum<keepdims = 0>(one) out = Add(x, all)"""


def test_a_graph_that_never_ends_is_stopped(bundle, data, tmp_path):
    put(bundle, "forward.onnx", hostile(ENDLESS, ""))
    done = alone("infer", bundle, "0.5", data, "--timeout", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "a batch took more than 1 s" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is of Linux")
def test_constants_that_grow_beyond_the_memory_are_refused(bundle, data):
    put(bundle, "forward.onnx", hostile(GROWING, "batch,1,2,3"))
    done = alone("infer", bundle, "0.5", data)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_samples_that_grow_to_gigabytes_are_refused(bundle, tmp_path, capsys):
    zeros = tmp_path / "bomb.npz"
    with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w", force_zip64=True) as x:
        for _ in range(300):
            x.write(bytes(1 << 20))
    status, _, errors = called(capsys, "infer", bundle, "0.5", zeros)
    assert (status, "times its size" in errors) == (2, True)


def test_names_of_classes_do_not_control_the_terminal(bundle, data, capsys):
    changed(bundle, class_names=["a\x1b[2J", "b\x9b31m", "c\x07"])
    _, output, _ = called(capsys, "infer", bundle, "0.5", data)
    assert "\ufffd" in output
    assert not {"\x1b", "\x9b", "\x07"} & set(output)
