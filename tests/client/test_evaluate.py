"""How models are evaluated: the same outputs however images lie in memory, and for networks that insist on one layout."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client import evaluate
from edgefl.data.split import Split
from edgefl.models.base import Architecture
from edgefl.util.compute import in_parallel


def images(count: int, shape: tuple[int, ...] = (1, 28, 28)) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


@pytest.mark.parametrize(("model", "shape"), [("cnn-digits", (1, 8, 8)), ("cnn-femnist", (1, 28, 28)), ("resnet9", (3, 32, 32))])
def test_outputs_are_those_of_one_plain_pass(model, shape):
    network, x = Architecture(model, shape, 10).build().eval(), images(37, shape)
    before = {name: tensor.stride() for name, tensor in network.state_dict().items()}
    found = evaluate.outputs(network, x, 8)
    with torch.no_grad():
        np.testing.assert_allclose(found, network(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert {name: tensor.stride() for name, tensor in network.state_dict().items()} == before


class Viewing(nn.Module):
    """What a user may write: it fails where channels lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).view(len(x), -1)


def test_a_network_that_views_its_features_is_evaluated_too():
    network, x = Viewing(), images(5)
    with torch.no_grad():
        assert np.array_equal(evaluate.outputs(network, x, 2)[:2], network(torch.from_numpy(x[:2])).numpy())


def test_an_error_of_the_network_is_not_hidden():
    with pytest.raises(RuntimeError, match="channels"):
        evaluate.outputs(nn.Conv2d(3, 1, 1), images(2), 2)


def test_samples_that_cannot_be_written_are_evaluated_without_a_warning():
    x = images(3)
    x.setflags(write=False)
    assert 0.0 <= evaluate.accuracy(Viewing(), Split(x, np.array([0, 1, 2])), 2) <= 1.0


class Holding(nn.Module):
    """What a user may write: it holds on to something of a batch until it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.flatten(1)[:, :3])
        assert len(self.seen) == 1
        return self.seen.pop()


def hooked() -> nn.Module:
    """Return a network of torch's layers with a user's hook."""
    network, seen = nn.Flatten(), []
    network.register_forward_pre_hook(lambda module, given: seen.append(given))
    network.register_forward_hook(lambda module, given, output: seen.pop()[0].flatten(1))
    return network


@pytest.mark.parametrize("network", [Holding(), nn.Sequential(Holding()), hooked()])
def test_a_network_that_may_keep_something_of_a_batch_gets_one_after_the_other(network, monkeypatch):
    monkeypatch.setattr(evaluate, "in_parallel", lambda tasks, threads: pytest.fail("side by side"))
    found = evaluate.outputs(network, images(40), 2, 4)
    assert np.array_equal(found, images(40).reshape(40, -1)[:, : found.shape[1]])


def test_no_network_or_layer_of_edgefl_changes_in_its_forward_pass():
    found = []
    for name in ("models", "factor"):
        for path in Path(importlib.import_module(f"edgefl.{name}").__path__[0]).rglob("*.py"):
            functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
            stores = [
                node for of in functions if of.name == "forward" for node in ast.walk(of) if isinstance(node, ast.Attribute)
            ]
            found += [f"{path.name}:{node.lineno}" for node in stores if isinstance(node.ctx, ast.Store)]
    assert found == []


@pytest.mark.parametrize(("model", "shape"), [("cnn-fashion", (1, 28, 28)), ("resnet9", (3, 32, 32)), ("lstm-imdb", (80,))])
def test_threads_leave_the_bits_alone(model, shape, monkeypatch):
    network = Architecture(model, shape, 2).build()
    x = images(75, shape) if len(shape) == 3 else np.random.default_rng(1).integers(0, 100, (75, *shape))
    used = []
    monkeypatch.setattr(evaluate, "in_parallel", lambda tasks, threads: used.append(threads) or in_parallel(tasks, threads))
    assert np.array_equal(evaluate.outputs(network, x, 8), evaluate.outputs(network, x, 8, 2))
    assert used == [2]
    assert torch.get_num_threads() == 1


def test_threads_hide_no_error():
    with pytest.raises(RuntimeError, match="mat1"):
        evaluate.outputs(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), images(9), 2, 2)
