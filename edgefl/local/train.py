"""The local loop: the only one; every method trains through it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.cost.memory import LivenessMeter, StepMemory, held_by, step_memory
from edgefl.cost.trace import Loss
from edgefl.local.gradients import Gradient, written
from edgefl.methods.base import Method
from edgefl.records import Batch

OptimizerName = Literal["momentum", "sgd", "adam"]


@dataclass(frozen=True)
class Training:
    """How clients train: minibatches, an optimizer, and how many samples go through the network at once.

    ``momentum`` is the coefficient of the optimizer of that name; "sgd" has none, "adam" its usual 0.9 and 0.999. With a
    ``micro_batch`` gradients of a batch are accumulated over smaller passes: the same step, but for normalisation by batch statistics.
    With ``cosine_rounds`` = T the rate falls over the rounds t = 1 … T as lr/2·(1 + cos(π(t − 1)/T)); None keeps it.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    optimizer: OptimizerName = "momentum"
    micro_batch: int | None = None
    cosine_rounds: int | None = None

    def at(self, round_: int) -> Training:
        """Return the training of one round: the learning rate is the round's own.

        >>> [round(Training(1, 32, 0.1, 0.9, 0.0, cosine_rounds=4).at(t).lr, 4) for t in (1, 3, 4)]
        [0.1, 0.05, 0.0146]
        """
        if self.cosine_rounds is None:
            return self
        share = (1 + math.cos(math.pi * min(1.0, (round_ - 1) / self.cosine_rounds))) / 2
        return replace(self, lr=self.lr * share, cosine_rounds=None)

    def steps(self, samples: int) -> int:
        """Return the steps of one client's round; the last batch of an epoch may be partial.

        >>> Training(2, 32, 0.1, 0.9, 0.0).steps(33)
        4
        """
        return self.epochs * -(-samples // self.batch_size)

    def passes(self, samples: int) -> int:
        """Return the forward and backward passes of one client's round: one a step, more with micro-batches.

        >>> Training(2, 32, 0.1, 0.9, 0.0, micro_batch=10).passes(33)
        10
        """
        whole, rest = divmod(samples, self.batch_size)
        micro = min(self.micro_batch or self.batch_size, self.batch_size)
        return self.epochs * (whole * -(-self.batch_size // micro) + -(-rest // micro))


@dataclass(frozen=True)
class Trained:
    """What the loop reports: the mean loss of the last epoch, the steps, and what the meter saw of the first one, in bytes."""

    loss: float
    steps: int
    peak_activation_bytes: int
    memory_bytes: int


class OverMemory(Exception):  # noqa: N818  an outcome, not an error
    """A client's training holds ``held_bytes``, which is more than its device has."""

    def __init__(self, held_bytes: int, peak_activation_bytes: int) -> None:
        super().__init__(f"{held_bytes} bytes")
        self.held_bytes = held_bytes
        self.peak_activation_bytes = peak_activation_bytes


def optimizer_of(method: Method, module: nn.Module, training: Training, fused: bool = False) -> torch.optim.Optimizer:
    """Return the client's optimizer; weight decay acts on the parameters that the method leaves to it.

    ``fused`` takes torch's kernel that updates a tensor in one pass. Costs are counted for the usual one, which other runtimes have too.
    """
    decayed = set(method.decayed(module))
    groups = [
        {"params": [p for p in module.parameters() if p in decayed], "weight_decay": training.weight_decay},
        {"params": [p for p in module.parameters() if p not in decayed], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, lr=training.lr, foreach=False, fused=fused)
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    return torch.optim.SGD(groups, lr=training.lr, momentum=momentum, foreach=False, fused=fused)


def train(
    module: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    present: Tensor,
    training: Training,
    rng: np.random.Generator,
    draws: np.random.Generator | None = None,
    memory_bytes: float | None = None,
    gradient: Gradient | None = None,
    memory: StepMemory | None = None,
) -> Trained:
    """Train ``module`` in place on samples ``x`` (n, …) with labels ``y`` (n,) int64.

    ``rng`` shuffles; ``draws`` gives each step's :attr:`Batch.draw`. ``gradient`` takes the gradients of ``loss``; None: as autograd does.
    ``memory`` is what a step of this kind was seen to hold; without it the first step, a largest one, is metered. Its batch is part of
    what is metered, as it is of what a device holds.

    Raises:
        OverMemory: a step holds more than ``memory_bytes``.
    """
    module.train()
    micro = training.micro_batch or training.batch_size
    gradient = gradient or written(module, loss)
    if memory is not None:
        check_memory(memory, memory_bytes)
    steps, values = 0, list[tuple[Tensor, int]]()
    for _ in range(training.epochs):
        values.clear()
        for index in batches(len(y), training.batch_size, rng):
            meter = LivenessMeter(held_by(module)) if memory is None else None
            take = gradient if meter is None else written(module, loss, meter.mark)
            draw = None if draws is None else float(draws.random())
            with meter or nullcontext():
                for part in index.to(x.device).split(micro):
                    # Each pass weighs as many samples as it has, so that the sum is the gradient of the whole batch's mean.
                    value = take(Batch(x[part], y[part], present, draw), len(part) / len(index))
                    values.append((value, len(part)))
                optimizer.step()
            if meter is not None:
                memory = step_memory(meter, module, optimizer)
                check_memory(memory, memory_bytes)
            optimizer.zero_grad()
            steps += 1
    assert memory is not None  # a shard has at least one sample
    total = sum(value.item() * count for value, count in values)
    return Trained(total / len(y), steps, memory.peak_activation_bytes, memory.split.total)


def metered(method: Method, module: nn.Module, loss: Loss, batch: Batch, training: Training) -> StepMemory:
    """Return what a step on ``batch`` holds, taken by a copy of ``module``; the module and torch's generator stay as they are."""
    copied = copy.deepcopy(module).train()
    optimizer = optimizer_of(method, copied, training)
    meter = LivenessMeter(held_by(copied))
    take = written(copied, loss, meter.mark)
    with torch.random.fork_rng(devices=[]), meter:
        # As in the loop above, where a batch is cut out of the shard.
        for part in torch.arange(len(batch.y), device=batch.y.device).split(training.micro_batch or training.batch_size):
            take(replace(batch, x=batch.x[part], y=batch.y[part]), len(part) / len(batch.y))
        optimizer.step()
    return step_memory(meter, copied, optimizer)


def check_memory(memory: StepMemory, memory_bytes: float | None) -> None:
    """Raise :class:`OverMemory` where a step held more than ``memory_bytes``."""
    if memory_bytes is not None and memory.split.total > memory_bytes:
        raise OverMemory(memory.split.total, memory.peak_activation_bytes)


def batches(samples: int, batch_size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the positions of each batch of an epoch, drawn by ``rng``; the last batch may be smaller."""
    order = torch.from_numpy(rng.permutation(samples))
    return iter(order.split(batch_size))
