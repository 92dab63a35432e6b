"""Training by the Python client: steps of the formulas in NumPy, states, and budgets of time and memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import edgefl_bundle
import edgefl_client
import edgefl_training
import numpy as np
import pytest
import safetensors.numpy
from edgefl_client import ClientError, Training, read_bundle, train, update
from handmade import Regression, changed, samples
from python_client import batches, called, header, played, same
from spoiled_bundles import edit_train
from torch_free import CLIENT


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("objective", ["none", "prox", "dyn", "scaffold"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_steps_are_those_of_the_formulas(optimizer, objective, present, tmp_path):
    model = Regression(classes=4, optimizer=optimizer, objective=objective, strength=0.3, present=present)
    x, y = samples(10, classes=3)  # nobody has a sample of the fourth class
    order = batches(Training(epochs=2, batch_size=4), 10)
    expected, losses = model.trained([(x[index], y[index]) for index in order])
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
    before, mirrored_batches = x.copy(), []
    for index in batches(how, 10):
        mirrored = flips.integers(2, size=len(index)).astype(bool)
        mirrored_batches.append((np.where(mirrored[:, None, None, None], x[index, :, :, ::-1], x[index]), y[index]))
    expected, losses = model.trained(mirrored_batches)
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
    assert re.search(r"step \d+: .*(loss is|NaN or infinity).*: training diverged; a smaller --lr may help", errors)
    assert not (tmp_path / "state").exists()


def test_a_step_that_is_not_finite_changes_nothing(tmp_path, monkeypatch):
    made = []

    class Seen(edgefl_training.Steps):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(edgefl_training, "Steps", Seen)
    model = Regression(classes=4, optimizer="sgd")
    x, y = samples(12, classes=3)
    how = Training(epochs=1, batch_size=4, lr=0.1)
    *_, last = batches(how, 12)
    sound = x.copy()
    x[last] = np.finfo(np.float32).max / 8
    with pytest.raises(
        ClientError, match=r"^step 3: (the loss is|.* would hold NaN).*: training diverged; a smaller --lr may help"
    ):
        train(read_bundle(model.write(tmp_path / "b")), "0.5", x, y, how)
    after = train(read_bundle(model.write(tmp_path / "c")), "0.5", sound, y, replace(how, max_steps=2))
    same(made[0].tensors(), {name: value for name, value in after.tensors.items() if name in made[0].tensors()})


def test_time_ends_training_early_and_what_was_done_counts(data, tmp_path, capsys, monkeypatch):
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
    status, shown, _ = called(capsys, "train", folder, "0.5", data, "--out", tmp_path / "state")
    assert (status, "\nstopped after 3 of 6 steps: the limit is 3.5 s (--max-seconds)\n" in shown) == (0, True)
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


@pytest.mark.parametrize("objective", ["dyn", "scaffold"])
def test_what_an_objective_remembers_of_another_model_is_refused(objective, tmp_path):
    model = Regression(shape=(1, 2, 2), optimizer="sgd", objective=objective)
    state = played(model, model.write(tmp_path / "small"))[0]
    later = replace(model, shape=(1, 2, 3))
    with pytest.raises(edgefl_bundle.InputError, match=r"memory:fc.weight: .* expected \(3, 6\): it is of another model"):
        played(later, later.write(tmp_path / "large", round_=4), state)


@pytest.mark.parametrize("type_", [np.int32, np.uint8])
def test_labels_may_be_whole_numbers_of_any_type(type_, tmp_path):
    loaded = read_bundle(Regression().write(tmp_path / "b"))
    x, y = samples(10)
    same(train(loaded, "0.5", x, y.astype(type_)).tensors, train(loaded, "0.5", x, y).tensors)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x.astype(float), y), "x: got float64, expected float32"),
        (lambda x, y: (x[:, :-1], y), r"x: got shape \(10, "),
        (lambda x, y: (np.full_like(x, np.nan), y), "x holds NaN or infinity"),
        (lambda x, y: (x[:0], y[:0]), "x: no sample"),
        (lambda x, y: ({"image": x}, y), "x: got image, expected x"),
        (lambda x, y: (x, y[:-1]), r"y: got int64 of shape \(9,\), expected integers of shape \(10,\)"),
        (lambda x, y: (x, y.astype(float)), "y: got float64"),
        (lambda x, y: (x, y + 5), "y: labels 5 to"),
    ],
)
def test_samples_that_do_not_fit_the_bundle_are_refused(spoil, message, tmp_path):
    loaded = read_bundle(Regression().write(tmp_path / "b"))
    with pytest.raises(edgefl_client.InputError, match=f"^{message}"):
        train(loaded, "0.5", *spoil(*samples(10)))
