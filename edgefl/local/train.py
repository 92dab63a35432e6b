"""The local loop: the only one; every method trains through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.cost.memory import LivenessMeter, optimizer_tensors
from edgefl.cost.table import Loss
from edgefl.methods.base import Method
from edgefl.records import Batch


@dataclass(frozen=True)
class Training:
    """How clients train: minibatch SGD with momentum."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float

    def steps(self, samples: int) -> int:
        """Return the steps of one client's round; the last batch of an epoch may be partial.

        >>> Training(2, 32, 0.1, 0.9, 0.0).steps(33)
        4
        """
        return self.epochs * -(-samples // self.batch_size)


@dataclass(frozen=True)
class Trained:
    """What the loop reports: the mean loss of the last epoch, the steps, and the metered peak of activations."""

    loss: float
    steps: int
    peak_activation_bytes: int


def optimizer_of(method: Method, module: nn.Module, training: Training) -> torch.optim.SGD:
    """Return the client's optimizer; weight decay acts on the parameters that the method leaves to it."""
    decayed = set(method.decayed(module))
    groups = [
        {"params": [p for p in module.parameters() if p in decayed], "weight_decay": training.weight_decay},
        {"params": [p for p in module.parameters() if p not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([g for g in groups if g["params"]], lr=training.lr, momentum=training.momentum)


def train(
    module: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    present: Tensor,
    training: Training,
    rng: np.random.Generator,
) -> Trained:
    """Train ``module`` in place on samples ``x`` (n, …) float32 with labels ``y`` (n,) int64.

    The first step, a largest one, is metered. Its batch is part of what is metered, as it is of what a device holds.
    """
    module.train()
    samples, peak, steps = len(y), 0, 0
    total = 0.0
    for epoch in range(training.epochs):
        total = 0.0
        for index in _batches(samples, training.batch_size, rng):
            meter = LivenessMeter() if steps == 0 else None
            with meter or nullcontext():
                batch = Batch(x[index], y[index], present)
                value = loss(module, batch)
                value.backward()
                optimizer.step()
            if meter is not None:
                gradients = [p.grad for p in module.parameters() if p.grad is not None]
                peak = meter.peak_bytes(without=meter.numbers([*gradients, *optimizer_tensors(optimizer)]))
            optimizer.zero_grad()
            steps += 1
            if epoch == training.epochs - 1:
                total += value.item() * len(index)
    return Trained(total / samples, steps, peak)


def _batches(samples: int, batch_size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    order = torch.from_numpy(rng.permutation(samples))
    return iter(order.split(batch_size))
