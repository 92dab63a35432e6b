"""Labels that a graph was not exported with: ignored ones, batches without any other, and numbers that are no class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.onnxgrad import Stepper, training_step

WEIGHT = torch.tensor([0.5, 2.0, 1.0, 3.0])
X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [-2.0, 1.0, 0.5], [0.1, 0.2, -0.3]])


def of_samples(**options: Any) -> Any:
    return lambda net, x, y: F.cross_entropy(net(x), y, **options)


def of_words(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of two labels for each sample, of two classes."""
    return F.cross_entropy(net(x).reshape(-1, 2), y.reshape(-1))


def of_maps(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of labels (samples, places) from logits (samples, classes, places)."""
    return F.cross_entropy(net(x).reshape(-1, 2, 2), y, ignore_index=1)


def nll(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(net(x).log_softmax(1), y, ignore_index=-1)


def of_each(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, ignore_index=-1, reduction="none").square().mean()


MASKED, ALL_MASKED = [[0, -100], [1, 1], [-100, 0]], [[-100, -100]] * 3
CASES = {
    "default": (of_samples(), [-100, 1, 2, -100]),
    "default-all": (of_samples(), [-100] * 4),
    "minus-1": (of_samples(ignore_index=-1), [0, -1, 2, -1]),
    "minus-1-all": (of_samples(ignore_index=-1), [-1] * 4),
    "a-class": (of_samples(ignore_index=3), [3, 1, 3, 0]),
    "a-class-all": (of_samples(ignore_index=3), [3] * 4),
    "255": (of_samples(ignore_index=255), [255, 1, 255, 0]),
    "weighted": (of_samples(weight=WEIGHT), [-100, 1, 3, 0]),
    "weighted-all": (of_samples(weight=WEIGHT, ignore_index=-1), [-1] * 4),
    "sum": (of_samples(reduction="sum"), [-100, 1, 2, -100]),
    "smoothed": (of_samples(label_smoothing=0.2), [-100, 1, 2, -100]),
    "smoothed-all": (of_samples(label_smoothing=0.2), [-100] * 4),
    "smoothed-weighted": (of_samples(label_smoothing=0.2, weight=WEIGHT), [-100, 1, 3, 0]),
    "each": (of_each, [0, -1, 2, -1]),
    "each-all": (of_each, [-1] * 4),
    "nll": (nll, [0, -1, 2, -1]),
    "nll-all": (nll, [-1] * 4),
    "words": (of_words, MASKED),
    "words-all": (of_words, ALL_MASKED),
    "maps": (of_maps, [[0, 1], [1, 0], [1, 1]]),
    "maps-all": (of_maps, [[1, 1]] * 3),
}


def step_with(loss: Any, y: Tensor, example: Tensor) -> tuple[float, np.ndarray[Any, Any], nn.Linear]:
    """Return the loss and the weights of a step with labels ``y``, of a graph exported with ``example``, and the network before it."""
    torch.manual_seed(3)  # noqa: TID251 - the first weights of a layer
    net = nn.Linear(3, 4)
    before = {name: parameter.detach().numpy().copy() for name, parameter in net.named_parameters()}
    graphs = training_step(net, loss, {"x": X[: len(example)], "y": example})
    stepper = Stepper(graphs, {f"p.{name}": value for name, value in before.items()}, lr=0.5)
    value = stepper.step(X[: len(y)].numpy(), y.numpy())
    return value, stepper.tensors()["p.weight"], net


@pytest.mark.parametrize("name", CASES)
def test_ignored_labels_count_for_nothing(name: str) -> None:
    loss, labels = CASES[name]
    y = torch.tensor(labels)
    value, weight, net = step_with(loss, y, torch.arange(y.numel()).reshape(y.shape) % (4 if y.dim() == 1 else 2))
    expected = loss(net, X[: len(y)], y)
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5, equal_nan=True)
    np.testing.assert_allclose(weight, (net.weight - 0.5 * net.weight.grad).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("label", [-1, 4, 100])
def test_a_label_that_is_no_class_has_no_loss(label: int) -> None:
    """torch raises an IndexError; a graph cannot."""
    value, _, _ = step_with(of_samples(), torch.tensor([0, label, 2, 3]), torch.tensor([0, 1, 2, 3]))
    assert math.isnan(value)
