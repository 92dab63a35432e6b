"""Losses and layers of torch that are several operators in ONNX: two steps in onnxruntime are two steps in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import Stepper, training_step
from edgefl.rng import torch_seeded

LR = 0.1
Loss = Callable[..., Tensor]


def check_steps(network: nn.Module, loss: Loss, *batch: Tensor) -> None:
    """Compare losses, weights and statistics of two steps with torch's in float64; the second step has one sample fewer."""
    double = copy.deepcopy(network).double().train()
    graphs = training_step(network, loss, {f"x{i}": value for i, value in enumerate(batch)})
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    stepper = Stepper(graphs, {role: state[name].detach().numpy().copy() for name, role in graphs.roles.tensors.items()}, LR)
    optimizer = torch.optim.SGD(double.parameters(), LR)
    for less in (0, 1):
        own = [value[: len(value) - less] for value in batch]
        found = stepper.step(*(value.numpy() for value in own))
        optimizer.zero_grad()
        expected = loss(double, *(value.double() if value.is_floating_point() else value for value in own))
        expected.backward()
        optimizer.step()
        assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    after = {**dict(double.named_parameters()), **dict(double.named_buffers())}
    for name, role in {**graphs.roles.trained, **graphs.roles.statistics}.items():
        found_tensor = torch.from_numpy(np.asarray(stepper.tensors()[role])).double()
        torch.testing.assert_close(found_tensor, after[name].detach(), rtol=2e-5, atol=2e-6, msg=name)


STEPS, LABELS = 7, 3
TARGETS = torch.tensor([[1, 1, 2], [3, 0, 0], [2, 1, 2], [1, 1, 1]])
INPUTS, COUNTS = torch.tensor([7, 4, 5, 3]), torch.tensor([3, 1, 0, 3])
"""A repeated label, padding, a sample without labels, and one with too few steps for any alignment."""


def ctc(reduction: str, endless: bool) -> Loss:
    def loss(network: nn.Module, x: Tensor, targets: Tensor, inputs: Tensor, counts: Tensor) -> Tensor:
        logs = network(x).log_softmax(2).transpose(0, 1)
        found = F.ctc_loss(logs, targets, inputs, counts, reduction=reduction, zero_infinity=endless)
        return found.mean() if reduction == "none" else found

    return loss


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ctc(reduction: str) -> None:
    x = torch.sin(torch.arange(4.0 * STEPS * 5)).reshape(4, STEPS, 5) * 3
    check_steps(nn.Linear(5, 4), ctc(reduction, True), x, TARGETS, INPUTS, COUNTS)


def test_ctc_without_alignment_is_infinite() -> None:
    x = torch.sin(torch.arange(4.0 * STEPS * 5)).reshape(4, STEPS, 5)
    graphs = training_step(nn.Linear(5, 4), ctc("mean", False), {"x": x, "targets": TARGETS, "inputs": INPUTS, "counts": COUNTS})
    stepper = Stepper(graphs, {"p.weight": np.zeros((4, 5), np.float32), "p.bias": np.zeros(4, np.float32)}, LR)
    assert stepper.step(x[3:].numpy(), TARGETS[3:].numpy(), INPUTS[3:].numpy(), COUNTS[3:].numpy()) == np.inf


def test_ctc_of_labels_in_a_row_is_refused() -> None:
    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return F.ctc_loss(network(x).log_softmax(2).transpose(0, 1), torch.tensor([1, 2, 1, 1]), [4, 4], [2, 2])

    with pytest.raises(EdgeflError, match=r"ctc_loss has an ONNX form for targets \(samples, labels\); pad the labels"):
        training_step(nn.Linear(5, 4), loss, {"x": torch.ones(2, 4, 5)})


def gaussian(network: nn.Module, x: Tensor) -> Tensor:
    """Return the loss with variances on both sides of its lower bound."""
    mean, spread = network(x).chunk(2, 1)
    return F.gaussian_nll_loss(mean, x[:, :2], (spread**2)[:, :1], full=True, eps=0.5)


def contrastive(network: nn.Module, x: Tensor, other: Tensor) -> Tensor:
    """Return the loss of both directions, whose classes are the samples."""
    a, b = (F.normalize(network(value), dim=1) for value in (x, other))
    logits, own = a @ b.T / 0.1, torch.arange(a.shape[0])
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own, label_smoothing=0.1)) / 2


