"""The engine ``auto``: a short trial on this computer finds the fastest engine for a run. Its result is cached for later runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from pydantic import TypeAdapter
from torch import Tensor

from edgefl.client.fast.capture import CaptureError, Inputs, capture, gradient_of
from edgefl.client.fast.grouping import captured_together, gradients_of
from edgefl.client.fast.layout import in_layout
from edgefl.client.loss import loss_of
from edgefl.client.optimizer import FusedOptimizer
from edgefl.engine.fork_server import STARTS
from edgefl.engine.pool import TOGETHER
from edgefl.methods.capabilities import draws
from edgefl.methods.personal import trained_network
from edgefl.models.base import load, named_tensors
from edgefl.plugins import only_here
from edgefl.records import Batch, Tier
from edgefl.run.run import Run
from edgefl.util.fields import each, rows
from edgefl.util.machine import processor_name, usable_threads
from edgefl.util.modules import OBJECT
from edgefl.util.shelf import Facts, Shelf

LONG_S = 0.1
"""If a step takes longer, arithmetic dominates it. Steps of several clients together gain nothing then and are not tried."""
SHORT_RUN_S = 1.0
"""If the whole training takes less, starting worker processes costs more than they save."""
LONG_RUN_S = 10.0
"""If the whole training takes more, a run that names no engine gets worker processes."""
_STEP_S, _MACS_PER_S = 1e-3, 2e10
"""What a step takes besides its arithmetic, and the arithmetic of a core, of small networks on usual processors."""
_REPEATS = 9
_STEPS = 3
"""Version of the way in which steps are computed. Cached trials of other versions are not used."""
_LARGEST = 0.999
"""The draw of the most expensive step, if a draw decides what a step trains."""


@dataclass(frozen=True)
class EngineTrial:
    """Measured steps on this computer.

    Attributes:
        alone_s: seconds of one client's step.
        together_s: seconds per client if :data:`TOGETHER` clients take a step together; None: not tried.
    """

    alone_s: float
    together_s: float | None

    @property
    def groups(self) -> bool:
        """Whether training together is faster, by at least 5 % because measurements vary."""
        return self.together_s is not None and self.together_s < 0.95 * self.alone_s


_TRIAL = TypeAdapter(EngineTrial)
_TRIALS = Shelf[EngineTrial]("trials", _TRIAL.dump_json, _TRIAL.validate_json)


@dataclass(frozen=True)
class EngineChoice:
    """An engine, its workers, and why."""

    engine: str
    workers: int
    why: str


def choose(run: Run) -> EngineChoice:
    """Return the engine for a run, from the measured steps of its largest tier and their number."""
    config, cores = run.config, _cores(run)
    if config.enforce == "hard" or config.runtime == "onnx":
        return EngineChoice(
            "pool" if cores > 1 else "inline", cores, "--enforce hard and --runtime onnx train clients one at a time"
        )
    trial = _TRIALS.recalled(_key(run, cores), lambda: tried(run, run.tiers[0], 1 if cores > 1 else torch.get_num_threads()))
    step_s = trial.together_s if trial.groups and trial.together_s is not None else trial.alone_s
    steps = _steps(run)
    workers = cores if steps * step_s > SHORT_RUN_S else 1
    engine = "group" if trial.groups else "pool" if workers > 1 else "inline"
    among = "not tried" if trial.together_s is None else f"{1e3 * trial.together_s:.2f} ms"
    return EngineChoice(
        engine, workers, f"a step takes {1e3 * trial.alone_s:.2f} ms, among {TOGETHER} {among}; about {steps:,} steps"
    )


def usual(run: Run) -> tuple[str, int]:
    """Return the engine and the workers of a run that names none: a worker for every core where that saves more than their start costs.

    Both engines train to the same bits. The time of a step is an estimate, because a trial would take longer than a wrong choice costs.
    """
    config, training, cores = run.config, run.clients.task.training, _cores(run)
    if cores == 1 or not STARTS or only_here(config.plugins) or OBJECT in config.to_toml():
        return "inline", 1
    macs = sum(run.costs.of(tier).macs_sample for tier in run.tiers) / len(run.tiers)
    step_s = _STEP_S + training.batch_size * macs / _MACS_PER_S
    return ("pool", cores) if _steps(run) * step_s > LONG_RUN_S else ("inline", 1)


def _cores(run: Run) -> int:
    """Return how many processes can train clients at once."""
    return 1 if run.config.device == "cuda" else min(usable_threads(), run.per_round)


def _steps(run: Run) -> int:
    """Return about how many steps all clients of a run take."""
    return run.config.rounds * run.per_round * run.clients.task.training.steps(run.clients.shards.mean)


def tried(run: Run, tier: Tier, threads: int) -> EngineTrial:
    """Measure the steps of ``tier`` with ``threads`` threads of torch: one thread if worker processes will train.

    A step includes its batch and its update, and is captured as in a long run. Both kinds of steps take turns, and the fastest repeat of
    each counts.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _tried(run, tier)
    finally:
        torch.set_num_threads(before)


