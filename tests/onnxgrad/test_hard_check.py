"""Graphs that differ from torch only on hard batches are refused with the values that show it; right graphs are not."""

from __future__ import annotations

import re
from math import isnan

import pytest
import torch
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import StepRule, training_step
from edgefl.onnxgrad.gradients import RULES

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [-0.5, 1.25, 1.0], [0.75, -0.25, -1.5]])


def square(network: nn.Module, x: Tensor) -> Tensor:
    return network(x).square().mean()


class Times(nn.Module):
    """A function of the product of its input and a weight for each entry, which has zeros and ties where they have."""

    def __init__(self, function, weights=(1.0, 0.5, -1.0)):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.tensor(weights))

    def forward(self, x):
        return self.function(x * self.weight)


def refused(text, network, loss, batch, rule=None):
    with pytest.raises(EdgeflError, match=re.escape(f"its training graph differs from torch if {text}")):
        training_step(network, loss, batch, rule)


def saturated(tape, op, gradient):
    """The slope of tanh, 1 − y², by a quotient that is 0/0 at y = ±1."""
    slope = tape.op("Sub", tape.number(1.0), tape.op("Mul", op.outputs[0], op.outputs[0]))
    return [tape.op("Mul", gradient, tape.op("Div", tape.op("Mul", slope, slope), slope))]


def at_zero(slope):
    """Return a rule of Relu with another slope at 0."""

    def rule(tape, op, gradient):
        above, zero = (tape.op(kind, op.inputs[0], tape.number(0.0)) for kind in ("Greater", "Equal"))
        slopes = tape.op("Where", above, tape.number(1.0), tape.op("Where", zero, tape.number(slope), tape.number(0.0)))
        return [tape.op("Mul", gradient, slopes)]

    return rule


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_nan_of_a_saturated_value_is_refused_with_input_tensor_layer_and_values(optimizer, monkeypatch):
    monkeypatch.setitem(RULES, "Tanh", saturated)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    text = r"if x is (20|100) in all entries: gradient of 0.weight\[\d, \d\] of layer 0 \(Linear\) nan, torch \S+$"
    with pytest.raises(EdgeflError, match=text):
        training_step(network, square, {"x": X}, StepRule(optimizer))


def slopes(network, x):
    return network(x).mean()


@pytest.mark.parametrize("slope", [0.5, 1.0, float("nan")])
def test_another_slope_at_zero_is_refused(slope, monkeypatch):
    monkeypatch.setitem(RULES, "Relu", at_zero(slope))
    value = "x is 0 in all entries" if isnan(slope) else "all weights are 0"
    refused(f"{value}: gradient of weight[", Times(torch.relu), slopes, {"x": X})
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    refused("x is 0 in all entries and biases are 0: gradient of 0.", network, slopes, {"x": X})


def exported(function, loss):
    """Return a loss of other inputs while it is exported, as if an operator had a wrong form."""
    return lambda network, *inputs: loss(network, *(function(*inputs) if torch.compiler.is_exporting() else inputs))


def masked(network, x, mask):
    scores = torch.where(mask, network(x), 0.0)
    return (scores.sum(1) / mask.sum(1).clamp(min=1)).square().mean()


def labelled(network, x, y):
    logs = network(x).log_softmax(1)
    own = torch.where(y == -1, 0.0, -logs.gather(1, torch.where(y == -1, 0, y).unsqueeze(1)).squeeze(1))
    return own.sum() / (y != -1).sum().clamp(min=1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, y: (x.clamp(max=10.0), y), "x is 20 in all entries: "),
        (lambda x, y: (x.clamp(min=-10.0), y), "x is -20 in all entries: "),
        (lambda x, y: (x.clamp(max=50.0), y), "x is 100 in all entries: "),
        (lambda x, y: (x.clamp(max=1000.0, min=-1000.0), y), "x is 10,000 times the example: "),
        (lambda x, y: (torch.where((x == x[:, :1]).all(1, keepdim=True), x + 1, x), y), "x is 0 in all entries: "),
        (lambda x, y: (x, torch.where(y == -1, 2, y)), "y is -1, which the loss leaves out or compares it with: "),
        (lambda x, y: (x, torch.where(y == 2, 1, y)), "y is 2, its largest value: "),
    ],
    ids=["large", "large negative", "larger", "huge", "constant", "ignored", "largest label"],
)
def test_a_form_that_is_wrong_for_one_kind_of_value_is_refused_with_it(function, text):
    labels = torch.tensor([0, 1, 0, 1])  # the largest is not among them
    refused(text, nn.Linear(3, 3), exported(function, labelled), {"x": X, "y": labels})


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x, mask: (torch.where(mask.all(1, keepdim=True), x + 1, x), mask), "True"),
        (lambda x, mask: (x, mask | ~mask.any(1, keepdim=True)), "False"),
    ],
)
def test_a_form_that_is_wrong_for_a_mask_of_equal_entries_is_refused(function, value):
    mask = torch.tensor([[True, False, True], [False, True, True], [True, True, False], [False, False, True]])
    refused(f"mask is {value} in all entries: ", nn.Linear(3, 3), exported(function, masked), {"x": X, "mask": mask})


def test_a_form_that_is_wrong_for_one_sample_is_refused():
    class Odd(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return (
                y + 1.0 / x.new_ones(x.shape[0]).sum() ** 9
                if torch.compiler.is_exporting()
                else y + 1 / len(x) ** 9 * (len(x) > 1)
            )

    refused("the batch has one sample: ", Odd(3, 2), square, {"x": X})


@pytest.mark.parametrize(
    "network",
    [
        Times(lambda x: x.square().sum(1).sqrt()),  # torch's gradient is infinite at 0
        Times(torch.log),  # NaN for negative inputs
        Times(lambda x: x / x.sum(1, keepdim=True)),
        Times(lambda x: x.softmax(1).log()),  # -inf or not, as small numbers are 0 or not
        Times(lambda x: x.exp().exp()),
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4), nn.SiLU()),
    ],
    ids=["norm", "log", "quotient", "logs of small numbers", "overflow", "batch norm", "layer norm"],
)
def test_right_graphs_are_accepted_where_torch_is_not_finite_or_not_exact(network):
    assert training_step(network, square, {"x": X}).steps


@pytest.mark.parametrize("function", [torch.sqrt, torch.log, lambda w: torch.log1p(w - 1)], ids=["sqrt", "log", "log1p"])
def test_values_stay_in_the_domain_of_a_function(function):
    """Weights that move by .1 would leave it, and the loss would be NaN on both sides."""

    class Under(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 1e-3))

        def forward(self, x):
            return x * function(self.scale)

    assert training_step(Under(), square, {"x": X}).steps


@pytest.mark.parametrize("function", [lambda x: x.topk(2)[0], lambda x: x.kthvalue(2)[0]], ids=["topk", "kthvalue"])
def test_which_of_equal_values_is_chosen_does_not_matter_where_torch_does_not_define_it(function):
    assert training_step(Times(function), square, {"x": X}).steps


def test_nan_where_torch_has_it_is_no_difference():
    assert training_step(Times(lambda x: (x - x).sqrt()), square, {"x": X}).steps


def test_a_network_and_the_random_state_are_left_as_they_are():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state, identities = torch.get_rng_state(), [id(parameter) for parameter in network.parameters()]
    training_step(network, square, {"x": X})
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [id(parameter) for parameter in network.parameters()] == identities
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.tensor(1e-40).mul(1) != 0
