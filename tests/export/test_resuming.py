"""A training that continues from its state: two trainings are one, in the Python and in the TypeScript client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from edgefl_client import Training, read_bundle, train
from edgefl_order import Order
from handmade import Regression, samples
from python_client import called, header
from spoiled_bundles import edit_train
from torch import nn

from edgefl import export_network

COUNT = 10
FLIPPED = Regression(width=2, shape=(1, 2, 3), keys={"augment": "flip"})
MODELS = {
    "sgd": Regression(optimizer="sgd"),
    "momentum, flipped, two graphs": FLIPPED,
    "adam": Regression(optimizer="adam", objective="prox", strength=0.3),
    "dyn": Regression(optimizer="sgd", objective="dyn", strength=0.3),
    "scaffold": Regression(optimizer="sgd", objective="scaffold"),
}
HOW = Training(epochs=2, batch_size=4, seed=5, max_seconds=0)


def equal(found, expected) -> None:
    """Check that two states have the same bits, and say the same."""
    assert found.about == expected.about
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor, err_msg=name)


@pytest.mark.parametrize("parts", [(3, 3), (2, 1, 3), (5, 1)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_training_are_the_whole(name, parts, tmp_path):
    model = MODELS[name]
    bundle, (x, y) = read_bundle(model.write(tmp_path / "b")), samples(COUNT, model.shape, model.classes)
    whole = train(bundle, "0.5", x, y, HOW, client="c1")
    state, losses = None, []
    for steps in parts:
        state = train(bundle, "0.5", x, y, replace(HOW, max_steps=steps, seed=HOW.seed if state is None else None), state, "c1")
        losses += state.losses
        assert state.note == ""
    assert tuple(losses) == whole.losses
    equal(state, whole)


def test_batches_of_another_size_continue_within_the_epoch(tmp_path):
    order, other = Order(COUNT, 4, 5), Order(COUNT, 3, 5)
    whole = np.concatenate([order.batch() for _ in range(3)])
    first = Order(COUNT, 4, 5)
    taken = [first.batch()]
    other.move(first.place(), "--state")
    assert np.concatenate([*taken, other.batch(), other.batch()]).tolist() == whole.tolist()


@pytest.fixture(scope="module")
def dropout(tmp_path_factory) -> Path:
    """A bundle of a network with dropout."""
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    out = tmp_path_factory.mktemp("dropout") / "bundle"
    return export_network(module, torch.randn(2, 4), out, method="heterofl", tiers=(1,), sign=False)


def test_dropout_continues_too(dropout):
    bundle, rng = read_bundle(dropout), np.random.default_rng(0)
    x, y = rng.normal(size=(COUNT, 4)).astype(np.float32), rng.integers(3, size=COUNT)
    half = train(bundle, "1", x, y, replace(HOW, epochs=1), client="c1")
    equal(train(bundle, "1", x, y, replace(HOW, epochs=1), half, "c1"), train(bundle, "1", x, y, HOW, client="c1"))
    other = train(bundle, "1", x, y, replace(HOW, epochs=1), replace(half, about={**half.about, "data": "0"}), "c1")
    assert other.about["order"] != train(bundle, "1", x, y, HOW, half, "c1").about["order"]


def test_another_seed_other_samples_and_an_older_state_are_named(tmp_path, capsys):
    folder, state, out = Regression().write(tmp_path / "b"), tmp_path / "s", tmp_path / "out"
    x, y = samples(COUNT)
    for name, count in (("own", COUNT), ("less", COUNT - 1)):
        np.savez(tmp_path / f"{name}.npz", x=x[:count], y=y[:count])
    assert called(capsys, "train", folder, "0.5", tmp_path / "own.npz", "--out", state, "--seed", 5)[0] == 0
    older = tmp_path / "older"
    kept = {name: tensor for name, tensor in safetensors.numpy.load_file(state).items() if not name.startswith("now:")}
    safetensors.numpy.save_file(kept, older, {k: v for k, v in header(state).items() if k not in ("order", "data")})
    for data, before, extra, said in (
        ("own", state, (), ""),
        ("own", state, ("--seed", 6), "of seed 5, not 6: training shuffles"),
        ("less", state, (), "of other samples: training shuffles the samples anew"),
        ("own", older, (), "of an earlier version, without an order of samples: training"),
    ):
        order = ("train", folder, "0.5", tmp_path / f"{data}.npz", "--out", out, "--state", before, *extra)
        status, _, errors = called(capsys, *order)
        assert (status, said in errors, bool(errors)) == (0, True, bool(said)), errors


@pytest.mark.parametrize("order", ["5", "5 99 1 1 1", "5 0 1 1", "5 0 1 1 x", "5 0 1 1 1:123456789", "5 0 1 1 1\n"])
def test_a_damaged_order_is_refused(order, tmp_path, capsys):
    folder, state, data = Regression().write(tmp_path / "b"), tmp_path / "s", tmp_path / "own.npz"
    x, y = samples(COUNT)
    np.savez(data, x=x, y=y)
    assert called(capsys, "train", folder, "0.5", data, "--out", state, "--seed", 5)[0] == 0
    safetensors.numpy.save_file(safetensors.numpy.load_file(state), state, {**header(state), "order": order})
    status, _, errors = called(capsys, "train", folder, "0.5", data, "--out", tmp_path / "no", "--state", state)
    assert (status, "damaged" in errors) == (2, True), errors


def test_momentum_of_another_shape_is_refused_and_what_steps_do_not_change_is_ignored(tmp_path):
    model = Regression()
    bundle, (x, y) = read_bundle(model.write(tmp_path / "b")), samples(COUNT)
    state = train(bundle, "0.5", x, y, HOW)
    other = replace(state, tensors={**state.tensors, "now:lr": np.float32(9), "now:p.fc.bias": np.zeros(7, np.float32)})
    equal(train(bundle, "0.5", x, y, HOW, other), train(bundle, "0.5", x, y, HOW, state))
    wrong = replace(state, tensors={**state.tensors, "now:m.fc.bias": np.zeros(7, np.float32)})
    with pytest.raises(Exception, match="--state: now:m.fc.bias: missing or of another shape"):
        train(bundle, "0.5", x, y, HOW, wrong)


def test_an_update_has_nothing_of_the_order(tmp_path, capsys):
    folder = FLIPPED.write(tmp_path / "b")
    edit_train(folder, augment="flip")
    x, y = samples(COUNT, FLIPPED.shape)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    assert called(capsys, "train", folder, "0.5", tmp_path / "own.npz", "--out", tmp_path / "s")[0] == 0
    assert called(capsys, "update", tmp_path / "s", "--out", tmp_path / "u")[0] == 0
    assert not {"order", "data"} & header(tmp_path / "u").keys()
    assert not [name for name in safetensors.numpy.load_file(tmp_path / "u") if name.startswith("now:")]
