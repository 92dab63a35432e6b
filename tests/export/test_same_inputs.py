"""One contract for inputs: every client prepares the same file once, and has torch's losses and weights after three steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from handmade import changed
from python_client import ran
from test_cpp_client import program  # noqa: F401 - a fixture
from torch import nn
from ts_client import batch

from edgefl import export_network

COUNT, STEPS, LR = 16, 3, 0.1
MEAN, STD = [120.0, 60.0], [50.0, 25.0]
RAW = np.random.default_rng(0).integers(0, 255, (COUNT, 2, 4, 4))
Y = np.arange(COUNT) % 3
GIVEN = {
    "float32": RAW.astype(np.float32),
    "float64": RAW.astype(np.float64),
    "uint8": RAW.astype(np.uint8),
    "uint16": (RAW * 257).astype(np.uint16),
}
"""The same values in the types that a file may have."""


def network() -> nn.Sequential:
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def of_torch() -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses and the tensors of three steps on all samples, prepared once."""
    x = torch.tensor((RAW - np.reshape(MEAN, (2, 1, 1))) / np.reshape(STD, (2, 1, 1)), dtype=torch.float32)
    module, losses = network(), []
    steps = torch.optim.SGD(module.parameters(), LR)
    for _ in range(STEPS):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(module(x), torch.tensor(Y))
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses, {name: tensor.numpy() for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("same") / "bundle"
    note = {"scale": 1.0, "raw": "float32", "mean": MEAN, "std": STD}
    more = {"optimizer": "sgd", "lr": LR, "batch_size": COUNT, "epochs": STEPS, "sign": False}
    export_network(network(), torch.tensor(RAW[:4] / 50, dtype=torch.float32), out, preprocessing=note, **more)
    return out


def same(found: dict[str, np.ndarray]) -> None:
    for name, tensor in of_torch()[1].items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", GIVEN)
def test_python_and_node_train_what_torch_does(ts, bundle, tmp_path, kind, capsys):
    data = tmp_path / "own.npz"
    np.savez(data, x=GIVEN[kind], y=Y)
    for client in ("python", "node"):
        state = tmp_path / client
        command = ("train", bundle, "1", data, "--out", state, "--allow-unsigned")
        status, _, errors = ran(capsys, *command) if client == "python" else batch(ts, [command])[0]
        assert (status, errors) == (0, "")
        same(safetensors.numpy.load_file(state))


@pytest.mark.parametrize("kind", GIVEN)
def test_cpp_trains_what_torch_does(program, bundle, tmp_path, kind):  # noqa: F811 - the fixture
    manifest = json.loads((bundle / "manifest.json").read_text())
    if manifest["tiers"][0]["train"]["no_update"]:
        changed(bundle, tiers=[{**tier, "train": {**tier["train"], "no_update": ""}} for tier in manifest["tiers"]])
    data = tmp_path / "own.safetensors"
    safetensors.numpy.save_file({"x": GIVEN[kind], "y": Y}, data)
    out, state = tmp_path / "update", tmp_path / "state"
    command = [program, "train", bundle, "1", data, "--out", out, "--state", state, "--allow-unsigned"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(word) for word in done.stdout.replace(",", "").split() if "." in word]
    assert losses == pytest.approx([of_torch()[0][0], of_torch()[0][-1]], rel=1e-4)
    same(safetensors.numpy.load_file(state))
