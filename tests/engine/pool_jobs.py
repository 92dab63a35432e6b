"""Jobs of small clients for the pool of workers, and what one process makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.training import Training
from edgefl.engine.contract import in_order
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier
from edgefl.rng import generator
from edgefl.wire.payload import encode

TIERS = Tier(1.0), Tier(0.5), Tier(0.25)


def task_of(**options: Any) -> Task:
    training = Training(epochs=options.pop("epochs", 1), batch_size=64, lr=0.05, momentum=0.9, weight_decay=0.0)
    return Task(0, "digits", None, "iid", 12, Architecture("mlp", (1, 8, 8), 10), training, **options)


def jobs_of(task: Task, many: int, first: int = 0, tiers: tuple[Tier, ...] = TIERS) -> list[Job]:
    """Return jobs of clients 0, 1, 2, …, of tiers that take turns; those of a tier share a payload."""
    method = create("heterofl")
    state = method.init(task.architecture, TIERS, generator(0, "init"))
    payloads = {tier: encode(method.submodel(state, tier, np.random.default_rng(0)).tensors) for tier in tiers}
    jobs = []
    for number in range(first, first + many):
        tier = tiers[number % len(tiers)]
        jobs.append(Job(1 + number // task.clients, number % task.clients, method, tier, payloads[tier]))
    return jobs


def inline(task: Task, jobs: list[Job], together: int = 1) -> list[Outcome]:
    with InlineEngine(Clients(task), together) as engine:
        return list(in_order(engine, jobs))


def pids(engine: PoolEngine) -> list[int | None]:
    return [worker.pid for worker in engine._live.values()]
