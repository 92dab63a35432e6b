"""The key clip_gradient: a method's own value, "none", values that are refused, and the bundle that devices train with."""

from __future__ import annotations

import json
import re
from typing import ClassVar

import pytest
import torch
from torch import nn

import edgefl
from edgefl.bundle.manifest_file import read
from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.methods.fedavg import FedAvg
from edgefl.registry import methods
from edgefl.run.prepare import prepare
from tests.command import told

SMALL = {
    "dataset": "digits",
    "clients": 4,
    "rounds": 1,
    "local_epochs": 1,
    "model": "mlp",
    "conditions": "ideal",
    "data_share": 0.1,
}


@pytest.mark.parametrize(
    ("keys", "recorded", "trained"),
    [
        ({"method": "heterofl"}, 1.0, 1.0),
        ({"method": "heterofl", "clip_gradient": "none"}, "none", None),
        ({"method": "heterofl", "clip_gradient": 5}, 5.0, 5.0),
        ({"method": "origdrop"}, None, None),
        ({"method": "fedavg", "tiers": (1.0,)}, None, None),
        ({"method": "fedavg", "tiers": (1.0,), "clip_gradient": "none"}, None, None),
        ({"method": "fedavg", "tiers": (1.0,), "clip_gradient": 0.25}, 0.25, 0.25),
    ],
)
def test_a_method_s_own_norm_is_the_default_and_the_run_records_what_was_used(keys, recorded, trained):
    run = prepare(RunConfig.of({**SMALL, **keys}))
    assert run.config.clip_gradient == recorded
    assert run.clients.task.training.clip_gradient == trained
    again = prepare(run.config)
    assert again.config == run.config


class Odd(FedAvg):
    title = "Odd"
    clip_gradient: ClassVar[float | None] = -1.0


def test_a_method_whose_own_norm_is_none_is_named(monkeypatch):
    load = methods.load
    monkeypatch.setattr(methods, "load", lambda name: Odd if name == "fedavg" else load(name))
    with pytest.raises(ConfigError, match=r"method fedavg: clip_gradient must be above 0, or 'none', got -1"):
        prepare(RunConfig.of({**SMALL, "method": "fedavg", "tiers": (1.0,)}))


@pytest.mark.parametrize("value", ["0", "-1", "nan", "off", ""])
def test_a_bad_value_exits_with_2(value, tmp_path):
    status, _, errors = told("simulate", "--clip-gradient", value, "--out", tmp_path / "run")
    assert status == 2
    assert re.search("clip.gradient", errors)
    assert "Traceback" not in errors


@pytest.mark.parametrize(("method", "norm"), [("heterofl", 1.0), (None, None)])
def test_a_bundle_says_by_which_norm_its_graphs_clip(method, norm, tmp_path):
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    bundle = edgefl.export_network(network, torch.randn(2, 4), tmp_path / "bundle", method=method)
    edgefl.verify(bundle)
    assert [tier.train.clip_gradient for tier in read(bundle).tiers] == [norm] * len(read(bundle).tiers)
    (first, *_) = json.loads((bundle / "manifest.json").read_text())["tiers"]
    assert first["train"].get("clip_gradient") == norm
    assert ("clip_gradient" in first["train"]) == (norm is not None)


def test_devices_and_clients_of_a_run_clip_alike(tmp_path):
    """Both runtimes, and the bundle, whose reference is checked."""
    keys = {**SMALL, "method": "fedhm", "tiers": (1.0, 0.5), "clip_gradient": 0.05}
    found = {}
    for runtime in ("torch", "onnx"):
        edgefl.simulate(RunConfig.of({**keys, "runtime": runtime, "bundle": runtime == "onnx"}), tmp_path / runtime)
        line = json.loads((tmp_path / runtime / "rounds.jsonl").read_text().splitlines()[-1])
        found[runtime] = [client["train_loss"] for client in line["clients"]]
    assert found["onnx"] == pytest.approx(found["torch"], rel=1e-4)
    edgefl.verify(tmp_path / "onnx" / "bundle")
    assert {tier.train.clip_gradient for tier in read(tmp_path / "onnx" / "bundle").tiers} == {0.05}
