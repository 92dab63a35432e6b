"""The tasks that calibration times: matrix products, copies, training steps in torch, inference in onnxruntime.

Tasks run in rounds, each task once per round, so that a disturbance of some seconds affects all of them alike. The best quartile counts.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime
import torch

from edgefl.client.fast.capture import CaptureError, Inputs, Take, capture, gradient_of
from edgefl.client.fast.layout import in_layout, lay_out, layout_of
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.parts import first_personal
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.capabilities import draws
from edgefl.methods.create import create
from edgefl.methods.personal import trained_network
from edgefl.models.base import Architecture, named_tensors
from edgefl.onnxgrad.exporter import export
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Cost, Tier
from edgefl.rng import generator

Seconds = tuple[float, ...]
Task = Callable[[], Seconds]
Clock = Callable[[], float]
Readings = Mapping[str, Sequence[Seconds]]
"""Task → the seconds of its repeats."""

COPIED_BYTES = 64 * 2**20
SIDE = 512
"""The matrices of the timed product are so large, in both directions."""

_LEAST = 5
_READING_S = 0.02  # a shorter task is repeated within one reading
_RESOLUTION_S = 1e-6


def interleaved(tasks: Mapping[str, Task], seconds: float, least: int = _LEAST) -> Readings:
    """Run every task once per round, for about ``seconds`` and at least ``least`` rounds, after a warm-up round."""
    for task in tasks.values():
        task()
    readings: dict[str, list[Seconds]] = {name: [] for name in tasks}
    started = time.perf_counter()
    rounds, last_s = 0, 0.0
    while rounds < least or time.perf_counter() - started + last_s < seconds:
        begun = time.perf_counter()
        for name, task in tasks.items():
            readings[name].append(task())
        rounds, last_s = rounds + 1, time.perf_counter() - begun
    return readings


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


def product_task() -> Task:
    """Return a task that multiplies two float32 matrices of 512×512 on torch's threads."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    return timed(lambda: a @ b, clock_of(torch.get_num_threads()))


def copy_task() -> Task:
    """Return a task that copies :data:`COPIED_BYTES` on one core."""
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
    return timed(lambda: np.copyto(target, source), clock_of(1))


@dataclass(frozen=True)
class TrainedBench:
    """A tier that clients train by FedAvg or another method, with momentum.

    Attributes:
        batch_size: samples of a step.
    """

    architecture: Architecture
    batch_size: int
    method: Method = field(default_factory=lambda: create("fedavg"))
    tier: Tier = field(default_factory=lambda: Tier(1.0))

    @property
    def cost(self) -> Cost:
        """The traced costs."""
        return tier_cost(self.method, self.architecture, self.tier, self._training)

    @property
    def _training(self) -> Training:
        return training_for(self.batch_size, None, "momentum")

    def task(self, forward: bool = False) -> Task:
        """Return a task that times a client's step in torch on noise: a forward and backward pass, and the update.

        The step is captured, and images lie in memory, as in long runs. ``forward`` adds a forward pass alone as a third time.
        """
        method, tier, architecture = self.method, self.tier, self.architecture
        personal = first_personal(method, architecture, tier, 0)
        tiers = (Tier(1.0), tier) if len(method.default_tiers) > 1 and tier.ratio != 1.0 else (tier,)
        state = method.init(architecture, tiers, generator(0, "init"))
        module = trained_network(method, state, tier, personal).train()
        x = architecture.samples(self.batch_size)
        x = torch.randn_like(x) if x.is_floating_point() else torch.randint(0, architecture.vocabulary or 1, x.shape)
        present = torch.ones(architecture.classes, dtype=torch.bool)
        y, kinds = torch.randint(0, architecture.classes, (self.batch_size,)), len(draws(method, tier))
        layout = layout_of(module, x[:1])
        lay_out(module, layout)
        loss = in_layout(loss_of(method, PLAIN), layout)
        drawn = [Inputs(named_tensors(module), Batch(x, y, present, (at + 0.5) / kinds)) for at in range(kinds)]
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        take = gradient_of(module, loss, list(trained))
        takes = [_captured(take, inputs) for inputs in drawn]
        optimizer = FusedOptimizer(replace(self._training, lr=0.0), trained, ())
        clock = clock_of(torch.get_num_threads())

        def once() -> Seconds:
            begun = clock()
            for captured, inputs in zip(takes, drawn, strict=True):
                _, *gradients = captured(inputs)
            updating = clock()
            optimizer.apply(dict(zip(trained, gradients, strict=True)))
            updated = clock()
            if not forward:
                return (updating - begun) / kinds, updated - updating
            with torch.no_grad():
                loss(module, drawn[0].batch)
            return (updating - begun) / kinds, updated - updating, clock() - updated

        return repeated(once)


def _captured(take: Take, inputs: Inputs) -> Take:
    try:
        return capture(take, inputs)
    except CaptureError:
        return take


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