def _tried(run: Run, tier: Tier) -> EngineTrial:
    method, task, device = run.method, run.clients.task, run.clients.device
    training = replace(task.training, lr=0.0)  # every repeat computes the same step
    parts = run.clients.parts(method, tier)
    module, layout = parts.network(in_torch=True), parts.layout
    load(module, trained_network(method, run.first_state(), tier, parts.personal).state_dict())
    size = min(training.batch_size, len(run.data.train))
    first = run.data.train.taken(slice(size))
    x, y = each(partial(torch.tensor, device=device), first.x), torch.tensor(first.y, device=device)
    every = task.criterion.present(task.architecture.classes)
    present = None if every is None else every.to(device)
    inputs = Inputs(named_tensors(module), Batch(x, y, present, _LARGEST))
    loss, trained = loss_of(method, task.objective, task.criterion), list(parts.trained)
    written = gradient_of(module, in_layout(loss, layout), trained)
    try:
        taken = capture(written, inputs)
    except CaptureError:
        return EngineTrial(_least(lambda: written(inputs)[0])[0], None)
    order = torch.arange(size, device=device)
    update = FusedOptimizer(training, {name: inputs.tensors[name] for name in trained}, ())

    def alone() -> Tensor | None:
        value, *gradients = taken(Inputs(inputs.tensors, Batch(rows(x, order), y[order], present, _LARGEST)))
        update.apply(dict(zip(trained, gradients, strict=True)))
        return value

    (alone_s,) = _least(alone)
    if alone_s > LONG_S or draws(method, tier) != (None,) or training.micro_batch is not None:
        return EngineTrial(alone_s, None)
    several = inputs.like(torch.stack([tensor.detach()] * TOGETHER) for tensor in inputs.flat())
    try:
        all_taken = captured_together(taken, gradients_of(module, loss, trained), several)
    except CaptureError:
        return EngineTrial(alone_s, None)
    updates = FusedOptimizer(training, {name: several.tensors[name] for name in trained}, (), TOGETHER)

    def together() -> Tensor | None:
        xs, ys = (each(lambda part: torch.stack([part[order]] * TOGETHER), parts) for parts in (x, y))
        batch = Batch(xs, ys, several.batch.present)
        value, *gradients = all_taken(Inputs(several.tensors, batch))
        updates.apply(dict(zip(trained, gradients, strict=True)), slice(0, TOGETHER))
        return value

    alone_s, together_s = _least(alone, together)
    return EngineTrial(alone_s, together_s / TOGETHER)


def _least(*works: Callable[[], Tensor | None]) -> list[float]:
    found = [[float("inf")] for _ in works]
    for _ in range(_REPEATS):
        for work, times in zip(works, found, strict=True):
            work()
            started = time.perf_counter()
            loss = work()
            if loss is not None:
                loss.sum().item()  # waits until a graphics card has finished
            times.append(time.perf_counter() - started)
    return [min(times) for times in found]


def _key(run: Run, cores: int) -> Facts:
    """Return all that the result of a trial depends on."""
    config = run.config
    keys = ("method", "method_options", "model", "norm", "dataset", "batch_size", "micro_batch", "objective", "device")
    of_run = {key: getattr(config, key) for key in keys} | {"tier": run.tiers[0].ratio}
    here = {"processor": processor_name(), "torch": torch.__version__, "cores": cores}
    return {**of_run, **here, "together": TOGETHER, "steps": _STEPS}
