"""The tasks that calibration times: matrix products, convolutions, copies, training steps in torch, inference in onnxruntime.

Tasks run in rounds, each task once per round, so that a disturbance of some seconds affects all of them alike. The best quartile counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import nn

from edgefl.client.loop import optimizer_of
from edgefl.methods.base import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.exporter import export
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Cost, Tier

Seconds = tuple[float, ...]
Task = Callable[[], Seconds]
Clock = Callable[[], float]
Readings = Mapping[str, Sequence[Seconds]]
"""Task → the seconds of its repeats."""

COPIED_BYTES = 64 * 2**20
_SIDE = 512
_CHANNELS, _PIXELS = 64, 28
KERNELS = {
    "gemm": _SIDE**3,
    "convolution 3x3": 9 * _CHANNELS**2 * _PIXELS**2,
    "convolution 1x1": 4 * _CHANNELS**2 * _PIXELS**2,
    "values": 6 * 8 * _CHANNELS * _PIXELS**2,
}
"""Kernel → its MACs: a product of 512×512 matrices; one image with 64 channels, 28×28; 1×1 with twice the channels.

``values`` has values instead: normalisation, ReLU and pooling, forward and backward, of a batch of eight.
"""

_LEAST = 5
_READING_S = 0.02  # a shorter task is repeated within one reading
_RESOLUTION_S = 1e-6


def interleaved(tasks: Mapping[str, Task], seconds: float, least: int = _LEAST) -> Readings:
    """Run every task once per round, for about ``seconds`` and at least ``least`` rounds, after a warm-up round."""
    for task in tasks.values():
        task()
    found: dict[str, list[Seconds]] = {name: [] for name in tasks}
    started = time.perf_counter()
    rounds, last_s = 0, 0.0
    while rounds < least or time.perf_counter() - started + last_s < seconds:
        begun = time.perf_counter()
        for name, task in tasks.items():
            found[name].append(task())
        rounds, last_s = rounds + 1, time.perf_counter() - begun
    return found


def clock_of(threads: int) -> Clock:
    """Return the clock of work on so many threads, in seconds: processor time of one thread, wall time of several."""
    fine = time.get_clock_info("process_time").resolution <= _RESOLUTION_S
    return time.process_time if threads == 1 and fine else time.perf_counter


def repeated(once: Task) -> Task:
    """Return a task that reads ``once``; a short one is read several times, and the mean counts."""
    once()
    times = max(1, int(_READING_S / max(sum(once()), 1e-7)))

    def task() -> Seconds:
        if times == 1:
            return once()
        once()  # fills the caches, which another network's task may have emptied
        readings = [once() for _ in range(times)]
        return tuple(sum(parts) / times for parts in zip(*readings, strict=True))

    return task


def timed(run: Callable[[], object], clock: Clock) -> Task:
    """Return a task that times ``run``."""

    def once() -> Seconds:
        begun = clock()
        run()
        return (clock() - begun,)

    return repeated(once)


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads within a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernel_tasks() -> dict[str, Task]:
    """Return a task for each of :data:`KERNELS`, float32, on torch's threads."""
    a, b = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    image, wide = torch.randn(1, _CHANNELS, _PIXELS, _PIXELS), torch.randn(1, 2 * _CHANNELS, _PIXELS, _PIXELS)
    square, point = torch.randn(_CHANNELS, _CHANNELS, 3, 3), torch.randn(2 * _CHANNELS, 2 * _CHANNELS, 1, 1)
    maps = torch.randn(8, _CHANNELS, _PIXELS, _PIXELS, requires_grad=True)
    norm, ones = nn.GroupNorm(32, _CHANNELS), torch.ones(8, _CHANNELS, _PIXELS // 2, _PIXELS // 2)

    def values() -> None:
        maps.grad = None
        F.max_pool2d(F.relu(norm(maps)), 2).backward(ones)

    convolutions = (lambda: F.conv2d(image, square, padding=1)), (lambda: F.conv2d(wide, point))
    runs = zip(KERNELS, (lambda: a @ b, *convolutions, values), strict=True)
    clock = clock_of(torch.get_num_threads())
    return {name: timed(run, clock) for name, run in runs}


def copy_task() -> Task:
    """Return a task that copies :data:`COPIED_BYTES` on one core."""
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
    return timed(lambda: np.copyto(target, source), clock_of(1))


def step_cost(architecture: Architecture, batch_size: int) -> Cost:
    """Return the cost of a training step of a whole network, under federated averaging with momentum."""
    return tier_cost(create("fedavg"), architecture, Tier(1.0), training_for(batch_size, None, "momentum"))


def step_task(architecture: Architecture, batch_size: int) -> Task:
    """Return a task that times a client's training step in torch, on noise: the forward and backward pass, and the update."""
    method, classes = create("fedavg"), architecture.classes
    network = architecture.build().train()
    optimizer = optimizer_of(method, network, training_for(batch_size, None, "momentum"))
    x = architecture.samples(batch_size)
    x = torch.randn_like(x) if x.is_floating_point() else torch.randint(0, architecture.vocabulary or 1, x.shape)
    batch = Batch(x, torch.randint(0, classes, (batch_size,)), torch.ones(classes, dtype=torch.bool))
    clock = clock_of(torch.get_num_threads())

    def once() -> Seconds:
        begun = clock()
        method.local_loss(network, batch).backward()
        passed = clock()
        optimizer.step()
        optimizer.zero_grad()
        return passed - begun, clock() - passed

    return repeated(once)


def inference_task(graph: bytes, architecture: Architecture, threads: int) -> Task:
    """Return a task that runs one sample through an exported graph in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    sample = {"x": torch.zeros_like(architecture.samples(1)).numpy()}
    return timed(lambda: session.run(None, sample), clock_of(threads))


def graph_of(architecture: Architecture) -> bytes:
    """Return the inference graph of a network with fresh weights."""
    samples = torch.zeros_like(architecture.samples(2))
    return export(architecture.build().eval(), {"x": samples}, ["logits"]).SerializeToString(deterministic=True)
