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


def written_twice(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    before = y.sum(1, keepdim=True)
    between = y.add_(x).neg_() * 2
    after = y * x
    y.sub_(before)
    return y + between + after + before


def copied(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    before = y * 3
    y.copy_(x * 2)
    return y + before


def seen_in_a_view(y: torch.Tensor) -> torch.Tensor:
    part = y[:, :1]
    y.relu_()
    return y + part  # which has changed too


def written_in_a_view(y: torch.Tensor) -> torch.Tensor:
    y[:, 1:].relu_()
    return y * 2


def of_a_narrower_type(y: torch.Tensor) -> torch.Tensor:
    y.mul_(torch.ones(1, dtype=torch.float64))
    return y + 1


OPERATIONS = {
    "to a type": lambda x: (x > 0).to(torch.float32) * x + x.to(torch.float32),
    "to another's type": lambda x: (x > 0).to(x) + x.to("cpu"),
    "to a type by name": lambda x: x.long().float() + (x > 0).double().float(),
    "bits": lambda x: ((x.long() & 6) | 1) ^ (x.long() ^ 3),
    "bits of two": lambda x: (x.long() & (x.long() + 1)) | 8,
    "both": lambda x: (x > 0) & (x < 1) | (x < -1) ^ (x > 2),
    "comparisons": lambda x: torch.greater(x, 0) | torch.less_equal(x, -1) | torch.not_equal(x, x.mean()),
    "names": lambda x: torch.absolute(x).clip(0.1, 2.0) + torch.arctan(x) - torch.negative(x) + torch.fix(x) + torch.divide(x, 3),
    "arcs": lambda x: torch.arcsin(x.tanh()) + torch.arccos(x.tanh()) + torch.arcsinh(x) + torch.positive(x),
    "written over": lambda x: F.relu_(F.conv2d(x, KERNEL.transpose(0, 1))) + 1,
    "written over twice, and read in between": lambda x: written_twice(x + 1, x),
    "written over in a clone": lambda x: copied(x.clone(), x),
    "a mean by pooling": lambda x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_avg_pool1d(x.flatten(2), 1).unsqueeze(3),
    "means of windows by pooling": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "a norm by the root of squares": lambda x: (
        F.rms_norm(x, (4, 4), KERNEL[0, :4, 0, :1].expand(4, 4) * 1.0, 0.1) + F.rms_norm(x, (4,))
    ),
    "a deviation": lambda x: x / x.std((2, 3), keepdim=True) + x.var(1, keepdim=True, correction=0),
    "losses": lambda x: F.huber_loss(x, x * 2, reduction="none") + F.smooth_l1_loss(x, x.flip(1), reduction="none", beta=0.5),
    "losses of logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none") + 1 - F.l1_loss(x, -x),
    "a convolution of the same size": lambda x: F.conv2d(x, KERNEL.transpose(0, 1), padding="same"),
    "a transposed convolution": lambda x: F.conv_transpose2d(x, KERNEL, BIAS, (2, 1), 1, (1, 0), 1, (1, 2)),
    "one in groups": lambda x: F.conv_transpose2d(x, KERNEL[:, :2], stride=2, groups=3),
    "one of a line": lambda x: F.conv_transpose1d(x.flatten(2), KERNEL[..., 0], stride=3, output_padding=1),
}
KERNEL = torch.linspace(-1, 1, 3 * 5 * 3 * 3).reshape(3, 5, 3, 3)
BIAS = torch.linspace(-1, 1, 5)


class Applied(nn.Module):
    """One operation: ``x`` (n, 3, 4, 4) → (n, …)."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation = OPERATIONS[operation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(x * 2).flatten(1) * 1.0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_replaced_in_place_by_others_that_compute_the_same(operation, decomposed):
    module = Applied(operation).eval()
    graph = forward_graph(module, (3, 4, 4))
    assert not decomposed
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", [seen_in_a_view, written_in_a_view, of_a_narrower_type])
def test_what_a_second_name_may_show_is_left_to_torch(operation, monkeypatch, decomposed):
    monkeypatch.setitem(OPERATIONS, "of the test", operation)
    module = Applied("of the test").eval()
    graph = forward_graph(module, (3, 4, 4))
    assert len(decomposed) == 1
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


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