class Outputs(nn.LSTM):
    """An LSTM that returns its outputs alone."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # no states
        """Return the outputs."""
        found: Tensor = super().forward(x)[0]
        return found


class Scores(nn.Module):
    """A weight for ``linear_cross_entropy``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.cos(torch.arange(12.0)).reshape(3, 4)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        return F.linear(x, self.weight, self.bias)


def of_linear(network: Any, x: Tensor, labels: Tensor) -> Tensor:
    return F.linear_cross_entropy(x, network.weight, labels, linear_bias=network.bias, ignore_index=1)


def mean_of_square(network: nn.Module, x: Tensor) -> Tensor:
    found = network(x)
    return (found.flatten(1) * torch.sin(torch.arange(found[0].numel()))).sum(1).square().mean()


X = torch.sin(torch.arange(20.0) * 2.3).reshape(5, 4)
MAPS = torch.sin(torch.arange(120.0) * 1.3).reshape(4, 2, 3, 5)
LAYERS: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[Tensor, ...]]] = {
    "gaussian": (lambda: nn.Linear(4, 4), gaussian, (X,)),
    "contrastive": (lambda: nn.Linear(4, 3), contrastive, (X, X.flip(1))),
    "of-linear": (Scores, of_linear, (X, torch.tensor([0, 2, 1, 1, 0]))),
    "instance-norm": (lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), mean_of_square, (MAPS,)),
    "projected": (lambda: Outputs(5, 4, 2, batch_first=True, bidirectional=True, proj_size=2), mean_of_square, (MAPS[:, 0],)),
    "projected-without-bias": (lambda: Outputs(5, 3, proj_size=2, bias=False, batch_first=True), mean_of_square, (MAPS[:, 0],)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), mean_of_square, (X,)),
    "orthogonal-tall": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), mean_of_square, (X,)),
    "spectral": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), mean_of_square, (X,)),
    "spectral-by-hook": (lambda: nn.utils.spectral_norm(nn.Conv2d(2, 3, 2), n_power_iterations=2), mean_of_square, (MAPS,)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", LAYERS)
def test_losses_and_layers(name: str) -> None:
    made, loss, batch = LAYERS[name]
    with torch_seeded(np.random.default_rng(3)):
        network = made()
    check_steps(network, loss, *batch)


@pytest.mark.parametrize("layer", [nn.RReLU(0.1, 0.9), nn.FractionalMaxPool2d(2, (2, 3))])
def test_draws_follow_the_seed(layer: nn.Module) -> None:
    graphs = training_step(nn.Sequential(nn.Conv2d(2, 2, 1), layer), mean_of_square, {"x": MAPS})  # compared with torch's step
    values = {"p.0.weight": np.ones((2, 2, 1, 1), np.float32), "p.0.bias": np.zeros(2, np.float32)}
    losses = [Stepper(graphs, {**values, "seed": np.array(seed, np.float32)}, 0.0).step(MAPS.numpy()) for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


class Transposed(nn.Module):
    """Products of transposed matrices and vectors, which onnxruntime fuses wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.vector = (
            nn.Parameter(torch.cos(torch.arange(12.0)).reshape(3, 4)),
            nn.Parameter(torch.tensor([1.0, -1.0, 0.5])),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return x · Wᵀ's product with the vector, in four ways."""
        row = torch.mv(self.weight.T, self.vector) + self.vector @ self.weight + torch.matmul(self.weight.t(), self.vector)
        return x * row + (x.unsqueeze(1) * self.weight).transpose(1, 2) @ self.vector


def test_vectors_times_transposed_matrices() -> None:
    check_steps(Transposed(), mean_of_square, X)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.masked_select(x > 0).sum(), "masked_select has no ONNX form here.*; use torch.where"),
        (lambda x: torch.tensor_split(x, torch.tensor(2), 1)[0], "tensor_split has no ONNX form here.*; give its sections"),
    ],
)
def test_sizes_that_depend_on_values_are_refused_by_name(function: Callable[[Tensor], Tensor], text: str) -> None:
    with pytest.raises(EdgeflError, match=text):
        training_step(nn.Linear(4, 4), lambda network, x: function(network(x)).mean(), {"x": X})
