"""The local training loop with steps by onnxruntime, on the same batches as :func:`edgefl.client.loop.train`, in the same order."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from edgefl.client.loop import LocalTraining, OverMemory, TrainingResult, run_steps
from edgefl.client.training import Training
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, SEED, SHARE, STATES, Roles, sum_input
from edgefl.onnxgrad.session import OutOfMemoryError
from edgefl.onnxgrad.stepper import Arrays, StepGraphs, Stepper, peak_bytes
from edgefl.util.fields import named


def train_in_onnx(local: LocalTraining, graphs: StepGraphs, capped: bool = False) -> TrainingResult:
    """Train a client's network by ``graphs``, which contain loss and optimizer; raise OverMemory beyond ``local.memory_bytes``.

    ``capped`` makes these the limit of onnxruntime's allocator, permanently in this process. Otherwise the first step is metered.
    """
    tensors, names, training = named_tensors(local.module), graphs.roles.tensors, local.training
    arrays = {role: tensors[name].detach().numpy() for name, role in names.items()}
    # The job's seed of torch's own random numbers also decides which entries dropout drops.
    arrays |= {} if local.present is None else {"present": local.present.numpy()}
    arrays |= {SEED: np.array(torch.initial_seed() % 2**23, np.float32)}
    micro = training.micro_batch if training.micro_batch and training.micro_batch < training.batch_size else None
    sizes = {name: array.nbytes for name, array in arrays.items()}
    fixed_bytes = held_bytes(graphs.roles, sizes, training.optimizer, parts=micro is not None)
    limit_bytes = local.memory_bytes
    room = None if not capped or limit_bytes is None else int(limit_bytes) - fixed_bytes
    if room is not None and room <= 0:
        raise OverMemory(fixed_bytes, 0)
    stepper = Stepper(graphs, arrays, training.lr, beta_of(training), parts=micro is not None, arena_bytes=room)
    peak: int | None = None

    def step(positions: Tensor, draw: float | None) -> list[tuple[Tensor | float, int]]:
        nonlocal peak
        kind = 0 if draw is None else min(int(draw * len(graphs.steps)), len(graphs.steps) - 1)
        x, y = local.at(positions)
        batch = [part.numpy() for part in (*named(x, "x").values(), y)]
        if peak is None:
            inputs_bytes = sum(part.nbytes for part in batch[:-1])
            peak = inputs_bytes + (0 if capped else _metered(graphs, stepper, arrays, batch, kind, micro))
            if not capped and limit_bytes is not None and fixed_bytes + peak > limit_bytes:
                raise OverMemory(fixed_bytes + peak, peak)
        try:
            return [(stepper.step(*batch, kind=kind, part=micro), len(y))]
        except OutOfMemoryError as full:
            raise OverMemory(fixed_bytes + full.need_bytes, full.need_bytes) from None

    mean, steps = run_steps(local, step)
    after = stepper.tensors()
    with torch.no_grad():
        for name, role in names.items():
            if role in after:
                tensors[name].copy_(torch.from_numpy(after[role]))
    assert peak is not None  # a shard has at least one sample
    return TrainingResult(mean, steps, peak, fixed_bytes + peak)


def beta_of(training: Training) -> float:
    """Return the input ``beta`` of training graphs: the momentum, or Adam's β₁ with torch's default of 0.9."""
    return {"momentum": training.momentum, "adam": 0.9, "sgd": 0.0}[training.optimizer]


def held_bytes(roles: Roles, bytes_of: Mapping[str, int], optimizer: str, parts: bool) -> int:
    """Return what a stepper holds between steps: tensors that change are held twice, one copy to read and one to write.

    ``bytes_of`` maps inputs of the graphs to bytes. If batches are taken in ``parts``, the sums of gradients are held as well.
    """
    copies = ((roles.trained, 2 * (1 + len(STATES[optimizer]) + parts)), (roles.statistics, 2), (roles.frozen, 1))
    return sum(count * bytes_of.get(value, 0) for values, count in copies for value in values.values())


def _metered(
    graphs: StepGraphs, stepper: Stepper, arrays: Arrays, batch: Sequence[np.ndarray], kind: int, micro: int | None
) -> int:
    """Return onnxruntime's peak bytes in such a step, in all graphs that it runs, measured once for each graph and batch size."""
    feed = dict(zip(graphs.roles.batch, (array[:micro] for array in batch), strict=True))
    scalars = {name: np.ones((), np.float32) for name in (LEARNING_RATE, BETA, SHARE)}
    sums = {} if micro is None else {sum_input(name): np.zeros_like(arrays[role]) for name, role in graphs.roles.trained.items()}
    ran = (graphs.steps[kind],) if micro is None else (graphs.passes[kind], graphs.update)
    for graph in ran:
        if (graph, feed["y"].shape) not in _METERED:
            _METERED[graph, feed["y"].shape] = peak_bytes(graph, {**arrays, **stepper.tensors(), **scalars, **sums, **feed})
    return max(_METERED[graph, feed["y"].shape] for graph in ran)


_METERED: dict[tuple[bytes, tuple[int, ...]], int] = {}
