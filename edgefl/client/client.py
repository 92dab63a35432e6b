"""Simulated clients: each receives a payload, trains its tier's network on its own shard, and returns a payload."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from edgefl.client.conduct import started
from edgefl.client.fast.gradients import written
from edgefl.client.fast.grouping import train_together
from edgefl.client.fast.layout import in_layout
from edgefl.client.job import GroupMember, Job, PreparedJob, Task
from edgefl.client.leaving import first_memory
from edgefl.client.loop import LocalTraining, OverMemory, TrainingResult, check_memory, metered, train
from edgefl.client.loss import loss_of
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.outcome import outcome_after_training, over_memory
from edgefl.client.parts import Parts
from edgefl.client.per_sample import StepNoise
from edgefl.client.recompute.tape import recomputing
from edgefl.cost.step_memory import StepMemory
from edgefl.data.mix import load
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.methods.base import Method
from edgefl.methods.capabilities import draws
from edgefl.methods.momenta import momenta_of
from edgefl.methods.personal import received
from edgefl.methods.state import Tensors
from edgefl.models.base import named_tensors
from edgefl.records import Batch, Outcome, Tier
from edgefl.rng import generator, torch_seeded
from edgefl.timing.spans import span
from edgefl.util.fields import each, rows
from edgefl.wire.payload import decode

Loop = Callable[[LocalTraining], TrainingResult]
CACHED = 32
"""So many :class:`Parts` are cached: those of the tiers, in phases of their methods, that this process trained last."""
IDLE = TrainingResult(0.0, 0, 0, 0)
"""The result of a client that does not train."""


class Clients:
    """The clients of the run that ``task`` describes, trained in this process; ``data`` None: the task's data set is loaded."""

    def __init__(self, task: Task, data: Dataset | None = None) -> None:
        self.task = task
        self.data: Dataset = data or load(task.dataset, task.data_dir, task.validation_share, task.reading, task.public_share)
        divided = task.clients, task.partition, task.seed, task.permute_labels, task.data_share, task.test_samples
        self.shards = Shards(self.data, *divided)
        self.device = torch.device(task.device)
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False  # the same bits in every run
        self._parts: dict[Hashable, Parts] = {}
        self._last: tuple[Method, Tier, Parts] | None = None  # the next job mostly needs the same
        self._arrived: tuple[object, dict[str, Tensor]] = None, {}

    def run(self, job: Job, within: Callable[[Loop], Loop] | None = None) -> Outcome:
        """Run one client's job: decode, load, train, encode. ``within`` maps the loop that it would train by to another.

        Failures are outcomes: ``diverged`` (NaN or too large: nothing is sent or stored) and, if memory is metered, ``out_of_memory``.
        WireError is raised if the payload, or what the client stored, is damaged or does not fit the tier.
        """
        with self.prepared(job) as prepared:
            if not self.trains(job.client):
                return outcome_after_training(self.task, self.shards, prepared, IDLE)
            loop = self.loop(prepared) if within is None else within(self.loop(prepared, captures=False))
            try:
                with span("train", client=job.client):
                    result = loop(prepared.local)
            except OverMemory as over:
                return over_memory(job, over)
            return outcome_after_training(self.task, self.shards, prepared, result)

    def run_all(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run the jobs of several clients of a tier and round, together if possible; return outcomes in the order of ``jobs``.

        The outcomes equal those of :meth:`run`, except for the order of sums in float32.
        """
        if len(jobs) == 1 or not all(map(_simple, jobs)) or self.parts(jobs[0].method, jobs[0].tier).unset:
            return [self.run(job) for job in jobs]
        outcomes: dict[int, Outcome] = {}
        group: list[GroupMember] = []
        for number, job in enumerate(jobs):
            if not self.trains(job.client):
                outcomes[number] = self.run(job)
                continue
            with self.prepared(job) as prepared:
                memory = self.held(prepared)
                try:
                    check_memory(memory, prepared.local.memory_bytes)
                except OverMemory as over:
                    outcomes[number] = over_memory(job, over)
                else:
                    tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(prepared.local.module).items()}
                    group.append(GroupMember(number, prepared, tensors, memory))
        if group:
            outcomes |= self._trained_together(sorted(group, key=lambda member: -len(member.prepared.local.y)))
        return [outcomes[number] for number in range(len(jobs))]

    def _trained_together(self, group: Sequence[GroupMember]) -> dict[int, Outcome]:
        """Return number → outcome of the clients of ``group``, which must begin with those that have the most samples."""
        first = group[0].prepared
        stack = {name: torch.stack([member.tensors[name] for member in group]) for name in group[0].tensors}
        rng = generator(self.task.seed, first.job.round, first.job.client, "together")
        with torch_seeded(rng), span("train", clients=len(group)):
            local = [member.prepared.local for member in group]
            results = train_together(local, stack, first.parts.decayed, first.parts.gradients)
        outcomes = {}
        for row, (member, (loss, steps)) in enumerate(zip(group, results, strict=True)):
            with torch.no_grad():
                for name, tensor in named_tensors(first.local.module).items():
                    tensor.copy_(stack[name][row])
            result = TrainingResult(loss, steps, member.memory.peak_activation_bytes, member.memory.split.total)
            outcomes[member.number] = outcome_after_training(self.task, self.shards, member.prepared, result)
        return outcomes

    @contextlib.contextmanager
    def prepared(self, job: Job) -> Iterator[PreparedJob]:
        """Yield a client's job, ready for its first step. Within the block, torch's generator is seeded for the client."""
        task, method, client, training = self.task, job.method, job.client, self.task.training.at(job.round)
        training = replace(training, micro_batch=job.micro_batch or training.micro_batch, recompute=job.recompute)
        parts = self.parts(method, job.tier)
        with span("decode", client=client):
            arrived = self._decoded(job, parts)
            personal, memory = self._kept(job, parts)
        shard, conduct = self.shards.train(client), task.conduct_of(client)
        if conduct is not None:
            shard = conduct.samples(client, shard, self.data.classes)
        x = each(lambda part: torch.from_numpy(np.asarray(part)).to(self.device), shard.x)
        y = torch.from_numpy(shard.y).to(self.device)
        present = task.criterion.present(task.architecture.classes)
        if present is not None and training.sample_clip is None:  # of DP-SGD, one sample must not change the loss of others
            present[:] = False
            present[torch.from_numpy(shard.y)] = True
        present = None if present is None else present.to(self.device)
        rng = generator(task.seed, job.round, client, "train")
        chances = generator(task.seed, job.round, client, "draw") if _drawn(job) else None
        flips = generator(task.seed, job.round, client, "flip") if training.augment == "flip" else None
        module = parts.network(in_torch=job.graphs is None)
        limited = task.enforce == "meter" or (task.enforce == "hard" and job.graphs is not None)
        limit = job.memory_bytes if limited else None
        with torch_seeded(rng):
            received(method, module, {name: arrived[name] for name in parts.shapes}, personal, (x, y))
            start = {} if conduct is None else started(method, module)
            task.objective.attach(module, parts.parameters, memory, arrived)
            loss = loss_of(method, task.objective, task.criterion, training.sample_clip)
            loss = recomputing(loss, job.recompute) if job.recompute else loss
            local = LocalTraining(module, loss, x, y, present, training, rng, chances, limit, flips, self._step_noise(job))
            yield PreparedJob(job, parts, arrived, memory, local, conduct, start)

    def loop(self, prepared: PreparedJob, captures: bool = True) -> Loop:
        """Return the loop that a client trains by: onnxruntime's if its job has the steps as graphs, else torch's.

        ``captures`` allows torch's loop to capture steps. A process that is limited to a client's memory must not: captures stay in memory.
        """
        job, parts = prepared.job, prepared.parts
        if job.graphs is not None:
            from edgefl.client.onnx_loop import train_in_onnx  # workers that train in torch do without onnxruntime

            return partial(train_in_onnx, graphs=job.graphs)
        module, loss = prepared.local.module, in_layout(prepared.local.loss, parts.layout)
        memory, gradient = self.held(prepared), written(module, loss)
        if captures and not job.recompute and not parts.unset:  # what forward sets in one step, the next may read
            gradient = parts.gradients.gradient("one", module, loss, parts.trained, len(draws(job.method, job.tier)))
        optimizer = FusedOptimizer(prepared.local.training, parts.trained, parts.decayed, momenta=momenta_of(module))
        return partial(train, optimizer=optimizer, gradient=gradient, memory=memory)

    def held(self, prepared: PreparedJob) -> StepMemory:
        """Return the memory of a client's largest step. It is metered once for all clients of its :meth:`kind`."""
        job, local, memories = prepared.job, prepared.local, prepared.parts.memory
        if (kind := self.kind(job)) in memories:
            return memories[kind]
        largest = slice(0, local.training.batch_size)
        batch = Batch(rows(local.x, largest), local.y[largest], local.present, self._first_draw(job))

        # A network that has trained may hold caches. A new one gives every client the same figure, whichever comes first.
        with span("meter", client=job.client), torch.no_grad():
            other, tensors = prepared.parts.another(), named_tensors(local.module)
            for name, tensor in named_tensors(other).items():
                tensor.copy_(tensors[name])
            self.task.objective.attach(other, prepared.parts.parameters, prepared.memory, prepared.arrived)
            with torch.enable_grad():
                memories[kind] = metered(job.method, other, local.loss, batch, local.training)
        return memories[kind]

    def kind(self, job: Job) -> Hashable:
        """Return what determines the memory of a largest step among a tier's clients: draw, batch, samples per pass, what is recomputed."""
        chosen = int(self._first_draw(job) * len(draws(job.method, job.tier)))
        size = min(self.task.training.batch_size, self.shards.size(job.client))
        return chosen, size, job.micro_batch or self.task.training.micro_batch, job.recompute

    def trains(self, client: int) -> bool:
        """Whether ``client`` trains."""
        conduct = self.task.conduct_of(client)
        return conduct is None or conduct.trains(client)

    def meter(self, job: Job) -> StepMemory:
        """Return the memory of the largest step of a job, as :meth:`held` does, without training the client."""
        with self.prepared(job) as prepared:
            return self.held(prepared)

    def _step_noise(self, job: Job) -> StepNoise | None:
        """Return the noise of a client's steps in a round; None unless clients train by DP-SGD."""
        training = self.task.training
        if training.sample_clip is None:
            return None
        seed = int(generator(self.task.seed, job.round, job.client, "privacy").integers(2**63))
        return StepNoise(training.noise_multiplier * training.sample_clip, torch.Generator(self.device).manual_seed(seed))

    def _first_draw(self, job: Job) -> float:
        return float(generator(self.task.seed, job.round, job.client, "draw").random()) if _drawn(job) else 0.0

    def parts(self, method: Method, tier: Tier) -> Parts:
        """Return what the clients of a tier have in common under ``method``, from the cache if possible."""
        if self._last is not None and method is self._last[0] and tier == self._last[1]:
            return self._last[2]
        key = type(method), method.config.model_dump_json(), tier
        parts = self._parts.pop(key, None) or Parts(method, self.task.architecture, tier, self.task.seed, self.device)
        self._parts[key] = parts
        if len(self._parts) > CACHED:
            del self._parts[next(iter(self._parts))]
        self._last = method, tier, parts
        return parts

    def _decoded(self, job: Job, parts: Parts) -> dict[str, Tensor]:
        """Return the tensors of a job's payload. Consecutive jobs with the same payload share them."""
        if self._arrived[0] is not job.payload:
            control = self.task.objective.control_shapes(parts.parameters) if self.task.objective.controls else {}
            tensors = decode(job.payload, {**parts.shapes, **control}, f"client {job.client}")
            self._arrived = job.payload, {name: tensor.to(self.device) for name, tensor in tensors.items()}
        return self._arrived[1]

    def _kept(self, job: Job, parts: Parts) -> tuple[Tensors, Tensors]:
        """Return the client's personal tensors, and what its objective and the stages store: of its last round, or the initial ones."""
        memory = self.task.objective.first_memory(parts.parameters if self.task.objective.remembers else {})
        memory |= first_memory(self.task.stages, parts.shapes)
        memory = {name: tensor.to(self.device) for name, tensor in memory.items()}
        if job.kept is None:
            return parts.personal, memory
        personal = {name: tensor for name, tensor in parts.personal.items() if name in parts.stored}
        expected = {name: tuple(tensor.shape) for name, tensor in {**personal, **memory}.items()}
        stored = decode(job.kept, expected, f"what client {job.client} kept")
        stored = {name: tensor.to(self.device) for name, tensor in stored.items()}
        return {**parts.personal, **{name: stored[name] for name in personal}}, {name: stored[name] for name in memory}


def _simple(job: Job) -> bool:
    """Whether a job can be trained with others of its tier: their steps then differ in tensors only."""
    return job.graphs is None and job.micro_batch is None and not job.recompute and not _drawn(job)


def _drawn(job: Job) -> bool:
    """Whether the method chooses at random in every step."""
    return draws(job.method, job.tier) != (None,)
