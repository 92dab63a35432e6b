"""Runs whose updates travel in fewer bits, whose batches go through in pieces, or whose clients step with Adam."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from edgefl import RunConfig, simulate
from edgefl.client.client import Clients
from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.wire.payload import payload_bytes

BASE = {
    "rounds": 2,
    "clients": 5,
    "per_round": 4,
    "local_epochs": 1,
    "seed": 3,
    "tiers": (1.0, 0.5),
    "partition": "iid",
    "profile": "lab",
    "tier_assignment": "uniform",
    "bundle": False,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs by what differs from the base one, each trained once; beside each the lengths of the payloads that clients sent."""
    done: dict[tuple[tuple[str, object], ...], tuple[Path, list[dict[str, object]], list[int]]] = {}

    def run(**changes: object):
        key = tuple(sorted(changes.items()))
        if key not in done:
            sent: list[int] = []
            play = Clients.run

            def noted(self, job):
                outcome = play(self, job)
                sent.append(len(outcome.payload))
                return outcome

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Clients, "run", noted)
                folder = tmp_path_factory.mktemp("runs") / "run"
                simulate(RunConfig.of({**BASE, **changes}), folder)
            lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
            clients = [client for line in lines for client in line["clients"] if client["status"] == "trained"]
            done[key] = folder, clients, sent
        return done[key]

    return run


def summary_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "summary.json").read_text())


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    return {name.removeprefix("model/"): tensor for name, tensor in stored.items() if name.startswith("model/")}


def difference(one: Path, other: Path) -> float:
    """The largest difference of two models' weights."""
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize("codec", ["fp16", "int8", "sparse"])
def test_upload_bytes_are_the_lengths_of_the_payloads(runs, codec):
    folder, clients, sent = runs(codec=codec)
    assert len(clients) == len(sent) == 8
    assert sorted(sent) == sorted(client["upload_bytes"] for client in clients)
    planned = {row["tier"]: row for row in summary_of(folder)["tiers"]}
    shapes = {t: download_shapes(create("fedhm"), Architecture("cnn-digits", (1, 8, 8), 10), Tier(float(t))) for t in planned}
    for client in clients:
        assert planned[client["tier"]]["upload_bytes"] == payload_bytes(shapes[client["tier"]], codec)
        assert client["download_bytes"] == payload_bytes(shapes[client["tier"]])
        if codec == "sparse":  # what is planned is the most that it can be: nothing of a trained network is zero
            assert client["upload_bytes"] <= planned[client["tier"]]["upload_bytes"]
        else:
            assert client["upload_bytes"] == planned[client["tier"]]["upload_bytes"]


@pytest.mark.parametrize(("codec", "share"), [("fp16", 0.5), ("int8", 0.27)])
def test_uploads_are_a_half_and_a_quarter_and_the_headers(runs, codec, share):
    up = sum(client["upload_bytes"] for client in runs(codec=codec)[1])
    full = sum(client["upload_bytes"] for client in runs()[1])
    assert 0.25 < up / full < share + 0.01


@pytest.mark.parametrize("codec", ["fp16", "int8", "sparse"])
def test_fewer_bits_do_not_destroy_accuracy(runs, codec):
    exact = summary_of(runs()[0])["global_accuracy"]
    assert exact > 0.3  # ten classes: chance is 0.1
    assert summary_of(runs(codec=codec)[0])["global_accuracy"] >= exact - 0.05


def test_sparse_carries_dense_weights_to_the_bit(runs):
    assert difference(runs(codec="sparse")[0], runs()[0]) == 0.0


def test_the_rounding_of_fewer_bits_arrives(runs):
    exact = runs()[0]
    assert 0 < difference(runs(codec="fp16")[0], exact) < difference(runs(codec="int8")[0], exact) < 0.1


def test_one_and_two_workers_give_the_same_bits_with_int8(runs, tmp_path):
    simulate(RunConfig.of({**BASE, "codec": "int8", "workers": 2}), tmp_path / "pool")
    assert (tmp_path / "pool" / "model.safetensors").read_bytes() == (runs(codec="int8")[0] / "model.safetensors").read_bytes()


def test_micro_batches_train_the_model_of_whole_ones(runs):
    """Group normalisation uses one sample alone, so that only the order of sums differs: one round, as kinks of ReLUs amplify rounding."""
    whole, pieces = runs(rounds=1)[0], runs(rounds=1, micro_batch=8)[0]
    start = create("fedhm").init(Architecture("cnn-digits", (1, 8, 8), 10), (Tier(1.0),), generator(3, "init")).tensors
    moved = max(float((weights_of(whole)[name] - start[name]).abs().max()) for name in start)
    assert 0 < difference(whole, pieces) < 1e-3 * moved


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 8}, {"optimizer": "adam", "lr": 0.002}, {"optimizer": "sgd"}])
def test_measured_training_memory_is_the_predicted_one(runs, changes):
    folder, clients, _ = runs(**changes)
    planned = {row["tier"]: row["training_memory_bytes"] for row in summary_of(folder)["tiers"]}
    assert {client["tier"] for client in clients} == planned.keys()
    for client in clients:
        assert client["samples"] >= 32
        assert client["measured_training_memory_bytes"] == pytest.approx(planned[client["tier"]], rel=0.01)


def test_adam_learns_and_holds_two_numbers_a_weight(runs):
    adam, sgd = (summary_of(runs(**changes)[0]) for changes in ({"optimizer": "adam", "lr": 0.002}, {"optimizer": "sgd"}))
    assert adam["global_accuracy"] > 0.3
    for with_state, without in zip(adam["tiers"], sgd["tiers"], strict=True):
        assert with_state["training_memory_bytes"] - without["training_memory_bytes"] >= 2 * 4 * with_state["params"]
