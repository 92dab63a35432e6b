"""A network with torch's own BatchNorm: a step in ONNX normalises with the batch, and moves the running statistics as torch does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_case import draw, session_of
from onnx import load_from_string
from torch import nn

from edgefl.models.norm import SingleValues
from edgefl.onnxgrad import Stepper, StepRule, training_step
from edgefl.onnxgrad.loss import loss_graph
from edgefl.onnxgrad.step import training_graphs


def network() -> nn.Sequential:
    """Layers with and without scale and shift, over maps and over vectors."""
    head = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=0.25), nn.ReLU(), nn.BatchNorm2d(3, affine=False, eps=1e-3)]
    return nn.Sequential(*head, nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()


def test_a_step_with_running_statistics() -> None:
    x, y, own = torch.tensor(2 * draw(5, 1, 4, 4) + 1).float(), torch.tensor([0, 2, 1, 1, 0]), network()
    expected = copy.deepcopy(own)
    graph = loss_graph(own, [lambda net, x, y: F.cross_entropy(net(x), y)], {"x": x[:2], "y": y[:2]})
    assert torch.equal(own[1].running_mean, torch.zeros(3))
    assert not any("forward" in vars(layer) for layer in own)
    session = session_of(load_from_string(training_graphs(graph, StepRule("sgd", 0.0, ()))[0]))
    tensors = {**dict(own.named_parameters()), **dict(own.named_buffers())}
    fed = {role: tensors[name].detach().numpy() for name, role in graph.roles.tensors.items()}
    fed |= {"x": x.numpy(), "y": y.numpy(), "lr": np.array(0.5, np.float32)}
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(None, {value.name: fed[value.name] for value in session.get_inputs()}), strict=True))

    loss = F.cross_entropy(expected(x), y)
    loss.backward()
    torch.optim.SGD(expected.parameters(), 0.5).step()
    after = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    assert len(graph.roles.statistics) == 6
    for name, role in graph.roles.tensors.items():
        np.testing.assert_allclose(found[f"{role}.out"], after[name].detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_single_value_per_channel_leaves_the_running_variance() -> None:
    """Its normalised value is the bias, and the mean moves by a tenth of the way."""
    own = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    graphs = training_step(own, lambda net, x, y: (net(x) - y).square().mean(), {"x": torch.zeros(3, 2), "y": torch.zeros(3, 2)})
    first = {
        "p.0.weight": [1.0, -2.0], "p.0.bias": [3.0, -1.0], "s.0.running_mean": [1.0, 0.0], "s.0.running_var": [0.5, 4.0],
        "p.1.weight": [[1.0, 2.0], [0.0, 1.0]],
    }  # fmt: skip
    stepper = Stepper(graphs, {name: np.array(value, np.float32) for name, value in first.items()}, 0.5)
    x, y = np.array([[2.0, -5.0]], np.float32), np.zeros((1, 2), np.float32)
    assert stepper.step(x, y) == pytest.approx(1.0)  # outputs 3 - 2 and -1
    after = stepper.tensors()
    np.testing.assert_allclose(after["s.0.running_mean"], [1.1, -0.5], rtol=1e-6)
    np.testing.assert_allclose(after["s.0.running_var"], [0.5, 4.0], rtol=1e-6)
    np.testing.assert_allclose(after["p.0.weight"], [1, -2])
    np.testing.assert_allclose(after["p.0.bias"], [2.5, -1.5])  # gradients 1, and 2 - 1

    alone = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    alone.load_state_dict({name[2:]: torch.tensor(value) for name, value in first.items()}, strict=False)
    with SingleValues():
        (alone(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean().backward()
    torch.optim.SGD(alone.parameters(), 0.5).step()
    tensors = {**dict(alone.named_parameters()), **dict(alone.named_buffers())}
    for name, value in after.items():
        np.testing.assert_allclose(value, tensors[name[2:]].detach(), rtol=1e-6, err_msg=name)


class Activated(nn.BatchNorm2d):
    """A layer like timm's BatchNormAct2d: it normalises by itself, then activates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        own = self.running_mean, self.running_var, self.weight, self.bias
        return F.relu(F.batch_norm(x, *own, self.training, self.momentum or 0.0, self.eps))


class Doubled(nn.BatchNorm2d):
    """A layer that adds something to torch's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x).tanh()


@pytest.mark.parametrize(
    "layer", [Activated(3), Doubled(3, momentum=0.3), nn.BatchNorm2d(3, momentum=None), Doubled(3, momentum=None)], ids=str
)
def test_subclasses_and_means_over_all_batches(layer: nn.BatchNorm2d) -> None:
    """What a subclass adds is in the graph; with momentum None the statistics are means over three batches."""
    own = nn.Sequential(nn.Conv2d(1, 3, 3), copy.deepcopy(layer), nn.Flatten(), nn.Linear(27, 3)).train()
    expected = copy.deepcopy(own)
    graphs = training_step(
        own, lambda net, x, y: F.cross_entropy(net(x), y), {"x": torch.zeros(2, 1, 5, 5), "y": torch.tensor([0, 2])}
    )
    tensors = {**dict(own.named_parameters()), **dict(own.named_buffers())}
    stepper = Stepper(graphs, {role: tensors[name].detach().numpy() for name, role in graphs.roles.tensors.items()}, 0.5)
    optimizer = torch.optim.SGD(expected.parameters(), 0.5)
    for step in range(3):
        x, y = torch.tensor(2 * draw(5, 1, 5, 5, seed=step) + step).float(), torch.tensor([0, 2, 1, 1, 0])
        loss = F.cross_entropy(expected(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(stepper.step(x.numpy(), y.numpy()), loss.item(), rtol=1e-5)
    after = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    for role, value in stepper.tensors().items():
        np.testing.assert_allclose(value, after[role[2:]].detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=role)
