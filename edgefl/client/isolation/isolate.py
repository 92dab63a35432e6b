"""Clients in processes of their own, limited to their devices' memory by the system (``enforce = "hard"``).

``Job.memory_bytes`` limits what the cost model counts, from the first step to the last: the bytes of the network, and everything that the
process allocates on top. It does not limit the interpreter and its libraries, samples, the payload, or a baseline. The baseline is what
libraries load and allocate permanently in a tiny training step; each worker measures it once.

The system limits pages, not tensors, so that limits below :func:`floor_bytes` cannot be enforced. Scratch memory of kernels counts: on 8×8
images in batches of 32 a small convolutional network needs 9 % more than its tensors, ResNet-9 6 %. A session near its limit may end
differently on another computer.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from multiprocessing.connection import Connection

import psutil
import torch
from pydantic import TypeAdapter
from pydantic_core import to_json
from torch import Tensor, nn

from edgefl.client.client import Clients, Loop
from edgefl.client.isolation import limits
from edgefl.client.isolation.cgroup import Cgroup, cgroup_folder
from edgefl.client.isolation.forked import Ended, OverLimitError, Watch, in_child, is_shortage
from edgefl.client.isolation.limits import MIB, Guard, Held, own, peak_bytes
from edgefl.client.job import Job
from edgefl.client.loop import LocalTraining, TrainingResult, train
from edgefl.client.messages import read_outcomes, write_outcomes
from edgefl.client.training import Training
from edgefl.cost.memory import LivenessMeter, bytes_of, held_by
from edgefl.cost.step_memory import StepMemory
from edgefl.errors import ConfigError, EdgeflError
from edgefl.records import Batch, Outcome
from edgefl.rng import generator, torch_seeded

# Address space that the generated kernels of a layer may reserve for their code without touching it; 2.4 MiB was the most seen.
_RESERVED_BYTES = 4 * MIB
_TRIES = 3  # to measure the baseline
_METERING_S = 60.0  # processor time for metering, in addition to the limit of a client
_FLOOR = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from edgefl.client.isolation.isolate import measure_floor; sys.stdout.write(str(measure_floor()))"
)
_TINY = Training(epochs=1, batch_size=8, lr=0.01, momentum=0.9, weight_decay=1e-4, micro_batch=4)


@dataclass(frozen=True)
class Baseline:
    """The memory that a fresh process keeps after a tiny training step; ``private_bytes`` includes pages that it stops sharing."""

    more: Held
    private_bytes: int


@dataclass(frozen=True)
class Limiter:
    """Limits the process of a client to its memory by ``guard`` and ``cgroup``; ``baseline`` is not counted."""

    guard: Guard
    baseline: Baseline
    cgroup: Cgroup | None = None

    def train(self, memory_bytes: int, watch: Watch, loop: Loop, local: LocalTraining) -> TrainingResult:
        """Train by ``loop`` within ``memory_bytes``, network included; raise :class:`OverLimitError` if they are too few."""
        limits.trim()
        limits.reset_peak()
        now, there, baseline = own(), bytes_of(held_by(local.module)), self.baseline
        base_bytes = now.resident_bytes + baseline.more.resident_bytes - there
        reserved_bytes = _RESERVED_BYTES * (1 + sum(p.dim() > 1 for p in local.module.parameters()))
        room = memory_bytes - there
        if self.guard.watchdog:
            watch(base_bytes + memory_bytes, base_bytes)
        try:
            data_bytes = now.data_bytes + baseline.more.data_bytes + reserved_bytes + room
            with limits.limited(self.guard, self.cgroup, data_bytes, baseline.private_bytes + room):
                result = loop(local)
        except Exception as error:
            if is_shortage(error):
                raise OverLimitError(peak_bytes() - base_bytes) from None
            raise
        if self.guard.watchdog:
            if (most_bytes := peak_bytes() - base_bytes) > memory_bytes:
                raise OverLimitError(most_bytes)
            watch(None, 0)
        return result


class Isolated:
    """Runs jobs of ``clients``, each in a process forked from this one and limited by ``guard`` (None: by all that this system has).

    This process must have one thread and must not train. For ``inherited`` see :func:`edgefl.client.isolation.forked.in_child`.
    """

    def __init__(self, clients: Clients, guard: Guard | None = None, inherited: Sequence[Connection] = ()) -> None:
        self._clients, self._inherited = clients, inherited
        self._guard, self.baseline = prepared(guard)

    def run(self, job: Job) -> Outcome:
        """Run one client's job, which may end ``out_of_memory``, ``out_of_time`` or ``crashed``. An error of the client is raised here."""
        self._meter(job)
        with _limiter(self._guard, self.baseline) as limiter:
            work = partial(_run, self._clients, job, limiter)
            ended = in_child(work, self._clients.task.cpu_limit_s, self._inherited)
            return _outcome(job, ended, limiter.cgroup is not None and limiter.cgroup.killed())

    def _meter(self, job: Job) -> None:
        """Meter a step of the job's kind once, in a process of its own: freed memory would be available to the client beyond its limit."""
        if job.memory_bytes is None or job.graphs is not None:
            return
        memory = self._clients.parts(job.method, job.tier).memory
        if (kind := self._clients.kind(job)) in memory:
            return
        limit_s = self._clients.task.cpu_limit_s + _METERING_S
        ended = in_child(lambda watch: to_json(self._clients.meter(job)), limit_s, self._inherited)
        if ended.how == "done":  # otherwise the client's process fails in the same way, and says why
            memory[kind] = TypeAdapter(StepMemory).validate_json(ended.result)


