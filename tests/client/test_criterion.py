"""The user's own loss: what it must return, and what is said of one that does not."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client.criterion import Criterion
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.errors import ConfigError, InputError, MetricError
from edgefl.methods.create import create
from edgefl.records import Batch, Metric

LOSSES = """
import torch
from torch.nn import functional as F

def good(outputs, targets):
    return F.cross_entropy(outputs, targets)

def hits(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()

hits.better = "higher"
good.metric = hits

def vector(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")

def number(outputs, targets):
    return 3.0

def nan(outputs, targets):
    return outputs.mean() * float("nan")

def raises(outputs, targets):
    return outputs @ targets

def detached(outputs, targets):
    return outputs.detach().mean()

def branches(outputs, targets):
    value = F.cross_entropy(outputs, targets)
    return value * 2 if value > 1 else value

def undirected(outputs, targets):
    return outputs.mean()

undirected.metric = lambda outputs, targets: outputs.mean()

def wide(outputs, targets):
    return outputs.square().mean()

wide.metric = lambda outputs, targets: outputs.square()
wide.metric.better = "lower"

def inverse(outputs, targets):
    return outputs.square().mean()

inverse.metric = lambda outputs, targets: 1 / (outputs.sum() * 0)
inverse.metric.better = "lower"
value = 3

def square(outputs, targets):
    return (outputs - targets).square().mean()

def root(outputs, targets):
    return square(outputs, targets).sqrt()

root.better = "lower"

def both(outputs, targets):
    return (outputs - targets).abs().mean()

both.metric = root

def squeezed(outputs, targets):
    return F.l1_loss(outputs.squeeze(-1), targets)

def first(outputs, targets):
    return F.l1_loss(outputs[:, 0], targets)

def mixed(outputs, targets):
    return F.l1_loss(outputs.squeeze(-1), targets)

mixed.metric = root
"""
REFUSED = {
    "vector": r"returned a tensor \(2,\), expected a scalar tensor: the mean over the batch",
    "number": "returned float, expected a scalar tensor",
    "nan": "returned nan for 2 samples and the initial weights, expected a finite number",
    "raises": r"raised an error for outputs \(2, 5\) and targets \(2,\): size mismatch.*own.py:\d+: return outputs @ targets",
    "detached": "returned a value without a gradient; compute it from the outputs",
    "branches": r"depends on the values of its input.*own.py:\d+: return value \* 2 if value > 1",
    "undirected": r"has a metric that does not say which values are better; set <lambda>.better to 'higher' or 'lower'",
    "wide": r"metric <lambda>, returned a tensor \(2, 5\), expected a number or a scalar tensor",
    "value": r"is int, expected a function \(outputs, targets\) that returns a scalar tensor",
    "god": "own.py has no 'god'; did you mean 'good'",
}


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(LOSSES)
    return lambda name, target=None: Criterion.of(f"{tmp_path / 'own.py'}:{name}", target)


def check(criterion, classes=5):
    criterion.checked(nn.Linear(3, 5), torch.randn(2, 3), torch.tensor([1, 4]), classes)


def test_a_loss_with_its_metric(own):
    found = own("good")
    check(found)
    assert found.metric == Metric("hits", "higher", share=False)
    assert found.measured(np.eye(4, 5, dtype=np.float32), np.array([0, 1, 2, 0])) == 0.75
    assert Criterion.read(found.fields()) == found
    assert own("nan").metric == Metric("nan", "lower", share=False)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_loss_is_refused(own, name):
    with pytest.raises(InputError, match=REFUSED[name]):
        check(own(name))


def test_outputs_must_fit_the_classes(own):
    with pytest.raises(ConfigError, match=re.escape("it returns (2, 5) for 2 samples, expected one tensor (batch, 4 classes)")):
        check(own("good"), 4)


NUMBERS = np.array([1000.0, 5000.0, 2000.0], np.float32)


class Column(nn.Module):
    """One number per sample: (batch, 1), or (batch,) in training and (batch, 1) in evaluation, as a user's own (batch,) is read."""

    def __init__(self, flat):
        super().__init__()
        self.last, self.flat = nn.Linear(3, 1), flat

    def forward(self, x):
        return self.last(x).squeeze(-1) if self.flat and self.training else self.last(x)


@pytest.mark.parametrize("target", [(), (1,)])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("loss", ["square", "both", "squeezed", "torch.nn.functional:mse_loss", "torch.nn.functional:huber_loss"])
def test_each_output_is_compared_with_its_own_target(own, loss, flat, target, recwarn):
    y = NUMBERS.reshape(-1, *target)
    criterion = Criterion.of(loss, y) if ":" in loss else own(loss, y)
    found = criterion.checked(Column(flat), torch.randn(2, 3), torch.tensor(y[:2]), 0)
    outputs, targets = torch.tensor(NUMBERS) + torch.tensor([0.5, -0.5, 0.5]), torch.tensor(y)
    alone = getattr(criterion.loss, "__name__", "")
    expected = {"square": 0.25, "mse_loss": 0.25, "huber_loss": 0.125}.get(alone, 0.5)
    assert found.loss(outputs if flat else outputs[:, None], targets).item() == expected
    assert found.measured(outputs[:, None].numpy(), y) == expected
    assert Criterion.read(found.fields()) == found
    assert not recwarn.list


def test_a_loss_that_reads_a_column_gets_one(own):
    found = own("first", NUMBERS).checked(Column(False), torch.randn(2, 3), torch.tensor(NUMBERS[:2]), 0)
    assert found.loss(torch.tensor(NUMBERS)[:, None], torch.tensor(NUMBERS)).item() == 0


def test_a_metric_that_compares_all_pairs_is_refused(own):
    with pytest.raises(ConfigError, match="mixed, metric root, compares each output with the target of every sample"):
        own("mixed", NUMBERS).checked(Column(False), torch.randn(2, 3), torch.tensor(NUMBERS[:2]), 0)


def test_a_metric_that_is_not_finite_ends_the_run(own):
    with pytest.raises(MetricError, match="metric <lambda> is inf for 2 held-out samples, expected a finite number"):
        own("inverse").measured(np.zeros((2, 5), np.float32), np.zeros(2, np.int64))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_no_class(wrong):
    outputs, labels = np.array([[0.0, 1.0], [wrong, 0.0], [0.0, -np.inf]]), np.array([1, 0, 0])
    with pytest.raises(MetricError, match="accuracy: the network returns NaN or infinity for 1 of 3 samples, expected finite"):
        Criterion().measured(outputs, labels)
    outputs[1] = 0.0
    assert Criterion().measured(outputs, labels) == 1.0


def test_outputs_that_are_nan_have_no_metric_of_an_own_loss(own):
    outputs = np.full((2, 5), np.nan, np.float32)
    with pytest.raises(MetricError, match="the network returns NaN or infinity for 2 of 2 samples"):
        own("good").measured(outputs, np.zeros(2, np.int64))


def test_a_changed_source_is_another_criterion(own, tmp_path):
    before = own("good")
    (tmp_path / "own.py").write_text(LOSSES + "\n")
    assert own("good") != before
    assert own("good").spec == before.spec


def test_a_last_batch_of_one_sample_trains_with_batch_normalisation() -> None:
    """torch refuses one value per channel; the loss computes it as training graphs do."""
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)).train()
    loss = loss_of(create("fedavg"), PLAIN)(network, Batch(torch.tensor([[2.0, -5.0]]), torch.tensor([1])))
    loss.backward()
    assert loss.isfinite()
    torch.testing.assert_close(network[0].running_mean, torch.tensor([0.2, -0.5]))
    assert network[0].running_var.tolist() == [1.0, 1.0]
    assert network[0].weight.grad.tolist() == [0.0, 0.0]
