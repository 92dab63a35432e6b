"""A simulated device: it takes a payload, trains the tier's network on its own shard, and answers with a payload."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.fast.gradients import written
from edgefl.client.fast.grouping import Samples, train_together
from edgefl.client.fast.layout import in_layout
from edgefl.client.job import Job, Member, Task, Work
from edgefl.client.loop import OverMemory, Trained, check_memory, metered, train
from edgefl.client.objective import Objective
from edgefl.client.optimizer import Update
from edgefl.client.parts import Parts
from edgefl.cost.memory import StepMemory
from edgefl.cost.trace import Loss
from edgefl.data.mix import load
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.methods.base import Method
from edgefl.models.base import named_tensors
from edgefl.records import Batch, Outcome, Tier
from edgefl.rng import generator, torch_seeded
from edgefl.timing.spans import span
from edgefl.util.finite import is_finite
from edgefl.wire.codec import codec_named
from edgefl.wire.payload import decode, encode

Tensors = Mapping[str, Tensor]
Loop = Callable[..., Trained]
KEPT = 32
"""Tiers, in phases of their methods, whose networks and captures a process keeps: the last that it has played."""


class Clients:
    """The clients of a run, played in this process: data and shards, loaded once."""

    def __init__(self, task: Task, data: Dataset | None = None) -> None:
        self.task = task
        self.data: Dataset = data or load(task.dataset, task.data_dir)
        self.shards = Shards(self.data, task.clients, task.partition, task.seed, task.permute_labels, task.data_share)
        self.device = torch.device(task.device)
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False  # the same bits in every run
        self._parts: dict[Hashable, Parts] = {}
        self._last: tuple[Method, Tier, Parts] | None = None  # mostly it is asked for again
        self._arrived: tuple[object, dict[str, Tensor]] = None, {}

    def run(self, job: Job, within: Callable[[Loop], Loop] | None = None) -> Outcome:
        """Play one client's part: decode, load, train, encode. ``within`` makes another loop of the one it would train by.

        Training that ends in NaN or infinity is an outcome (``diverged``), whose tensors are not sent, nor kept; so is a step that holds
        more than the device has, where the run meters it (``out_of_memory``).
        """
        with self.begun(job) as work:
            loop = self.loop(work) if within is None else within(self.loop(work, captures=False))
            try:
                with span("train", client=job.client):
                    result = loop(*arguments(work))
            except OverMemory as over:
                return over_memory(job, over)
            return self.ended(work, result)

    def run_all(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Play the parts of several clients of a tier, trained together where that can be; their outcomes in the order of ``jobs``.

        They are those of :meth:`run` but for the order of sums in float32.
        """
        if len(jobs) == 1 or not all(map(_simple, jobs)):
            return [self.run(job) for job in jobs]
        outcomes: dict[int, Outcome] = {}
        crew: list[Member] = []
        for number, job in enumerate(jobs):
            with self.begun(job) as work:
                memory = self.held(work)
                try:
                    check_memory(memory, work.memory_bytes)
                except OverMemory as over:
                    outcomes[number] = over_memory(job, over)
                else:
                    tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(work.module).items()}
                    crew.append(Member(number, work, tensors, memory))
        if crew:
            outcomes |= self._trained_together(sorted(crew, key=lambda member: -len(member.work.y)))
        return [outcomes[number] for number in range(len(jobs))]

    def _trained_together(self, crew: Sequence[Member]) -> dict[int, Outcome]:
        """Return number → outcome of clients, of which those with the most samples are first."""
        first = crew[0].work
        job, module = first.job, first.module
        stack = {name: torch.stack([member.tensors[name] for member in crew]) for name in crew[0].tensors}
        samples = [Samples(w.x, w.y, w.present, w.rng, w.loss) for w in (member.work for member in crew)]
        with torch_seeded(generator(self.task.seed, job.round, job.client, "together")), span("train", clients=len(crew)):
            results = train_together(module, stack, first.parts.decayed, samples, first.training, first.parts.gradients)
        outcomes = {}
        for row, (member, (loss, steps)) in enumerate(zip(crew, results, strict=True)):
            with torch.no_grad():
                for name, tensor in named_tensors(module).items():
                    tensor.copy_(stack[name][row])
            memory = member.memory
            result = Trained(loss, steps, memory.peak_activation_bytes, memory.split.total)
            outcomes[member.number] = self.ended(member.work, result)
        return outcomes

    @contextlib.contextmanager
    def begun(self, job: Job) -> Iterator[Work]:
        """Yield what a client trains with, before its first step; within, torch's generator is the client's."""
        task, method, client = self.task, job.method, job.client
        training = task.training.at(job.round)
        training = training if job.micro_batch is None else replace(training, micro_batch=job.micro_batch)
        parts = self.parts(method, job.tier)
        with span("decode", client=client):
            arrived = self._decoded(job, parts)
            personal, memory = self._kept(job, parts)
        shard = self.shards.train(client)
        x, y = (torch.from_numpy(np.asarray(part)).to(self.device) for part in (shard.x, shard.y))
        has = np.zeros(task.architecture.classes, bool)
        has[shard.y] = True
        present = torch.from_numpy(has).to(self.device)
        rng = generator(task.seed, job.round, client, "train")
        draws = generator(task.seed, job.round, client, "draw") if _drawn(job) else None
        module = parts.network()
        received = {name: arrived[name] for name in parts.shapes}
        with torch_seeded(rng):
            method.receive(module, received, personal, (x, y))
            task.objective.attach(module, parts.parameters, memory, arrived)
            loss = loss_of(method, task.objective, received)
            limited = task.enforce == "meter" or (task.enforce == "hard" and job.graphs is not None)
            limit = job.memory_bytes if limited else None
            yield Work(job, parts, module, arrived, memory, loss, x, y, present, training, rng, draws, limit)

    def loop(self, work: Work, captures: bool = True) -> Loop:
        """Return the loop that a client trains by: torch's, or that of onnxruntime where its job has the steps as graphs.

        Captures of steps stay in memory: a process that is held to a client's memory does without.
        """
        if work.job.graphs is not None:
            from edgefl.client.onnx_loop import train_in_onnx  # workers that train in torch do without onnxruntime

            return partial(train_in_onnx, work.job.graphs)
        parts, choices = work.parts, len(work.job.method.draws(work.job.tier))
        loss = in_layout(work.loss, parts.layout)
        captured = partial(parts.gradients.gradient, "one", parameters=parts.trained, choices=choices)
        gradient = captured(work.module, loss) if captures else written(work.module, loss)
        return partial(train, gradient=gradient, memory=self.held(work))

    def held(self, work: Work) -> StepMemory:
        """Return what a largest step of a client holds: metered once for all clients for whom it is the same."""
        job, training = work.job, work.training
        largest = slice(0, training.batch_size)
        batch = Batch(work.x[largest], work.y[largest], work.present, self._first_draw(job))

        def measure() -> StepMemory:
            # What a network has done before it may have kept: one that has done nothing is measured, whoever comes first.
            with span("meter", client=job.client), torch.no_grad():
                other, tensors = work.parts.another(), named_tensors(work.module)
                for name, tensor in named_tensors(other).items():
                    tensor.copy_(tensors[name])
                self.task.objective.attach(other, work.parts.parameters, work.memory, work.arrived)
                with torch.enable_grad():
                    return metered(job.method, other, work.loss, batch, training)

        return work.parts.held(self.kind(job), measure)

    def kind(self, job: Job) -> Hashable:
        """Return what decides, of a tier's clients, how much a largest step holds."""
        chosen = int(self._first_draw(job) * len(job.method.draws(job.tier)))
        size = min(self.task.training.batch_size, self.shards.size(job.client))
        return chosen, size, job.micro_batch or self.task.training.micro_batch

    def meter(self, job: Job) -> StepMemory:
        """Return :meth:`held` of a job, whose client does not train."""
        with self.begun(job) as work:
            return self.held(work)

    def _first_draw(self, job: Job) -> float:
        return float(generator(self.task.seed, job.round, job.client, "draw").random()) if _drawn(job) else 0.0

    def ended(self, work: Work, result: Trained) -> Outcome:
        """Return what became of a client that trained: its update, or that it is no number."""
        task, job, method, module = self.task, work.job, work.job.method, work.module
        client = job.client
        control, memory = task.objective.finish(module, work.memory, work.arrived, result.steps, work.training.lr)
        sent = {name: tensor.cpu() for name, tensor in {**method.upload(module), **control}.items()}
        kept_back = method.keep(module, {name: work.arrived[name] for name in work.parts.shapes})
        keep = {name: tensor.cpu() for name, tensor in {**kept_back, **memory}.items()}
        measured = result.peak_activation_bytes, result.memory_bytes
        finite = all(is_finite(tensor) for tensor in (*sent.values(), *keep.values()))
        if not math.isfinite(result.loss) or not finite:
            return Outcome(client, "diverged", result.steps, None, *measured)
        with span("encode", client=client):
            rounding = generator(task.seed, job.round, client, "codec") if codec_named(task.codec).draws else None
            payload = encode(sent, task.codec, rounding)
            kept = encode(keep) if keep else b""
        return Outcome(client, "trained", result.steps, result.loss, *measured, payload=payload, kept=kept)

    def parts(self, method: Method, tier: Tier) -> Parts:
        """Return what the clients of a tier have in common under ``method``, a phase of the run's."""
        if self._last is not None and method is self._last[0] and tier == self._last[1]:
            return self._last[2]
        key = type(method), method.config.model_dump_json(), tier
        found = self._parts.pop(key, None) or Parts(method, self.task.architecture, tier, self.task.seed, self.device)
        self._parts[key] = found
        if len(self._parts) > KEPT:
            del self._parts[next(iter(self._parts))]
        self._last = method, tier, found
        return found

    def _decoded(self, job: Job, parts: Parts) -> dict[str, Tensor]:
        """Return the tensors of a payload; clients of a tier that are sent the same one after the other share them."""
        if self._arrived[0] is not job.payload:
            control = self.task.objective.control_shapes(parts.parameters) if self.task.objective.controls else {}
            tensors = decode(job.payload, {**parts.shapes, **control}, f"client {job.client}")
            self._arrived = job.payload, {name: tensor.to(self.device) for name, tensor in tensors.items()}
        return self._arrived[1]

    def _kept(self, job: Job, parts: Parts) -> tuple[Tensors, Tensors]:
        """Return the personal tensors and the objective's memory of the client: as it left them, or the first ones."""
        memory = self.task.objective.first_memory(parts.parameters if self.task.objective.remembers else {})
        memory = {name: tensor.to(self.device) for name, tensor in memory.items()}
        if job.kept is None:
            return parts.personal, memory
        expected = {name: tuple(tensor.shape) for name, tensor in {**parts.personal, **memory}.items()}
        stored = decode(job.kept, expected, f"what client {job.client} kept")
        stored = {name: tensor.to(self.device) for name, tensor in stored.items()}
        return {name: stored[name] for name in parts.personal}, {name: stored[name] for name in memory}


