"""The local loop: the only one; every method trains through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.fast.gradients import Gradient, written
from edgefl.client.optimizer import Update
from edgefl.client.training import Training
from edgefl.cost.memory import LivenessMeter, StepMemory, held_by, step_memory
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.methods.base import Method
from edgefl.records import Batch


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


def optimizer_of(method: Method, module: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the client's optimizer as costs are counted for it; weight decay acts on the parameters that the method leaves to it."""
    decayed = set(method.decayed(module))
    groups = [
        {"params": [p for p in module.parameters() if p in decayed], "weight_decay": training.weight_decay},
        {"params": [p for p in module.parameters() if p not in decayed], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, lr=training.lr, foreach=False)
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    return torch.optim.SGD(groups, lr=training.lr, momentum=momentum, foreach=False)


def train(
    module: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer | Update,
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
    ``memory`` is what a step of this kind was seen to hold. Without it the first step, a largest one, is metered, with its batch, as it
    is part of what a device holds; ``optimizer`` is then one of torch's.

    Raises:
        OverMemory: a step holds more than ``memory_bytes``.
    """
    if not module.training:
        module.train()
    micro = training.micro_batch or training.batch_size
    gradient = gradient or written(module, loss)
    if memory is not None:
        check_memory(memory, memory_bytes)
    steps, values = 0, list[tuple[Tensor | float, int]]()
    for _ in range(training.epochs):
        values.clear()
        for index in batches(len(y), training.batch_size, rng):
            meter = LivenessMeter(held_by(module)) if memory is None else None
            take = gradient if meter is None else written(module, loss, meter.mark)
            draw = None if draws is None else float(draws.random())
            with meter or nullcontext():
                for part in index.to(x.device).split(micro):
                    # Each pass weighs as many samples as it has, so that the sum is the gradient of the whole batch's mean.
                    # What is metered holds a batch of its own, labels that the client has included, until autograd needs it no more.
                    value = take(
                        Batch(x[part], y[part], present if meter is None else present.clone(), draw), len(part) / len(index)
                    )
                    values.append((value if meter is None else value.item(), len(part)))
                    del value
                optimizer.step()
            if meter is not None:
                assert isinstance(optimizer, torch.optim.Optimizer)  # whose state is part of what is metered
                memory = step_memory(meter, module, optimizer)
                check_memory(memory, memory_bytes)
            optimizer.zero_grad()
            steps += 1
    assert memory is not None  # a shard has at least one sample
    total = sum(float(value) * count for value, count in values)
    return Trained(total / len(y), steps, memory.peak_activation_bytes, memory.split.total)


def metered(method: Method, module: nn.Module, loss: Loss, batch: Batch, training: Training) -> StepMemory:
    """Return what a step of ``module`` on ``batch`` holds: it takes one; torch's generator stays as it is."""
    with uncompiled():
        optimizer = optimizer_of(method, module, training)
    meter = LivenessMeter(held_by(module))
    take = written(module, loss, meter.mark)
    index = torch.arange(len(batch.y), device=batch.y.device)
    with uncompiled(), torch.random.fork_rng(devices=[]), meter:
        # As in the loop above, where a batch is cut out of the shard.
        for part in index.split(training.micro_batch or training.batch_size):
            take(_part_of(batch, part), len(part) / len(index))
        optimizer.step()
    return step_memory(meter, module, optimizer)


def _part_of(batch: Batch, part: Tensor) -> Batch:
    """Return some samples of a batch, in memory of their own."""
    return Batch(batch.x[part], batch.y[part], None if batch.present is None else batch.present.clone(), batch.draw)


def check_memory(memory: StepMemory, memory_bytes: float | None) -> None:
    """Raise :class:`OverMemory` where a step held more than ``memory_bytes``."""
    if memory_bytes is not None and memory.split.total > memory_bytes:
        raise OverMemory(memory.split.total, memory.peak_activation_bytes)


def batches(samples: int, batch_size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the positions of each batch of an epoch, drawn by ``rng``; the last batch may be smaller."""
    order = torch.from_numpy(rng.permutation(samples))
    return iter(order.split(batch_size))
