"""The memory of one network: predicted by edgefl, measured by torch's allocator and by onnxruntime."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from edgefl.client.loop import LocalTraining, train
from edgefl.client.training import Training
from edgefl.cost.memory import bytes_of, held_by
from edgefl.cost.step_memory import MemorySplit, StepMemory, optimizer_tensors
from edgefl.cost.trace import Subject, Tracer
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.predict import predict_capped
from edgefl.records import Batch
from edgefl.util.fields import first
from memory.network import Network, loss_of

CLASSES = 10
NO_LIMIT = 10**11


def installed(network: Network) -> bool:
    """Whether the library that a network is from is installed."""
    return not network.needs or importlib.util.find_spec(network.needs) is not None


def predicted(network: Network) -> tuple[int, int]:
    """Return the predicted bytes of a training step, all that it holds, and of an inference, without weights and input."""

    def batch(size: int) -> Batch:
        return Batch(torch.zeros(size, *network.shape, dtype=_dtype(network)), torch.zeros(size, dtype=torch.int64), _present())

    tracer = Tracer(Subject(network.build, batch, _loss, _optimizer))
    training = tracer.step(network.batch_size).memory.split.total
    deployed = tracer if network.deployed is None else Tracer(Subject(network.deployed, batch, _loss, _optimizer))
    inference = deployed.inference(network.batch_size).peak_bytes
    return training, inference - network.batch_size * tracer.input_bytes


def trained_bytes(network: Network) -> int:
    """Return what a step of the client's loop holds: the allocator's peak, with what is there before, the optimizer's state included.

    The second step is measured. The first one makes the optimizer's state and whatever torch caches.
    """
    module, optimizer, step = client_step(network)
    step()
    return bytes_of(held_by(module)) + bytes_of(optimizer_tensors(optimizer)) + allocated_peak(step)


def client_step(network: Network) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], object]]:
    """Return the network's module, its optimizer, and a step of the client's loop that trains it."""
    module = _filled(network.build)
    optimizer = _optimizer(module)
    training = Training(epochs=1, batch_size=network.batch_size, lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, y = network.inputs(network.batch_size), torch.arange(network.batch_size) % CLASSES
    local = LocalTraining(module, _loss, x, y, _present(), training, np.random.default_rng(0))
    return module, optimizer, partial(train, local, optimizer, memory=StepMemory(MemorySplit(0, 0, 0, 0, 0), 0, 0, 0))


def allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that ``run`` had allocated at once, by the record of torch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def inference_bytes(network: Network) -> int:
    """Return what onnxruntime holds for an inference of the exported network, besides its weights and its input."""
    module = _filled(network.deployed or network.build).eval()
    graph = export(module, {"x": network.inputs(2)}).SerializeToString()
    x = network.inputs(network.batch_size).numpy()
    return predict_capped(graph, x, batch_size=network.batch_size, memory_bytes=NO_LIMIT).peak_activation_bytes


def _filled(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return build().train()


def _dtype(network: Network) -> torch.dtype:
    return torch.int64 if network.vocabulary else torch.float32


def _present() -> Tensor:
    return torch.ones(CLASSES, dtype=torch.bool)


def _loss(module: nn.Module, batch: Batch) -> Tensor:
    return loss_of(module, first(batch.x), batch.y)


def _optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=False)
