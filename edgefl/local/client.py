"""A simulated device: it takes a payload, trains the tier's network on its own shard, and answers with a payload."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from edgefl.data.partition import parse, split
from edgefl.data.sources import Dataset, Split
from edgefl.local.train import Training, optimizer_of, train
from edgefl.methods.base import Method, create
from edgefl.models.base import Architecture, Unfilled
from edgefl.records import Outcome, Tier
from edgefl.registry import datasets
from edgefl.rng import generator, torch_seeded
from edgefl.wire import decode, encode


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to play any client of a run: plain values, the data are loaded where they are used."""

    seed: int
    dataset: str
    data_dir: str | None
    partition: str
    clients: int
    method: str
    method_options: dict[str, object]
    dynamic_tiers: bool
    architecture: Architecture
    training: Training
    codec: str = "fp32"


@dataclass(frozen=True)
class Job:
    """One client's part in one round: who, which tier, and the payload that it receives.

    ``planned`` is the outcome that the server expects: device, samples, simulated seconds and joules, bytes.
    """

    round: int
    tier: Tier
    payload: bytes = field(repr=False)
    planned: Outcome


class Clients:
    """The clients of a run, played in this process: data, shards and method, loaded once."""

    def __init__(self, task: Task, data: Dataset | None = None) -> None:
        self.task = task
        self.data: Dataset = data or datasets.load(task.dataset)(task.data_dir)
        rng = generator(task.seed, "partition")
        self.shards: list[np.ndarray] = split(self.data.train.y, task.clients, parse(task.partition), rng)
        self.method: Method = create(task.method, task.method_options, dynamic_tiers=task.dynamic_tiers)

    def shard(self, client: int) -> Split:
        """Return a copy of the samples of ``client``."""
        index = self.shards[client]
        return Split(self.data.train.x[index], self.data.train.y[index])

    def run(self, job: Job) -> Outcome:
        """Play one client's part: decode, build, load, train, encode.

        Training that ends in NaN or infinity is an outcome (``diverged``), whose tensors are not sent.
        """
        task, client = self.task, job.planned.client
        shapes = self.method.shapes(task.architecture, job.tier)
        received = decode(job.payload, shapes, f"client {client}")
        rng = generator(task.seed, job.round, client, "train")
        with torch_seeded(rng):
            with Unfilled():
                module = self.method.network(task.architecture, job.tier)
            module.load_state_dict(received)
            shard = self.shard(client)
            x, y = torch.from_numpy(shard.x), torch.from_numpy(shard.y)
            present = torch.zeros(task.architecture.classes, dtype=torch.bool)
            present[y.unique()] = True
            optimizer = optimizer_of(self.method, module, task.training)
            method = self.method
            result = train(module, lambda m, b: method.local_loss(m, b, received), optimizer, x, y, present, task.training, rng)
        tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        done = replace(job.planned, steps=result.steps, measured_peak_activation_bytes=result.peak_activation_bytes)
        done = replace(done, measured_training_memory_bytes=result.memory_bytes)
        if not math.isfinite(result.loss) or not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
            return replace(done, status="diverged", upload_bytes=0)
        payload = encode(tensors, task.codec, generator(task.seed, job.round, client, "codec"))
        return replace(done, status="trained", train_loss=result.loss, upload_bytes=len(payload), payload=payload)