def _simple(job: Job) -> bool:
    """Whether a client takes plain steps, the same in all that is not a tensor as others of its tier."""
    return job.graphs is None and job.micro_batch is None and not _drawn(job)


def _drawn(job: Job) -> bool:
    """Whether a draw decides what a step does."""
    return job.method.draws(job.tier) != (None,)


def arguments(work: Work) -> tuple[Any, ...]:
    """Return the arguments of a local loop, in its order."""
    optimizer = update_of(work)
    own = work.x, work.y, work.present, work.training, work.rng, work.draws
    return work.module, work.loss, optimizer, *own, work.memory_bytes


def update_of(work: Work) -> Update:
    """Return the optimizer of a client; weight decay acts on the parameters that the method leaves to it."""
    return Update(work.training, work.parts.trained, work.parts.decayed)


def over_memory(job: Job, over: OverMemory) -> Outcome:
    """Return the outcome of a client whose step held more than its device has."""
    return Outcome(job.client, "out_of_memory", 1, None, over.peak_activation_bytes, over.held_bytes)


def loss_of(method: Method, objective: Objective, received: Mapping[str, Tensor]) -> Loss:
    """Return what a client minimises on a batch: the method's loss and the objective's term."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        value = method.local_loss(module, batch, received)
        return value + objective.term(module) if objective.adds else value

    return loss
