"""Graphs are decomposed only where they must be: what is replaced in place computes the same, and the rest takes torch's own way."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from exported import forward_graph
from torch import nn
from torch.export import ExportedProgram

from edgefl.onnxgrad import training_step


class Plain(nn.Module):
    """Every operation that is replaced in place: ``x`` (n, 3, 4, 4) → (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 2, generator=torch.Generator().manual_seed(1)))
        self.grouped = nn.GroupNorm(3, 3)
        self.kept = nn.BatchNorm2d(3)
        self.kept.running_mean = torch.tensor([0.5, -1.0, 2.0])
        self.kept.running_var = torch.tensor([0.25, 4.0, 1.5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.group_norm(self.grouped(self.kept(x)), 1, eps=0.1)
        x = F.batch_norm(x, None, None, training=True)
        x = (x.flatten(1) @ torch.eye(48, dtype=x.dtype)).flatten(1)
        return (F.linear(x, self.weight.T) + self.weight.flatten().square().sum()).flatten(1)


class Diagonal(nn.Module):
    """An operation without a form that is not replaced in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) @ torch.eye(3, 2, dtype=x.dtype)


@pytest.fixture
def decomposed(monkeypatch):
    """Return a list that grows by one for each graph that torch decomposes."""
    calls, original = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda self, *args: calls.append(self) or original(self, *args))
    return calls


@pytest.mark.parametrize(("module", "times"), [(Plain(), 0), (Diagonal(), 1)])
@pytest.mark.parametrize("batch", [1, 5])
def test_graphs_compute_what_the_network_does_however_they_were_made(module, times, batch, decomposed):
    graph = forward_graph(module.eval(), (3, 4, 4))
    assert len(decomposed) == times
    x = torch.randn(batch, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = module(x).numpy()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


POOLS = {
    "a window in the padding": nn.AvgPool2d(2, 2, 1, ceil_mode=True, count_include_pad=False),
    "padding that counts": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "a cut window": nn.AvgPool2d((3, 2), ceil_mode=True),
    "a maximum in the padding": nn.MaxPool2d(2, 2, 1, ceil_mode=True),
    "a cut maximum": nn.MaxPool2d(3, (2, 3), (1, 0), ceil_mode=True),
    "a divisor": nn.AvgPool2d((3, 2), (2, 1), 1, divisor_override=4),
    "a dilated maximum": nn.MaxPool2d(2, 2, 1, 2, ceil_mode=True),
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("size", [(4, 4), (5, 4), (6, 7)])
def test_the_last_windows_of_a_pooling_are_those_of_torch(kind, size):
    """torch drops a last window that begins in the padding; ONNX keeps it."""
    module = nn.Sequential(POOLS[kind], nn.Flatten()).eval()
    graph = forward_graph(module, (2, *size))
    onnx.checker.check_model(onnx.load_model_from_string(graph), full_check=True)
    x = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(2))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["a window in the padding", "padding that counts", "a cut maximum"])
def test_such_a_pooling_trains(kind):
    """Its graph is compared with torch when it is made."""
    module = nn.Sequential(nn.Conv2d(1, 2, 1), POOLS[kind], nn.Flatten())
    batch = {"x": torch.zeros(2, 1, 6, 6), "y": torch.tensor([0, 2])}
    assert training_step(module, lambda own, x, y: F.cross_entropy(own(x), y), batch).steps


def test_statistics_that_change_are_left_to_torch(decomposed):
    """A graph that writes over what it reads is not functional; the exporter makes it so."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1).relu_()[:, :2] * 2

    forward_graph(Counting().eval(), (3, 4, 4))
    assert len(decomposed) == 1
