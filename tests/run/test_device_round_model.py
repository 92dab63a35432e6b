"""The model after a round with update files: every tensor at its place, by the run's own rules."""

from __future__ import annotations

import json
import re
import weakref

import numpy as np
import pytest
import torch
from command import edgefl
from device_rounds import SMALL, Offered, moved, near, offered

from edgefl import RunConfig
from edgefl.bundle.manifest_file import read
from edgefl.errors import WireError
from edgefl.run import device_round as fedround
from edgefl.run.device_round import fed_round
from edgefl.run.prepare import prepare
from edgefl.util.files import sha256

pytestmark = pytest.mark.usefixtures("bundles_without_graphs")


def test_the_next_model_is_the_mean_by_samples(tmp_path):
    at = offered(tmp_path / "run")
    first, second = moved(at.given(), 1), moved(at.given(), 2)
    at.send("a", first, samples=10)
    at.send("b", second, samples=30)
    result = at.play()
    after = Offered(result.folder)
    near(after.state(), {name: 0.25 * first[name] + 0.75 * second[name] for name in first})
    assert (after.state().round, result.round, read(after.bundle).round) == (4, 4, 4)
    assert read(after.bundle).state_sha256 == sha256((after.run / "model.safetensors").read_bytes())
    assert (after.run / "config.toml").read_bytes() == (at.run / "config.toml").read_bytes()
    assert (result.tiers[0].updates, result.tiers[0].samples, result.refused) == (2, 40, ())
    assert result.accuracy == (result.tiers[0].before, result.tiers[0].after)
    record = json.loads((after.run / "fed-round.json").read_text())
    assert (record["accuracy"]["before"], record["accuracy"]["after"]) == result.accuracy


def test_accuracies_are_those_of_the_samples_that_the_run_evaluates_on(tmp_path):
    at = offered(tmp_path / "run")
    sent = moved(at.given(), 1)
    at.send("a", sent)
    run = prepare(RunConfig.of(SMALL))
    found = []
    for weights in (at.given(), sent):
        network = run.architecture.build().eval()
        network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in weights.items()})
        outputs = network(torch.from_numpy(run.test.x.copy())).detach().numpy()
        found.append(float((outputs.argmax(1) == run.test.y).mean()))
    assert at.play().accuracy == tuple(found)
    assert len(run.test) == 50
    assert found[0] != found[1]


def test_the_metric_of_an_own_loss_is_told_as_it_is(tmp_path):
    at = offered(tmp_path / "run", loss="torch.nn.functional:cross_entropy")
    at.send("a", at.given())
    done = edgefl("fed-round", str(at.bundle), "--updates", str(at.inbox), "--out", str(tmp_path / "next"))
    record = json.loads((tmp_path / "next" / "fed-round.json").read_text())
    before, after = (f"{record['accuracy'][when]:.4g}" for when in ("before", "after"))
    assert (done.returncode, record["metric"]) == (0, {"name": "cross entropy", "better": "lower", "share": False}), done.stderr
    assert f"global model: cross entropy {before} before, {after} after round 4, of 1 update" in done.stdout
    assert done.stdout.count(before) >= 2  # of the global model and of its tier


def test_what_only_large_tiers_hold_is_averaged_over_those(tmp_path):
    at = offered(tmp_path / "run", method="heterofl", tiers=(1.0, 0.5))
    whole, half = moved(at.given("1"), 1), moved(at.given("0.5"), 2)
    upload = at.upload("1")
    at.send("a", {name: whole[name] for name in upload}, samples=1, label="1")
    at.send("b", {name: half[name] for name in at.upload("0.5")}, samples=3, label="0.5")
    after = at.next().state()
    for name in upload:
        corner = tuple(slice(0, size) for size in half[name].shape)
        # HeteroFL averages over clients, whatever they have; the classifier's bias is whole in every tier.
        expected = whole[name].copy()
        found = after.model.tensors[name].numpy()
        inside = found[corner]
        weight = (inside - whole[name][corner]) / (half[name] - whole[name][corner])
        assert np.allclose(weight, weight.flat[0], atol=1e-2)
        assert weight.flat[0] in (pytest.approx(0.5, abs=1e-2), pytest.approx(0.75, abs=1e-2))
        expected[corner] = inside
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_rows_of_the_classifier_are_averaged_over_the_devices_that_state_the_label(tmp_path):
    at = offered(tmp_path / "run", method="heterofl")
    before, first, second = at.given(), moved(at.given(), 1), moved(at.given(), 2)
    at.send("a", {name: first[name] for name in at.upload()}, labels="0,2,9")
    at.send("b", {name: second[name] for name in at.upload()}, labels="2,7")
    after = at.next().state().model.tensors
    for name in ("fc.weight", "fc.bias"):
        expected = before[name].copy()
        expected[[0, 9]], expected[7], expected[2] = first[name][[0, 9]], second[name][7], (first[name][2] + second[name][2]) / 2
        np.testing.assert_allclose(after[name].numpy(), expected, rtol=1e-5, atol=1e-6)
    for name in at.upload().keys() - {"fc.weight", "fc.bias"}:
        np.testing.assert_allclose(after[name].numpy(), (first[name] + second[name]) / 2, rtol=1e-5, atol=1e-6)
    at.send("c", {name: first[name] for name in at.upload()}, labels="3,10")
    with pytest.raises(
        WireError, match=re.escape("c.safetensors: labels: got '3,10', expected labels from 0 to 9, separated by")
    ):
        fed_round(at.bundle, at.inbox, tmp_path / "other")


