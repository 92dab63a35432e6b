"""The local training loop of every method. torch takes the steps here, onnxruntime in :mod:`edgefl.client.onnx_loop`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.fast.gradients import Gradient, written
from edgefl.client.optimizer import FusedOptimizer, clipping
from edgefl.client.per_sample import StepNoise
from edgefl.client.training import Training
from edgefl.cost.memory import LivenessMeter, held_by
from edgefl.cost.step_memory import StepMemory, step_memory
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.methods.base import Method
from edgefl.methods.momenta import momenta_of
from edgefl.methods.penalties import decayed
from edgefl.records import Batch
from edgefl.util.fields import Fields, first, rows


@dataclass(frozen=True)
class LocalTraining:
    """A client's training in one round, ready to start; ``module`` is trained in place.

    Attributes:
        x, y, present: all its samples (n, …), by name if there are several inputs; labels (n,) int64 or targets (n, …) float32; whether it
            has samples of each label, bool (classes,), or None without labels.
        rng, draws: shuffle the samples, and give each step its :attr:`Batch.draw`; None: steps draw nothing.
        memory_bytes: what the device has for training; None: no limit.
        flips: chooses the samples to mirror; None: none are mirrored.
        noise: added to the gradients of every step; None: none is.
    """

    module: nn.Module
    loss: Loss
    x: Fields[Tensor]
    y: Tensor
    present: Tensor | None
    training: Training
    rng: np.random.Generator
    draws: np.random.Generator | None = None
    memory_bytes: float | None = None
    flips: np.random.Generator | None = None
    noise: StepNoise | None = None

    def epoch(self) -> Iterator[Tensor]:
        """Yield the positions (int64) of each batch of an epoch, shuffled by ``rng``; the last batch may be smaller.

        Of n samples, position n + i is sample i, mirrored left-right. Each sample comes once, with ``flips`` mirrored or not.
        """
        order = torch.from_numpy(self.rng.permutation(len(self.y)))
        if self.flips is not None:
            order += len(order) * torch.from_numpy(self.flips.integers(2, size=len(order)))
        return iter(order.split(self.training.batch_size))

    def at(self, positions: Tensor) -> tuple[Fields[Tensor], Tensor]:
        """Return the samples (batch, …) and labels (batch,) at ``positions`` of :meth:`epoch`.

        >>> from types import SimpleNamespace
        >>> some = SimpleNamespace(x=torch.arange(4.0).view(2, 1, 1, 2), y=torch.tensor([7, 8]), flips=np.random.default_rng(0))
        >>> LocalTraining.at(some, torch.tensor([3, 0]))[0].flatten().tolist()
        [3.0, 2.0, 0.0, 1.0]
        """
        if self.flips is None:
            return rows(self.x, positions), self.y[positions]
        x, y = (part[positions % len(self.y)] for part in (first(self.x), self.y))
        mirrored = (positions >= len(self.y)).view(-1, *[1] * (x.dim() - 1))
        return torch.where(mirrored, x.flip(-1), x), y


@dataclass(frozen=True)
class TrainingResult:
    """The mean loss of the last epoch, the number of steps, and the metered peaks of a largest step."""

    loss: float
    steps: int
    peak_activation_bytes: int
    memory_bytes: int


Step = Callable[[Tensor, float | None], Iterable[tuple[Tensor | float, int]]]
"""Takes one optimizer step on the samples at positions, with a draw; returns mean loss and number of samples of each pass."""


class OverMemory(Exception):  # noqa: N818  an outcome, not an error
    """A training step of a client holds ``held_bytes``, more than its device has."""

    def __init__(self, held_bytes: int, peak_activation_bytes: int) -> None:
        super().__init__(f"{held_bytes} bytes")
        self.held_bytes = held_bytes
        self.peak_activation_bytes = peak_activation_bytes


def optimizer_of(method: Method, module: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return torch's optimizer of a client, for which costs are counted; it clips gradients if ``training`` does.

    Weight decay acts on :func:`decayed` ones only.
    """
    those = set(decayed(method, module))
    split = ((training.weight_decay, True), (0.0, False))
    groups = [{"params": [p for p in module.parameters() if (p in those) == on], "weight_decay": decay} for decay, on in split]
    groups = [g for g in groups if g["params"]]
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(groups, lr=training.lr, foreach=False)
        if training.optimizer == "adam"
        else torch.optim.SGD(groups, lr=training.lr, momentum=momentum, foreach=False)
    )
    for name, handed in momenta_of(module).items():
        optimizer.state[module.get_parameter(name)]["momentum_buffer"] = handed
    return optimizer if training.clip_gradient is None else clipping(optimizer, module, training.clip_gradient)


