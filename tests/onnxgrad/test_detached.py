"""What torch's backward pass takes for a constant is one in training graphs; each is compared with torch when it is written."""

import pytest
import torch
from torch import nn

from edgefl.onnxgrad import export, training_step


class Rows(nn.Module):
    """A linear layer, and then ``rest``."""

    def __init__(self, rest):
        super().__init__()
        self.layer, self.rest = nn.Linear(8, 8), rest

    def forward(self, x):
        return self.rest(self.layer(x))


def rounded(y):
    return y + (y.round() - y).detach()


def gated(y):
    with torch.no_grad():
        gate = (y > 0).float() * y.abs().mean(1, keepdim=True)
    return y * gate


def gated_in_place(y):
    with torch.no_grad():
        gate = y * 2
        gate.mul_(3).add_(y)
        gate += y
    return y * gate


def largest(y):
    with torch.no_grad():
        values, _ = y.topk(2, dim=1)
    return y * values.sum(1, keepdim=True)


@torch.no_grad()
def target(y):
    return y.softmax(1)


@pytest.mark.parametrize(
    "rest",
    [rounded, lambda y: torch.detach(y).softmax(1) * y, gated, gated_in_place, largest, lambda y: target(y) * y],
    ids=["straight-through", "detach", "no_grad", "in place", "two results", "a function"],
)
def test_constants_of_the_backward_pass(rest):
    training_step(Rows(rest), lambda own, x: own(x).square().mean(), {"x": torch.randn(4, 8)})


class Square(torch.autograd.Function):
    """A function with a backward pass of its own; torch computes its forward pass without gradients."""

    @staticmethod
    def forward(context, y):
        context.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(context, gradient):
        (y,) = context.saved_tensors
        return 2 * y * gradient


def test_a_function_with_its_own_backward_pass_is_none():
    training_step(Rows(Square.apply), lambda own, x: own(x).square().mean(), {"x": torch.randn(4, 8)})


class Scaled(nn.Module):
    """A layer whose weights are divided by their norm, which is read as the attribute ``data``."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x @ self.weight / self.weight.data.norm() + self.bias.data


def test_the_attribute_data_is_a_constant():
    """The graph is compared with torch when it is made."""
    step = training_step(Scaled(), lambda own, x: own(x).square().mean() + own.weight.data.sum(), {"x": torch.randn(4, 8)})
    assert set(step.roles.trained) == {"weight", "bias"}
    assert export(Scaled().eval(), {"x": torch.randn(4, 8)}).graph.node


def test_what_follows_a_constant_trains():
    network = nn.Sequential(nn.Linear(8, 8), Rows(lambda y: y.detach()), nn.Linear(8, 2))
    training_step(network, lambda own, x: own(x).square().mean(), {"x": torch.randn(4, 8)})
