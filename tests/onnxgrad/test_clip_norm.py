"""Training graphs that clip gradients, against torch's clip_grad_norm_: on ordinary and hard batches, in parts, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.errors import EdgeflError, InputError
from edgefl.onnxgrad import StepRule, training_step
from edgefl.onnxgrad import step as steps_of
from edgefl.onnxgrad.stepper import Stepper
from edgefl.rng import generator, torch_seeded

LR, BETA, DECAY = 0.05, 0.8, 0.01
ROWS = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
BATCHES = {
    "ordinary": ROWS,
    "zeros": np.zeros_like(ROWS),
    "ties": np.full_like(ROWS, 0.5),
    "large": np.sign(ROWS) * 100,
    "one large sample": ROWS * np.array([[1.0], [1e5], [1.0], [1.0]], np.float32),
    "tiny": ROWS * 1e-25,
    "one sample": ROWS[:1],
}


def network():
    with torch_seeded(generator(2, "network")):
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def loss(module, x, y):
    return nn.functional.cross_entropy(module(x), y)


def graphs_of(module, rule, loss=loss):
    return training_step(module, loss, {"x": torch.zeros(4, 6), "y": torch.zeros(4, dtype=torch.int64)}, rule, parts=True)


def optimizer_of(module, kind):
    groups = [{"params": list(module.parameters()), "weight_decay": DECAY}]
    if kind == "adam":
        return torch.optim.Adam(groups, lr=LR, betas=(BETA, 0.999))
    return torch.optim.SGD(groups, lr=LR, momentum=BETA if kind == "momentum" else 0.0)


@pytest.mark.parametrize("norm", [1e-4, 0.3, 1e6])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_three_steps_are_torchs_on_hard_batches_too(kind, norm):
    module = network()
    graphs = graphs_of(module, StepRule(kind, DECAY, clip_norm=norm))
    arrays = {role: dict(module.named_parameters())[name].detach().numpy() for name, role in graphs.roles.trained.items()}
    for what, x in BATCHES.items():
        y = np.array([0, 2, 1, 2])[: len(x)]
        whole, parts = (Stepper(graphs, arrays, LR, BETA, parts=parts) for parts in (False, True))
        expected = copy.deepcopy(module)
        optimizer = optimizer_of(expected, kind)
        for _ in range(3):
            optimizer.zero_grad()
            loss(expected, torch.from_numpy(x), torch.from_numpy(y)).backward()
            torch.nn.utils.clip_grad_norm_(expected.parameters(), norm)
            optimizer.step()
            whole.step(x, y)
            parts.step(x, y, part=3)
        for name, parameter in expected.named_parameters():
            for stepper in (whole, parts):
                np.testing.assert_allclose(stepper.tensors()[f"p.{name}"], parameter.detach(), rtol=1e-4, atol=2e-6, err_msg=what)


def test_a_gradient_that_is_not_finite_spoils_every_tensor_as_in_torch():
    module = network()
    graphs = graphs_of(module, StepRule(clip_norm=1.0))
    arrays = {role: dict(module.named_parameters())[name].detach().numpy() for name, role in graphs.roles.trained.items()}
    stepper, x = Stepper(graphs, arrays, LR), np.full((4, 6), np.nan, np.float32)
    stepper.step(x, np.zeros(4, np.int64))
    loss(module, torch.from_numpy(x), torch.zeros(4, dtype=torch.int64)).backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(np.isnan(stepper.tensors()[f"p.{name}"]), parameter.grad.isnan())


def test_the_norm_is_that_of_the_parameters_that_the_loss_depends_on():
    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.frozen, self.unused = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.used(x) + self.frozen(x)

    module = Some()
    graphs = graphs_of(module, StepRule(clip_norm=0.1))
    arrays = {role: dict(module.named_parameters())[name].detach().numpy() for name, role in graphs.roles.tensors.items()}
    stepper, y = Stepper(graphs, arrays, 1.0), np.array([0, 2, 1, 2])
    stepper.step(ROWS, y)
    after = stepper.tensors()
    moved = [after[f"p.used.{name}"] - arrays[f"p.used.{name}"] for name in ("weight", "bias")]
    assert sum(float(np.square(part).sum()) for part in moved) ** 0.5 == pytest.approx(0.1, rel=1e-5)
    np.testing.assert_array_equal(after["p.unused.weight"], arrays["p.unused.weight"])


def test_a_graph_that_clips_to_another_norm_is_refused(monkeypatch):
    own = steps_of._Update._factor
    monkeypatch.setattr(steps_of._Update, "_factor", lambda self, gradients: own(self, list(gradients)[:-1]))
    with pytest.raises(EdgeflError, match="its training graph differs from torch"):
        graphs_of(network(), StepRule(clip_norm=0.01))


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf")])
def test_a_norm_that_is_none_is_refused(norm):
    with pytest.raises(InputError, match=r"rule: clip_norm must be above 0 and finite, got .*; None does not clip"):
        graphs_of(network(), StepRule(clip_norm=norm))
