"""Training graphs are compared with torch when they are written, and refused if they differ; networks that were traced wrongly."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import Stepper, StepRule, export, training_step
from edgefl.onnxgrad.gradients import RULES


def cross_entropy(network, x, y):
    return nn.functional.cross_entropy(network(x), y)


def batch_of(*shape):
    return {"x": torch.zeros(2, *shape), "y": torch.tensor([0, 2])}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_wrong_gradient_is_refused_with_tensor_layer_and_values(optimizer, monkeypatch):
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    right = RULES["Tanh"]
    monkeypatch.setitem(RULES, "Tanh", lambda tape, op, g: right(tape, op, tape.op("Mul", g, tape.number(1.001))))
    with pytest.raises(
        EdgeflError, match=r"differs from torch: 0.weight\[\d, \d\] of layer 0 \(Linear\) after a step: \S+, torch \S+$"
    ):
        training_step(network, cross_entropy, batch_of(6), StepRule(optimizer))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.attention, self.head = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        x = self.ids(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize(
    ("network", "x"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(2, 6)),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 3)),
            torch.zeros(2, 3, 9, 9),
        ),
        (Attentive(), torch.arange(8).view(2, 4)),
    ],
    ids=["vectors", "maps", "attention"],
)
def test_adam_trains_parameters_whose_gradient_is_zero_in_theory(network, x):
    """A bias before BatchNorm, and the bias of keys: what is left of their gradients is rounding."""
    assert training_step(network, cross_entropy, {"x": x, "y": torch.tensor([0, 2])}, StepRule("adam")).steps


@pytest.mark.parametrize(("name", "wrong"), [("ADAM_BETA2", 0.9991), ("ADAM_EPS", 1e-3)])
def test_a_wrong_constant_of_adam_is_refused(name, wrong, monkeypatch):
    monkeypatch.setattr(f"edgefl.onnxgrad.step.{name}", wrong)
    with pytest.raises(EdgeflError, match=r"differs from torch: 0\.weight"):
        training_step(nn.Sequential(nn.Linear(6, 3)), cross_entropy, batch_of(6), StepRule("adam"))


def test_a_wrong_loss_is_refused_with_both_values(monkeypatch):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(x) * (2.0 if torch.compiler.is_exporting() else 1.0)

    with pytest.raises(
        EdgeflError, match=r"differs from torch: loss \d\S+, torch \d\S+; fc.weight\[\d, \d\] of layer fc \(Linear\)"
    ):
        training_step(Odd(), cross_entropy, batch_of(6))


class Recurrent(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True, **options)
        self.fc = nn.Linear(self.lstm.proj_size or 6, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_lstm_infers_as_in_torch():
    network = Recurrent(proj_size=2).eval()
    graph = export(network, {"x": torch.zeros(2, 5, 4)})
    x = torch.sin(torch.arange(60.0)).reshape(3, 5, 4)
    (found,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(x).detach(), rtol=1e-5, atol=1e-6)


def test_a_projected_lstm_with_a_free_number_of_steps_is_refused():
    with pytest.raises(EdgeflError, match="LSTM with proj_size has an ONNX form for a fixed number of steps; pad the sequences"):
        export(nn.LSTM(4, 6, proj_size=2).eval(), {"x": torch.zeros(2, 5, 4)}, ("y", "h", "c"))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x.reshape(len(x), -1))


def test_a_network_that_takes_the_length_of_its_batch_is_free_in_the_batch():
    network = Counting()
    (value,) = export(network.eval(), {"x": torch.zeros(2, 2, 3)}).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    graphs = training_step(network, cross_entropy, batch_of(2, 3))
    stepper = Stepper(graphs, {f"p.{n}": p.detach().numpy() for n, p in network.named_parameters()}, 0.1)
    x, y = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32), np.array([0, 1, 2, 1, 0])
    assert stepper.step(x, y) == pytest.approx(cross_entropy(network, torch.from_numpy(x), torch.from_numpy(y)).item(), rel=1e-5)


def test_a_loss_that_takes_the_length_of_its_batch_is_refused_with_the_line():
    with pytest.raises(EdgeflError, match=r"how many samples there are: len of a tensor in test_step_check.py, line \d+"):
        training_step(Counting(), lambda network, x, y: cross_entropy(network, x, y) / len(y), batch_of(2, 3))


def test_checkpointing_is_compared_with_the_same_weights_and_masks():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.front, self.drop = nn.Linear(6, 8), nn.Dropout(0.3)
            self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2))
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.drop(checkpoint(self.block, self.drop(self.front(x)), use_reentrant=False)))

    assert training_step(Network(), cross_entropy, batch_of(6)).steps


class Centred(nn.Module):
    """Keeps a mean of what it computes; ``used`` says where: nowhere, in evaluation, or also in training."""

    def __init__(self, used: str, in_place: bool) -> None:
        super().__init__()
        self.linear, self.used, self.in_place = nn.Linear(4, 3), used, in_place
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.training:
            new = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            self.mean = self.mean.copy_(new) if self.in_place else new
        reads = self.used == "always" or (self.used == "in evaluation" and not self.training)
        return y - self.mean if reads else y


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("used", ["in evaluation", "always"])
def test_a_buffer_that_a_graph_could_not_change_is_named(used, in_place):
    network = Centred(used, in_place)
    with pytest.raises(EdgeflError, match="differs from torch: mean changes in a step, and a training graph changes no buffers"):
        training_step(network, lambda own, x: own(x).square().mean(), {"x": torch.randn(4, 4)})
    assert not network.mean.any()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_nothing_depends_on_may_change(in_place):
    training_step(Centred("nowhere", in_place), lambda own, x: own(x).square().mean(), {"x": torch.randn(4, 4)})