def prepared(guard: Guard | None = None) -> tuple[Guard, Baseline]:
    """Prepare this process for forks. Return how memory is limited here, and the baseline; raise ChildProcessError if that is killed."""
    limits.give_back_freed()
    _warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page of objects that it inherited
    guard = guard or Guard(cgroups=cgroup_folder())
    for _ in range(_TRIES):
        ended = in_child(lambda watch: to_json((limits.data_limit_holds(), _measured_baseline())))
        if ended.how == "done":
            holds, baseline = TypeAdapter(tuple[bool, Baseline]).validate_json(ended.result)
            return replace(guard, data_limit=guard.data_limit and holds), baseline
    raise ended.error or ChildProcessError(f"the process that measures the memory of libraries has ended ({ended.how})")


def check_platform() -> None:
    """Raise :class:`ConfigError` if processes cannot be forked and limited here."""
    if not hasattr(os, "fork"):
        raise ConfigError(
            "enforce: hard needs processes that are forked, and limits on them, which Windows does not have; use meter, or run in WSL"
        )


def check_limit(what: str, memory_bytes: float) -> None:
    """Raise :class:`ConfigError` if a limit of ``memory_bytes`` cannot be enforced here; ``what`` names the device.

    >>> check_limit("phone", 2**40)
    """
    check_platform()
    if memory_bytes < (floor := floor_bytes()):
        raise ConfigError(
            f"enforce: hard cannot limit {what} to {memory_bytes:,.0f} bytes of memory, expected at least {floor:,} on this computer, "
            "because the memory of a process varies by as much; use meter, or take the device out of the fleet"
        )


@cache
def floor_bytes() -> int:
    """Return the least limit, in whole MiB, within which a tiny training step runs here. A process of its own measures it once."""
    command = [sys.executable, "-P", "-c", _FLOOR, json.dumps(list(map(str, sys.path)))]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise EdgeflError("the process that measures the least memory limit died; run again, or use meter")
    return int(done.stdout)


def measure_floor() -> int:
    """Measure :func:`floor_bytes` in this process, which must be new and cannot be used for anything else."""
    torch.set_num_threads(1)
    guard, baseline = prepared()
    for limit_bytes in count(MIB, MIB):
        with _limiter(guard, baseline) as limiter:
            if all(in_child(partial(_tiny, limiter, limit_bytes)).how == "done" for _ in range(3)):
                break
    return limit_bytes


@contextlib.contextmanager
def _limiter(guard: Guard, baseline: Baseline) -> Iterator[Limiter]:
    cgroup = None if guard.cgroups is None else Cgroup.make(guard.cgroups)
    try:
        yield Limiter(guard, baseline, cgroup)
    finally:
        if cgroup is not None:
            cgroup.remove()


def _outcome(job: Job, ended: Ended, killed: bool) -> Outcome:
    if ended.how == "done":
        return read_outcomes(ended.result)[0]
    if ended.how == "error":
        raise ended.error or EdgeflError("a client's process failed without a reason")
    if killed or ended.how == "out_of_memory":
        return Outcome(job.client, "out_of_memory", 1, host_memory_bytes=ended.peak_bytes)
    return Outcome(job.client, ended.how)


def _run(clients: Clients, job: Job, limiter: Limiter, watch: Watch) -> bytes:
    """Run a client's job in this forked process, under its memory limit while it trains; return the outcome as a message."""
    within: Callable[[Loop], Loop] | None = None
    if job.memory_bytes is not None and job.graphs is not None:  # onnxruntime's own allocator is limited, to the byte
        within = partial(partial, capped=True)
    elif job.memory_bytes is not None:
        within = partial(partial, limiter.train, int(job.memory_bytes), watch)
    return write_outcomes([clients.run(job, within)])


def _tiny(limiter: Limiter, memory_bytes: int, watch: Watch) -> bytes:
    with torch_seeded(generator(0, "probe")):
        local, loop = _tiny_training()
        limiter.train(memory_bytes, watch, loop, local)
    return b""


def _measured_baseline() -> Baseline:
    with torch_seeded(generator(0, "probe")):
        local, loop = _tiny_training()
        process = psutil.Process()
        before, private_bytes = own(), process.memory_full_info().uss
        loop(local)
    return Baseline(own() - before, max(0, process.memory_full_info().uss - private_bytes))


def _tiny_training() -> tuple[LocalTraining, Loop]:
    """Return the training of a network with a layer of each common kind, and its loop, which meters itself."""
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    module = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=False)
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    rngs = generator(0, "probe", "train"), generator(0, "probe", "draw")
    local = LocalTraining(module, _loss, x, y, torch.ones(10, dtype=torch.bool), _TINY, *rngs)
    return local, partial(train, optimizer=optimizer)


def _loss(module: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(module(batch.x), batch.y)


def _warm_up() -> None:
    """Import what torch imports in an optimizer's first step, which takes a second, and prepare kernels, without a backward pass."""
    with torch_seeded(generator(0, "probe")):
        local, _ = _tiny_training()
        module = local.module
        with LivenessMeter(held_by(module)):
            local.loss(module, Batch(local.x, local.y, local.present))
        parameters = list(module.parameters())
        for optimizer in (torch.optim.SGD(parameters, momentum=0.9, foreach=False), torch.optim.Adam(parameters, foreach=False)):
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
