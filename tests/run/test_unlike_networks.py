"""Tiers with networks of their own: what is refused before anything starts, and what a run with them is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgefl import RunConfig
from edgefl.client.client import Clients
from edgefl.client.messages import task_fields, task_of
from edgefl.data.digits import digits
from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.models.base import Architecture
from edgefl.models.custom import architecture_in
from edgefl.models.unlike import Unlike
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.registry import methods
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.testing.cases import images
from edgefl.wire.message import read_header, write_header
from edgefl.wire.payload import encode
from tests.command import told

SMALL = """
from torch import nn

def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))

def wide():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))
"""
KEYS: dict[str, Any] = {
    "rounds": 2, "clients": 4, "per_round": 4, "local_epochs": 1, "data_share": 0.5, "conditions": "ideal", "tier_assignment": "uniform",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with networks of the user's own."""
    (tmp_path / "mobile.py").write_text(SMALL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BAD = [
    (
        ["--tier", "1=mlp", "--tier", "0.25=mobile.py:wide"],
        "tier 0.25: model mobile.py:wide does not take samples 1x8x8 of digits",
    ),
    (["--tier", "1=mlp", "--tier", "0.25=nowhere:x"], "tier 0.25: nowhere:x: no module named 'nowhere'"),
    (["--tier", "1=mlp", "--tier", "0.25=mlb"], "unknown model 'mlb'; did you mean 'mlp'?"),
    (["--tier", "1=mlp", "--tier", "0.25=gpt2-small"], "tier 0.25: model: gpt2-small takes token ids, and digits has images"),
    (["--tier", "1=mlp", "--tiers", "1,0.5"], "tier: no network for tier 0.5 of tiers; give it one, or leave tiers out"),
    (["--tier", "0.5=mlp"], "tier: no network for tier 1, the whole model, to which relative deadlines refer; give it too"),
    (["--tier", "1=mlp", "--tier", "1=cnn-digits"], "two networks for tier 1, mlp and cnn-digits; give one"),
    (["--tier", "1=mlp", "--tier", "1.0=cnn-digits"], "tier: two networks for tier 1, mlp and cnn-digits; give one"),
    (["--tier", "1=mlp", "--model", "cnn-digits"], "model: got cnn-digits, and tier 1 has the network mlp; leave model out"),
    (["--tier", "1=mlp", "--tiers", "auto"], "tiers: auto looks for sizes of one network"),
    (["--tier", "1=mlp", "--weights", "w.safetensors"], "weights: a file has the tensors of one network"),
    (["--tier", "mlp"], "'mlp' is not of the form RATIO=NETWORK, such as 0.25=net.py:make"),
    (["--tier", "big=mlp"], "tier: expected the ratio of a tier, such as 0.25, got 'big'"),
    (["--tier", "1=mlp", "--tier", "2=mlp"], "tier: a tier lies in (0, 1], got 2"),
    (
        ["--tier", "1=mlp", "--tier", "0.5=cnn-digits", "--method", "heterofl"],
        "tier: HeteroFL makes the networks of all tiers from one;",
    ),
    (["--method", "feddf", "--permute-labels"], "permute_labels: a label means another class to every client"),
    (["--method", "feddf", "--method-option", "public_share=1"], "method_options.public_share must be below 1, got 1"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=lambda found: " ".join(found) if isinstance(found, list) else "")
def test_what_does_not_fit_is_one_message_and_nothing_starts(flags: list[str], message: str, here: Path) -> None:
    given = [] if "--method" in flags else ["--method", "feddf"]
    status, output, errors = told("simulate", *given, *flags, "--out", "out")
    assert (status, output, (here / "out").exists()) == (2, "", False), errors
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.fixture
def two(here: Path) -> RunConfig:
    """A run whose tiers are a reference network and a user's own."""
    return RunConfig(method="feddf", tier={"1": "cnn-digits", 0.25: "mobile.py:net"}, **KEYS)


def test_the_networks_name_the_tiers_and_keep_their_own_costs(two: RunConfig) -> None:
    run = prepare(two)
    assert run.tiers == (Tier(1.0), Tier(0.25))
    assert run.config.model == "cnn-digits"
    assert prepare(run.config).config == run.config  # as a resumed run reads it
    alone = {Tier(1.0): Architecture("cnn-digits", (1, 8, 8), 10), Tier(0.25): run.architecture.at(0.25)}
    state = run.first_state()
    for tier, network in alone.items():
        cost, own = run.costs.of(tier), tier_cost(create("fedavg"), network, Tier(1.0), run.clients.task.training)
        assert (cost.params, cost.macs_forward, cost.macs_backward) == (own.params, own.macs_forward, own.macs_backward)
        assert cost.training_memory_bytes == own.training_memory_bytes
        sent = run.method.submodel(state, tier, generator(0)).tensors
        assert cost.download_bytes == cost.upload_bytes == len(encode(sent))


def test_another_process_builds_the_same_networks(two: RunConfig) -> None:
    networks = prepare(two).architecture
    again = architecture_in(networks.fields())
    for width in (1.0, 0.25):
        assert [*again.skeleton(width).state_dict()] == [*networks.skeleton(width).state_dict()]
    assert networks.described()["tiers"]["0.25"]["model"] == "mobile.py:net"
    with pytest.raises(ConfigError, match=r"tier 0\.5: has no network; there are 1=cnn-digits, 0\.25=mobile\.py:net"):
        networks.build(0.5)


def test_public_samples_belong_to_no_client() -> None:
    data, whole = load("digits", public_share=0.1), digits()
    assert data.public is not None
    assert len(data.train) + len(data.public) == len(whole.train)
    together = np.concatenate([data.train.x, data.public.x]).reshape(len(whole.train), -1)
    assert np.array_equal(np.unique(together, axis=0), np.unique(whole.train.x.reshape(len(whole.train), -1), axis=0))
    assert set(data.public.y.tolist()) == set(range(10))
    assert load("digits").public is None
    facts, arrays = data.apart()  # as worker processes get them
    assert json.loads(json.dumps(facts))["name"] == "digits"
    worker = Dataset.together(facts, arrays)
    assert np.array_equal(worker.train.x, data.train.x)
    assert worker.public is None


def test_a_worker_that_reads_the_data_itself_has_the_same_clients(two: RunConfig) -> None:
    run = prepare(two)
    task = task_of(read_header(write_header("task", task_fields(run.clients.task)), "task")[0])
    own = Clients(task)
    assert [own.shards.size(client) for client in range(4)] == [run.clients.shards.size(client) for client in range(4)]
    assert np.array_equal(own.shards.train(3).x, run.clients.shards.train(3).x)
    assert own.task.architecture.described() == run.architecture.described()


def test_networks_that_predict_other_things_do_not_meet() -> None:
    tokens = Architecture("gpt2-small", (16,), 10), Architecture("lstm-shakespeare", (16,), 10)
    with pytest.raises(
        ConfigError,
        match=r"tier 0\.5: lstm-shakespeare predicts .*, and gpt2-small of tier 1 16 labels a sample, one for each token",
    ):
        Unlike.of({"1": tokens[0], "0.5": tokens[1]})


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.load(name).unlike_networks])
def test_a_method_that_says_so_trains_each_network_as_it_is(name: str) -> None:
    networks = Unlike.of({"1": Architecture("cnn-digits", (1, 8, 8), 4), "0.5": Architecture("mlp", (1, 8, 8), 4)})
    method, x = create(name), images(5, 0)[0]
    several = len(method.default_tiers) > 1
    for tiers in [(Tier(1.0), Tier(0.5))] if several else [(Tier(1.0),), (Tier(0.5),)]:
        state = method.init(networks, tiers, generator(0))
        for tier in tiers:
            own = networks.skeleton(tier.ratio)
            assert upload_shapes(method, networks, tier).keys() <= {*own.state_dict(), "affinity"}
            trained = dict(method.deploy(state, tier).named_parameters())
            assert {key: t.shape for key, t in trained.items()} == {key: t.shape for key, t in own.named_parameters()}
            assert torch.isfinite(method.deploy(state, tier)(x)).all()
