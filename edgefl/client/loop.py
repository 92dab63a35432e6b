"""The local loop: every method trains through it, with steps taken by torch or by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.fast.gradients import Gradient, written
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.training import Training
from edgefl.cost.memory import LivenessMeter, StepMemory, held_by, step_memory
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.methods.base import Method
from edgefl.records import Batch


@dataclass(frozen=True)
class LocalTraining:
    """A client's training in one round, ready to start; ``module`` is trained in place.

    Attributes:
        x, y, present: its samples (n, …), labels (n,) int64, and bool (classes,) whether it has samples of a label.
        rng, draws: shuffle the samples, and give each step its :attr:`Batch.draw` (None: steps draw nothing).
        memory_bytes: what its device has; None: no limit.
    """

    module: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    present: Tensor
    training: Training
    rng: np.random.Generator
    draws: np.random.Generator | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True)
class TrainingResult:
    """What the loop reports: the mean loss of the last epoch, and what a largest step holds, as metered."""

    loss: float
    steps: int
    peak_activation_bytes: int
    memory_bytes: int


Step = Callable[[Tensor, float | None], Iterable[tuple[Tensor | float, int]]]
"""Takes one optimizer step on the samples at some positions, with a draw; returns each pass's mean loss and number of samples."""


class OverMemory(Exception):  # noqa: N818  an outcome, not an error
    """A client's training holds ``held_bytes``, more than its device has."""

    def __init__(self, held_bytes: int, peak_activation_bytes: int) -> None:
        super().__init__(f"{held_bytes} bytes")
        self.held_bytes = held_bytes
        self.peak_activation_bytes = peak_activation_bytes


def optimizer_of(method: Method, module: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the client's optimizer as costs are counted for it; weight decay acts on the parameters that the method leaves to it."""
    decayed = set(method.decayed(module))
    split = ((training.weight_decay, True), (0.0, False))
    groups = [{"params": [p for p in module.parameters() if (p in decayed) == on], "weight_decay": decay} for decay, on in split]
    groups = [g for g in groups if g["params"]]
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, lr=training.lr, foreach=False)
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    return torch.optim.SGD(groups, lr=training.lr, momentum=momentum, foreach=False)


def run_steps(local: LocalTraining, step: Step) -> tuple[float, int]:
    """Take every step of a client's round; return the mean loss of the last epoch and the number of steps."""
    steps, values = 0, list[tuple[Tensor | float, int]]()
    for _ in range(local.training.epochs):
        values.clear()
        for index in batches(len(local.y), local.training.batch_size, local.rng):
            values += step(index, None if local.draws is None else float(local.draws.random()))
            steps += 1
    return sum(float(value) * count for value, count in values) / len(local.y), steps


def train(
    local: LocalTraining,
    optimizer: torch.optim.Optimizer | FusedOptimizer,
    gradient: Gradient | None = None,
    memory: StepMemory | None = None,
) -> TrainingResult:
    """Train a client's network in torch.

    Args:
        local: the client's training.
        optimizer: of the network's parameters.
        gradient: how gradients are computed; None: by autograd.
        memory: what a step of this kind holds. None: the first step, a largest one, is metered, and ``optimizer`` must be one of torch's.

    Raises:
        OverMemory: a step holds more than ``local.memory_bytes``.
    """
    module, loss = local.module, local.loss
    if not module.training:
        module.train()
    micro = local.training.micro_batch or local.training.batch_size
    gradient = gradient or written(module, loss)
    if memory is not None:
        check_memory(memory, local.memory_bytes)

    def step(index: Tensor, draw: float | None) -> list[tuple[Tensor | float, int]]:
        nonlocal memory
        index = index.to(local.x.device)
        if memory is None:
            assert isinstance(optimizer, torch.optim.Optimizer)  # whose state is part of what is metered
            whole = Batch(local.x[index], local.y[index], local.present, draw)
            memory, values = _metered_step(module, loss, optimizer, whole, micro)
            check_memory(memory, local.memory_bytes)
        else:
            values = []
            for part in index.split(micro):
                # Each pass weighs as many samples as it has, so that the sum is the gradient of the whole batch's mean.
                value = gradient(Batch(local.x[part], local.y[part], local.present, draw), len(part) / len(index))
                values.append((value, len(part)))
            optimizer.step()
        optimizer.zero_grad()
        return values

    mean, steps = run_steps(local, step)
    assert memory is not None  # a shard has at least one sample
    return TrainingResult(mean, steps, memory.peak_activation_bytes, memory.split.total)


def metered(method: Method, module: nn.Module, loss: Loss, batch: Batch, training: Training) -> StepMemory:
    """Take a step of ``module`` on ``batch`` and return what it holds; torch's generator stays as it is."""
    with uncompiled():
        optimizer = optimizer_of(method, module, training)
        with torch.random.fork_rng(devices=[]):
            return _metered_step(module, loss, optimizer, batch, training.micro_batch or training.batch_size)[0]


def _metered_step(
    module: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, batch: Batch, micro: int
) -> tuple[StepMemory, list[tuple[Tensor | float, int]]]:
    """Take a step on ``batch`` and return what it holds, and each pass's mean loss and number of samples."""
    meter, values = LivenessMeter(held_by(module)), list[tuple[Tensor | float, int]]()
    differentiate = written(module, loss, meter.mark)
    parts = torch.arange(len(batch.y), device=batch.y.device).split(micro)
    with meter:
        for part in parts:
            # A pass has samples and present labels of its own, as on a device, which nothing refers to when autograd needs them no more.
            value = differentiate(_part_of(batch, part), len(part) / len(batch.y))
            values.append((value.item(), len(part)))
            del value
        optimizer.step()
    return step_memory(meter, module, optimizer), values


def _part_of(batch: Batch, part: Tensor) -> Batch:
    return Batch(batch.x[part], batch.y[part], None if batch.present is None else batch.present.clone(), batch.draw)


def check_memory(memory: StepMemory, memory_bytes: float | None) -> None:
    """Raise :class:`OverMemory` if a step holds more than ``memory_bytes``."""
    if memory_bytes is not None and memory.split.total > memory_bytes:
        raise OverMemory(memory.split.total, memory.peak_activation_bytes)


def batches(samples: int, batch_size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the positions of each batch of an epoch, drawn by ``rng``; the last batch may be smaller."""
    order = torch.from_numpy(rng.permutation(samples))
    return iter(order.split(batch_size))
