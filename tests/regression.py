"""A small regression: networks, losses and a data set of the tests' own, found by import path."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.data.sources import Dataset
from edgefl.data.split import Split


def tiny(in_features: int = 6, outputs: int = 1) -> nn.Module:
    """A network (batch, 6) → (batch, 1)."""
    return nn.Sequential(nn.Linear(in_features, 8), nn.Tanh(), nn.Linear(8, outputs))


class Flat(nn.Module):
    """A network (batch, 6) → (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = tiny()

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per sample."""
        return self.layers(x).squeeze(-1)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean Huber loss of outputs and targets (batch, 1)."""
    return nn.functional.huber_loss(outputs, targets)


def root_mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return (outputs - targets).square().mean().sqrt()


root_mean_square.better = "lower"  # type: ignore[attr-defined]
huber.metric = root_mean_square  # type: ignore[attr-defined]


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error, whose metric is below 0."""
    return (outputs - targets).square().mean()


def log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean log-likelihood of targets that are normal around the outputs, with variance 1."""
    return -mean_square(outputs, targets) / 2 - math.log(2 * math.pi) / 2


log_likelihood.better = "higher"  # type: ignore[attr-defined]
mean_square.metric = log_likelihood  # type: ignore[attr-defined]


def line(samples: int = 120) -> Dataset:
    """Points of a noisy linear map from 6 values to 1."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, 6)).astype(np.float32)
    y = (x @ np.arange(6, dtype=np.float32)[:, None] / 4 + 0.1 * rng.standard_normal((samples, 1))).astype(np.float32)
    cut = samples * 3 // 4
    return Dataset("line", "Line", Split(x[:cut], y[:cut]), Split(x[cut:], y[cut:]), (), {}, "mlp")


def mixed(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of each output times 1, 2, … 50, by a matrix product (batch, 1) · (1, 50)."""
    return ((outputs - targets) @ torch.arange(1.0, 51.0).view(1, 50)).square().mean()


def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is divided by a number instead of a size of a graph."""
    return (outputs - targets).square().sum() / len(targets)