def run_steps(local: LocalTraining, step: Step) -> tuple[float, int]:
    """Take every step of a client's round; return the mean loss of the last epoch and the number of steps."""
    steps, values = 0, list[tuple[Tensor | float, int]]()
    for _ in range(local.training.epochs):
        values.clear()
        for positions in local.epoch():
            values += step(positions, None if local.draws is None else float(local.draws.random()))
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
        local: the client's training; its network is changed in place.
        optimizer: of the network's parameters.
        gradient: how gradients are computed; None: by autograd.
        memory: what a largest step holds. None: the first step is metered, and ``optimizer`` must be one of torch's.

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

    def step(positions: Tensor, draw: float | None) -> list[tuple[Tensor | float, int]]:
        nonlocal memory
        positions = positions.to(local.y.device)
        if memory is None:
            assert isinstance(optimizer, torch.optim.Optimizer)  # whose state is part of what is metered
            whole = Batch(*local.at(positions), local.present, draw)
            memory, values = _metered_step(module, loss, optimizer, whole, micro, local.noise)
            check_memory(memory, local.memory_bytes)
        else:
            values = []
            for part in positions.split(micro):
                # Passes are weighted by their samples, so that gradients add up to that of the whole batch's mean loss.
                value = gradient(Batch(*local.at(part), local.present, draw), len(part) / len(positions))
                values.append((value, len(part)))
            if local.noise is not None:
                local.noise.add(module, len(positions))
            optimizer.step()
        optimizer.zero_grad()
        return values

    mean, steps = run_steps(local, step)
    assert memory is not None  # a shard has at least one sample
    return TrainingResult(mean, steps, memory.peak_activation_bytes, memory.split.total)


def metered(method: Method, module: nn.Module, loss: Loss, batch: Batch, training: Training) -> StepMemory:
    """Train ``module`` by one step on ``batch`` and return what the step holds; torch's generator is not advanced."""
    with uncompiled():
        optimizer = optimizer_of(method, module, training)
        noise = None if training.sample_clip is None else StepNoise(training.noise_multiplier * training.sample_clip)
        with torch.random.fork_rng(devices=[]):
            return _metered_step(module, loss, optimizer, batch, training.micro_batch or training.batch_size, noise)[0]


def _metered_step(
    module: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, batch: Batch, micro: int, noise: StepNoise | None = None
) -> tuple[StepMemory, list[tuple[Tensor | float, int]]]:
    """Take a step on ``batch`` and return what it holds, and each pass's mean loss and number of samples."""
    meter, values = LivenessMeter(held_by(module)), list[tuple[Tensor | float, int]]()
    differentiate = written(module, loss, meter.mark)
    parts = torch.arange(len(batch.y), device=batch.y.device).split(micro)
    with meter:
        for part in parts:
            # A pass gets copies, as on a device: they are freed as soon as autograd needs them no more.
            value = differentiate(_part_of(batch, part), len(part) / len(batch.y))
            values.append((value.item(), len(part)))
            del value
        if noise is not None:
            noise.add(module, len(batch.y))
        optimizer.step()
    return step_memory(meter, module, optimizer), values


def _part_of(batch: Batch, part: Tensor) -> Batch:
    return Batch(rows(batch.x, part), batch.y[part], None if batch.present is None else batch.present.clone(), batch.draw)


def check_memory(memory: StepMemory, memory_bytes: float | None) -> None:
    """Raise :class:`OverMemory` if a step holds more than ``memory_bytes``."""
    if memory_bytes is not None and memory.split.total > memory_bytes:
        raise OverMemory(memory.split.total, memory.peak_activation_bytes)