# FedHM, OrigDrop and OrthDrop truncate: what comes back is their approximation. The others have every entry at a place of its own.
@pytest.mark.parametrize(
    ("method", "tiers"),
    [
        ("fedavg", (1.0,)), ("heterofl", (1.0, 0.5)), ("fjord", (1.0, 0.5)), ("fedpara", (0.5,)), ("lowrank", (0.5,)),
        ("prism", (1.0, 0.4)), ("splitmix", (1.0, 0.5)), ("fedper", (1.0,)),
        ("depthfl", (1.0, 0.5)), ("last-blocks", (1.0, 0.5)), ("last-blocks", (0.5,)),
    ],
)  # fmt: skip
def test_devices_that_change_nothing_leave_the_model_as_it_is(method, tiers, tmp_path):
    more = {"model": "cnn-tiny"} if method in ("depthfl", "last-blocks") else {}  # a perceptron has one block only
    at = offered(tmp_path / "run", method=method, tiers=tiers, **more)
    for tier in tiers:
        at.sends_back(f"of-{tier:g}", label=f"{tier:g}", samples=5)
    near(at.next().state(), {name: tensor.numpy() for name, tensor in at.state().model.tensors.items()})


@pytest.mark.parametrize("method", ["prism", "splitmix"])
def test_every_round_hands_out_another_part(method, tmp_path):
    """What a device changes is changed in the model, at the places that the draw of this very round gave it."""
    at = offered(tmp_path / "run", method=method, tiers=(0.25,))
    touched = []
    for _ in range(3):
        before = at.state().model.tensors
        at.sends_back("a", change=0.1, label="0.25")
        at = at.next()
        changes = {name: (tensor - before[name]).abs() > 1e-4 for name, tensor in at.state().model.tensors.items()}
        touched.append(torch.cat([change.flatten() for change in changes.values()]))
        assert touched[-1].any()
        assert not touched[-1].all()
    assert any(not torch.equal(touched[0], other) for other in touched[1:])


def test_a_server_optimizer_remembers_from_round_to_round(tmp_path):
    at = offered(tmp_path / "run", server_optimizer="avgm", server_lr=0.5)
    start = at.given()
    at.sends_back("a", change=1.0)
    at = at.next()
    near(at.state(), {name: tensor + 0.5 for name, tensor in start.items()})
    at.sends_back("a", change=1.0)  # m = 0.9 · 1 + 1
    near(at.next().state(), {name: tensor + 0.5 + 0.5 * 1.9 for name, tensor in start.items()})


def test_feddyn_subtracts_what_its_server_remembers(tmp_path):
    """h ← h − α/N·Σ(wₖ − w), and the weights are the mean less h/α: with N = 10 and two clients that moved by 1, w + 1 + 0.2."""
    at = offered(tmp_path / "run", objective="dyn", objective_strength=0.5)
    start = at.given()
    for client in "ab":
        at.sends_back(client, change=1.0)
    at = at.next()
    near(at.state(), {name: tensor + 1.2 for name, tensor in start.items()})
    at.sends_back("a", change=1.0)  # h = −0.1 − 0.05
    near(at.next().state(), {name: tensor + 2.2 + 0.3 for name, tensor in start.items()})


def test_scaffold_takes_control_variates_and_hands_out_its_own(tmp_path):
    at = offered(tmp_path / "run", objective="scaffold", optimizer="sgd", weight_decay=0.0)
    names = at.upload()
    assert all(not at.given()[f"control:{name}"].any() for name in names)
    tensors = {name: at.given()[name] for name in names}
    at.send("a", tensors)
    with pytest.raises(WireError, match=r"'control:.*': missing"):
        at.play()
    at.send("a", tensors | {f"control:{name}": np.full_like(tensors[name], 3.0) for name in names})
    at = at.next()
    near(at.state(), tensors)
    assert all(np.allclose(at.given()[f"control:{name}"], 0.3) for name in names)  # 3 / N


def test_a_method_in_phases_goes_on_to_the_next_one(tmp_path):
    """Pufferfish's network is dense for four rounds: after the fourth the bundle has its hybrid."""
    at = offered(tmp_path / "run", method="pufferfish", tiers=(0.25,), method_options={"warmup_rounds": 4})
    at.sends_back("a", label="0.25")
    after = at.next()
    assert after.upload("0.25").keys() != at.upload("0.25").keys()
    assert any(name.endswith(".u.weight") for name in after.upload("0.25"))
    after.sends_back("a", label="0.25")
    near(after.next().state(), {name: tensor.numpy() for name, tensor in after.state().model.tensors.items()})


def test_one_update_is_held_at_a_time(tmp_path, monkeypatch):
    at = offered(tmp_path / "run")
    for client in "abcd":
        at.sends_back(client)
    alive, most = [], []
    read_one = fedround.read_update

    def reading(path, expected):
        update = read_one(path, expected)
        most.append(sum(one() is not None for one in alive))
        alive.append(weakref.ref(next(iter(update.tensors.values()))))
        return update

    monkeypatch.setattr(fedround, "read_update", reading)
    at.play()
    assert len(alive) == 4
    assert max(most) <= 2  # the first, and the one before until the next is there
