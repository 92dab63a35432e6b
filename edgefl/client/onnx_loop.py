"""The local loop with its steps taken by onnxruntime: the same batches in the same order as :func:`edgefl.client.loop.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.loop import OverMemory, Trained, batches
from edgefl.client.training import Training
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, SHARE, STATES
from edgefl.onnxgrad.stepper import ArenaFullError, StepGraphs, Stepper, peak_bytes


def train_in_onnx(
    graphs: StepGraphs,
    module: nn.Module,
    loss: object,
    optimizer: object,
    x: Tensor,
    y: Tensor,
    present: Tensor,
    training: Training,
    rng: np.random.Generator,
    draws: np.random.Generator | None = None,
    memory_bytes: float | None = None,
    capped: bool = False,
) -> Trained:
    """Train ``module`` in place, as :func:`edgefl.client.loop.train` does; ``loss`` and ``optimizer`` are in the graphs.

    ``capped`` makes ``memory_bytes`` a limit that onnxruntime's allocator has, in this process for good; without it, what the first step
    had in use is held against it.

    Raises:
        OverMemory: a step holds more than ``memory_bytes``.
    """
    tensors, names = named_tensors(module), graphs.roles.tensors
    arrays = {value: tensors[name].detach().numpy() for name, value in names.items()}
    arrays["present"] = present.numpy()
    samples, labels = x.numpy(), y.numpy()
    held_bytes = _held_bytes(graphs, arrays, training)
    room = None if not capped or memory_bytes is None else int(memory_bytes) - held_bytes
    if room is not None and room <= 0:
        raise OverMemory(held_bytes, 0)
    micro = training.micro_batch if training.micro_batch and training.micro_batch < training.batch_size else None
    stepper = Stepper(graphs, arrays, training.lr, beta_of(training), parts=micro is not None, arena_bytes=room)
    peak, total, steps = None, 0.0, 0
    for _ in range(training.epochs):
        total = 0.0
        for index in batches(len(labels), training.batch_size, rng):
            kind = 0 if draws is None else min(int(float(draws.random()) * len(graphs.steps)), len(graphs.steps) - 1)
            part = index.numpy()
            batch = samples[part], labels[part]
            if peak is None:
                peak = batch[0].nbytes + (0 if capped else _metered(graphs, stepper, arrays, batch, kind, micro))
                if not capped and memory_bytes is not None and held_bytes + peak > memory_bytes:
                    raise OverMemory(held_bytes + peak, peak)
            try:
                value = stepper.step(*batch, kind=kind, part=micro)
            except ArenaFullError as full:
                raise OverMemory(held_bytes + full.need_bytes, full.need_bytes) from None
            total += value * len(part)
            steps += 1
    after = stepper.tensors()
    with torch.no_grad():
        for name, role in names.items():
            if role in after:
                tensors[name].copy_(torch.from_numpy(after[role]))
    assert peak is not None  # a shard has at least one sample
    return Trained(total / len(labels), steps, peak, held_bytes + peak)


def beta_of(training: Training) -> float:
    """Return what training graphs take as ``beta``: the momentum, or Adam's β₁, which is torch's own."""
    return {"momentum": training.momentum, "adam": 0.9, "sgd": 0.0}[training.optimizer]


def _held_bytes(graphs: StepGraphs, arrays: Mapping[str, np.ndarray], training: Training) -> int:
    """Return what a stepper holds between steps: everything that changes twice, to read the one and write the other."""
    roles, states = graphs.roles, len(STATES[training.optimizer])
    copies = ((roles.trained, 2 * (1 + states)), (roles.statistics, 2), (roles.frozen, 1))
    return sum(count * arrays[value].nbytes for values, count in copies for value in values.values())


def _metered(
    graphs: StepGraphs, stepper: Stepper, arrays: Mapping[str, Any], batch: Sequence[np.ndarray], kind: int, micro: int | None
) -> int:
    """Return what onnxruntime has in use at the peak of a step like this one, measured once for each graph and batch size."""
    graph = graphs.steps[kind] if micro is None else graphs.passes[kind]
    x, y = (array[:micro] for array in batch)
    key = (graph, x.shape)
    if key not in _METERED:
        scalars = {name: np.ones((), np.float32) for name in (LEARNING_RATE, BETA, SHARE)}
        _METERED[key] = peak_bytes(graph, {**arrays, **stepper.tensors(), **scalars, "x": x, "y": y})
    return _METERED[key]


_METERED: dict[tuple[bytes, tuple[int, ...]], int] = {}
