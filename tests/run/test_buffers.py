"""Buffers of a user's network: constants travel with an update, what only torch changes keeps devices from sending one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from edgefl import RunConfig, fed_round, simulate, verify
from edgefl.bundle.manifest_file import read
from edgefl.data.mix import load

CLIENT = Path(__file__).parents[2] / "export/python/edgefl_client.py"


class Scaled(nn.Module):
    """Multiplies its features by a constant buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.3, 1.7, 16))
        self.features, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.relu(self.features(x.flatten(1))) * self.scale)


class Counting(Scaled):
    """Counts its passes in training mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.passes += 1
        return super().forward(x)


class Unused(Scaled):
    """Has a buffer without elements."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.empty(0, 16))


def run_of(network, out, method="fedavg"):
    config = RunConfig(
        model=network, method=method, tiers=(1.0,) if method == "fedavg" else (1.0, 0.5), rounds=1, clients=2, per_round=2,
        local_epochs=1, data_share=0.2, conditions="ideal", engine="inline",
    )  # fmt: skip
    return simulate(config, out)


class Causal(Scaled):
    """Attends to earlier rows of a digit, with a mask of minus infinity."""

    def __init__(self):
        super().__init__()
        self.rows, self.attended = nn.Linear(8, 8), nn.Linear(64, 64)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1), persistent=False)

    def forward(self, x):
        y = self.rows(x.flatten(1, 2))
        y = (y @ y.transpose(1, 2) + self.mask).softmax(-1) @ y
        return super().forward(x.flatten(1) + self.attended(y.flatten(1)))


class Highest(Scaled):
    """Learns the largest sum of features, from minus infinity."""

    def __init__(self):
        super().__init__()
        self.register_buffer("highest", torch.tensor(-torch.inf), persistent=False)

    def forward(self, x):
        if self.training:
            self.highest = torch.maximum(self.highest, x.detach().sum((1, 2, 3)).max())
        return super().forward(x)


@pytest.mark.parametrize(
    ("method", "network"), [("fedavg", Scaled), ("heterofl", Scaled), ("fedavg", Causal), ("heterofl", Causal)]
)
def test_a_device_sends_constant_buffers_as_they_are(method, network, tmp_path):
    """A mask of minus infinity is a constant of the graphs, and no tensor of the bundle."""
    run = run_of(network, tmp_path / "run", method).folder
    bundle = run / "bundle"
    assert verify(bundle).no_update == ""
    for tier in read(bundle).tiers:
        assert tier.train.frozen.keys() == {"scale"}
        assert tier.train.upload["scale"] == tier.train.frozen["scale"]
    train = load("digits").train
    np.savez(tmp_path / "data.npz", x=train.x[:200], y=train.y[:200])
    (tmp_path / "inbox").mkdir()
    for tier in read(bundle).tiers:
        state, update = tmp_path / f"{tier.label}.state", tmp_path / "inbox" / f"{tier.label}.safetensors"
        for order in (
            ("train", bundle, tier.label, tmp_path / "data.npz", "--out", state, "--max-seconds", 0),
            ("update", state, "--out", update),
        ):
            subprocess.run([sys.executable, CLIENT, *map(str, order)], check=True, capture_output=True)
    after = fed_round(bundle, tmp_path / "inbox", tmp_path / "next", keep_anyway=True)
    assert verify(after.folder / "bundle").no_update == ""
    assert [row.updates for row in after.tiers] == [1] * len(read(bundle).tiers)
    old, new = (load_file(folder / "model.safetensors") for folder in (run, after.folder))
    name = next(name for name in old if name.endswith("scale"))
    torch.testing.assert_close(new[name], Scaled().scale, rtol=1e-6, atol=0)
    assert not torch.equal(new[name.replace("scale", "head.bias")], old[name.replace("scale", "head.bias")])


def test_a_buffer_that_only_torch_changes_keeps_devices_from_sending_updates(tmp_path):
    bundle = run_of(Counting, tmp_path / "run").folder / "bundle"
    assert verify(bundle).no_update == "FedAvg sends passes, which the network changes while it trains, and its graphs do not"
    assert all(tier.train.upload == {} for tier in read(bundle).tiers)


def test_a_buffer_that_learns_from_infinity_is_the_reason_for_no_bundle(tmp_path):
    assert "highest changes in a step" in run_of(Highest, tmp_path / "run").summary["no_bundle"]


def test_a_buffer_without_elements_is_named(tmp_path):
    result = run_of(Unused, tmp_path / "run")
    assert result.summary["no_bundle"] == "Unused cannot be trained in ONNX: cache has no values; remove it from the network"


class Normed(Scaled):
    """Divides by a norm of its initial weights."""

    def __init__(self):
        super().__init__()
        self.register_buffer("norm", self.features.weight.detach().norm().square())

    def forward(self, x):
        return super().forward(x) / self.norm


def test_a_buffer_may_follow_from_initial_weights(tmp_path):
    run = run_of(Normed, tmp_path / "run")
    assert "no_bundle" not in run.summary
    assert verify(run.folder / "bundle").no_update == ""


class Spectral(nn.Sequential):
    """Estimates the largest singular value of its weights with vectors that each pass in training improves."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))


def test_the_vectors_of_a_spectral_norm_are_statistics(tmp_path):
    run = run_of(Spectral, tmp_path / "run")
    assert "no_bundle" not in run.summary
    assert verify(run.folder / "bundle").no_update == ""
