"""Buffers of every type keep the values of the weights through export, device, update and round, as torch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import edgefl
from edgefl.bundle.manifest_file import read
from edgefl.planning.network import architecture_of
from edgefl.run.network import with_weights
from tests.run.test_export_line import played

HERE = "tests.run.test_typed_buffers"
WIDTH = 8
TYPES = {
    "bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "float32": torch.float32,
}  # fmt: skip


class Typed(nn.Module):
    """Scales its features by a buffer of each type, and picks them by an index."""

    def __init__(self) -> None:
        super().__init__()
        for name, dtype in TYPES.items():
            self.register_buffer(name, torch.ones(WIDTH, dtype=dtype))
        self.register_buffer("index", torch.arange(WIDTH))
        self.features, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.norm, self.mean = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mean(self.norm(self.features(x)))[:, self.index]
        for number, name in enumerate(TYPES):
            x = x + torch.sin(x + number) * getattr(self, name).float()
        return self.head(x)


def trained() -> Typed:
    """A network whose buffers are not those that it begins with."""
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    network = Typed()
    for number, (name, dtype) in enumerate(TYPES.items()):
        getattr(network, name).copy_((torch.arange(WIDTH) + number) % (2 if dtype is torch.bool else 3))
    network.index.copy_(torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]))
    for _ in range(3):
        network.train()(torch.randn(16, 4) * 2 + 1)
    return network.eval()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "w.safetensors"
    save_file(dict(trained().state_dict()), path)
    return path


@pytest.fixture(scope="module")
def bundle(weights: Path) -> Path:
    return edgefl.export_network(f"{HERE}:Typed", torch.zeros(2, 4), weights.parent / "b", weights=weights, sign=False)


def logits(graph: Path, x: np.ndarray, more: dict[str, np.ndarray] = {}) -> np.ndarray:  # noqa: B006 - only read
    session = ort.InferenceSession(graph)
    (found,) = session.run(None, {value.name: ({"x": x} | more)[value.name] for value in session.get_inputs()})
    return found


X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def of_torch(network: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(X)).numpy()


def test_the_architecture_has_every_buffer_of_the_file(weights: Path) -> None:
    architecture = with_weights(architecture_of(f"{HERE}:Typed", "4"), str(weights), False)
    stored = load_file(weights)
    for name, buffer in architecture.build().named_buffers():
        assert buffer.dtype == stored[name].dtype
        assert torch.equal(buffer, stored[name]), name


def test_graphs_infer_with_every_buffer_of_the_file(bundle: Path) -> None:
    stored = safetensors.numpy.load_file(bundle / "1/parameters.safetensors")
    values = {f"{kind}.{name}": value for kind in "psf" for name, value in stored.items()}
    for graph, more in (("forward", {}), ("predict", values)):
        np.testing.assert_allclose(logits(bundle / f"1/{graph}.onnx", X, more), of_torch(trained()), atol=1e-5, err_msg=graph)


def test_the_next_round_has_them_too(bundle: Path, tmp_path: Path) -> None:
    result = played(bundle, tmp_path / "next", {"a": 0.0}, sign=False)
    np.testing.assert_allclose(logits(result.folder / "bundle/1/forward.onnx", X), of_torch(trained()), atol=1e-5)


def stepped(network: nn.Module, x: np.ndarray, y: np.ndarray, lr: float, momentum: float) -> dict[str, np.ndarray]:
    steps = torch.optim.SGD(network.train().parameters(), lr, momentum)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        steps.step()
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def test_steps_change_statistics_as_torch_does(bundle: Path) -> None:
    """With momentum None, torch takes the mean over all batches that it has counted."""
    (tier,) = read(bundle).tiers
    reference: dict[str, Any] = safetensors.numpy.load_file(bundle / tier.train.reference)
    expected = stepped(trained(), reference["x"], reference["y"], tier.train.lr, tier.train.momentum)
    for name in (*tier.train.trained, *tier.train.statistics):
        np.testing.assert_allclose(reference[f"after:{name}"], expected[name].reshape(-1), atol=1e-5, err_msg=name)
