"""A simulated device: it takes a payload, trains the tier's network on its own shard, and answers with a payload."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from edgefl.cost.trace import Loss
from edgefl.data.mix import load
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.local.objective import PLAIN, Objective
from edgefl.local.train import OverMemory, Trained, Training, optimizer_of, train
from edgefl.methods.base import Method
from edgefl.models.base import Architecture, Unfilled
from edgefl.records import Batch, Outcome, Tier
from edgefl.rng import generator, torch_seeded
from edgefl.wire import decode, encode

if TYPE_CHECKING:
    from edgefl.local.onnx_training import StepGraphs

Shapes = dict[str, tuple[int, ...]]
Enforce = Literal["plan", "meter", "hard"]
"""How a client's memory is held to its device's: foreseen, metered while it trains, or limited for its process by the system."""


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to play any client of a run: plain values, the data are loaded where they are used."""

    seed: int
    dataset: str
    data_dir: str | None
    partition: str
    clients: int
    architecture: Architecture
    training: Training
    objective: Objective = PLAIN
    codec: str = "fp32"
    permute_labels: bool = False
    data_share: float = 1.0
    enforce: Enforce = "plan"
    cpu_limit_s: float = 600.0


@dataclass(frozen=True)
class Job:
    """One client's part in one round: who, under which method and tier, what it receives, and what it kept from before.

    ``kept`` is None before a client's first round. ``planned`` is the outcome that the server expects: device, samples, simulated
    seconds and joules, bytes. ``memory_bytes`` is what the device has for training now, ``micro_batch`` how many samples it takes at once
    where that is fewer than the run's configuration says. ``graphs`` are the steps of its tier where onnxruntime trains.
    """

    round: int
    method: Method
    tier: Tier
    payload: bytes = field(repr=False)
    planned: Outcome
    kept: bytes | None = field(default=None, repr=False)
    memory_bytes: float | None = None
    micro_batch: int | None = None
    graphs: StepGraphs | None = field(default=None, repr=False)

    @property
    def loop(self) -> Callable[..., Trained]:
        """The local loop: torch's, or that of onnxruntime where the job has its steps as ``graphs``."""
        if self.graphs is None:
            return train
        from edgefl.local.onnx_loop import train_in_onnx  # workers that train in torch do without onnxruntime

        return partial(train_in_onnx, self.graphs)


class Clients:
    """The clients of a run, played in this process: data and shards, loaded once."""

    def __init__(self, task: Task, data: Dataset | None = None) -> None:
        self.task = task
        self.data: Dataset = data or load(task.dataset, task.data_dir)
        self.shards = Shards(self.data, task.clients, task.partition, task.seed, task.permute_labels, task.data_share)

    def run(self, job: Job, loop: Callable[..., Trained] | None = None) -> Outcome:
        """Play one client's part: decode, build, load, train by ``loop`` (None: the job's own), encode.

        Training that ends in NaN or infinity is an outcome (``diverged``), whose tensors are not sent, nor kept; so is a step that holds
        more than the device has, where the run meters it (``out_of_memory``).
        """
        task, method, client = self.task, job.method, job.planned.client
        training = task.training.at(job.round)
        training = training if job.micro_batch is None else replace(training, micro_batch=job.micro_batch)
        limited = task.enforce == "meter" or (task.enforce == "hard" and job.graphs is not None)
        limit_bytes = job.memory_bytes if limited else None
        shapes = method.shapes(task.architecture, job.tier)
        parameters = trained_shapes(method, task.architecture, job.tier) if task.objective.remembers else {}
        arrived = decode(job.payload, shapes | task.objective.control_shapes(parameters), f"client {client}")
        received = {name: tensor for name, tensor in arrived.items() if name in shapes}
        personal, memory = self._kept(job, parameters)
        rng = generator(task.seed, job.round, client, "train")
        with torch_seeded(rng):
            with Unfilled():
                module = method.network(task.architecture, job.tier)
            shard = self.shards.train(client)
            x, y = torch.from_numpy(shard.x), torch.from_numpy(shard.y)
            method.receive(module, received, personal, (x, y))
            present = torch.zeros(task.architecture.classes, dtype=torch.bool)
            present[y.unique()] = True
            task.objective.attach(module, shared_parameters(method, module), memory, arrived)
            optimizer = optimizer_of(method, module, training)
            loss = loss_of(method, task.objective, received)
            draws = generator(task.seed, job.round, client, "draw")
            try:
                result = (loop or job.loop)(module, loss, optimizer, x, y, present, training, rng, draws, limit_bytes)
            except OverMemory as over:
                lost = replace(job.planned, status="out_of_memory", steps=1, upload_bytes=0)
                lost = replace(lost, measured_peak_activation_bytes=over.peak_activation_bytes)
                return replace(lost, measured_training_memory_bytes=over.held_bytes)
        control, memory = task.objective.finish(module, memory, arrived, result.steps, training.lr)
        sent = {**method.upload(module), **control}
        keep = {**method.keep(module, received), **memory}
        done = replace(job.planned, steps=result.steps, measured_peak_activation_bytes=result.peak_activation_bytes)
        done = replace(done, measured_training_memory_bytes=result.memory_bytes)
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in (*sent.values(), *keep.values()))
        if not math.isfinite(result.loss) or not finite:
            return replace(done, status="diverged", upload_bytes=0)
        payload = encode(sent, task.codec, generator(task.seed, job.round, client, "codec"))
        done = replace(done, status="trained", train_loss=result.loss, upload_bytes=len(payload), payload=payload)
        return replace(done, kept=encode(keep)) if keep else done

    def _kept(self, job: Job, parameters: Shapes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the personal tensors and the objective's memory of the client: as it left them, or the first ones."""
        task, method = self.task, job.method
        personal = first_personal(method, task.architecture, job.tier, task.seed)
        memory = task.objective.first_memory(parameters)
        if job.kept is None:
            return personal, memory
        expected = {name: tuple(tensor.shape) for name, tensor in {**personal, **memory}.items()}
        stored = decode(job.kept, expected, f"what client {job.planned.client} kept")
        return {name: stored[name] for name in personal}, {name: stored[name] for name in memory}


def first_personal(method: Method, architecture: Architecture, tier: Tier, seed: int) -> dict[str, Tensor]:
    """Return what every client of ``tier`` keeps before its first round."""
    return method.first_personal(architecture, tier, generator(seed, "init"))


def shared_parameters(method: Method, network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of ``network`` that do not stay on the client: what an objective can pull or correct."""
    personal = method.personal(network)
    return {name: parameter for name, parameter in network.named_parameters() if name not in personal}


def trained_shapes(method: Method, architecture: Architecture, tier: Tier) -> Shapes:
    """Return name → shape of :func:`shared_parameters` of the tier's network."""
    with torch.device("meta"), Unfilled():
        network = method.network(architecture, tier)
    return {name: tuple(parameter.shape) for name, parameter in shared_parameters(method, network).items()}


def loss_of(method: Method, objective: Objective, received: Mapping[str, Tensor]) -> Loss:
    """Return what a client minimises on a batch: the method's loss and the objective's term."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        value = method.local_loss(module, batch, received)
        return value if objective.name == "none" else value + objective.term(module)

    return loss
