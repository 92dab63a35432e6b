"""What a simulated device is given to do, and what it has while it does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor, nn

from edgefl.client.objective import Objective
from edgefl.client.objectives.none import PLAIN
from edgefl.client.parts import Parts
from edgefl.client.training import Training
from edgefl.cost.memory import StepMemory
from edgefl.cost.trace import Loss
from edgefl.methods.base import Method
from edgefl.models.base import Architecture
from edgefl.records import Tier

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Tensors = Mapping[str, Tensor]
Enforce = Literal["plan", "meter", "hard"]
"""How a client's memory is held to its device's: foreseen, metered while it trains, or limited for its process by the system."""


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to play any client of a run: plain values, the data are loaded where they are used.

    ``device`` is where torch trains: what arrives is moved there, what is sent comes back from there.
    """

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
    device: str = "cpu"


@dataclass(frozen=True)
class Job:
    """One client's part in one round.

    Attributes:
        round: decides the random draws and the learning rate.
        client: the client's number.
        method, tier: what it trains.
        payload: what the server sends.
        kept: what the client stored in its last round; None before its first one.
        memory_bytes: what its device has for training; None: no limit.
        micro_batch: how many samples pass the network at once, where that is fewer than the run's configuration says.
        graphs: the tier's training steps if onnxruntime trains; None: torch does.
    """

    round: int
    client: int
    method: Method
    tier: Tier
    payload: bytes = field(repr=False)
    kept: bytes | None = field(default=None, repr=False)
    memory_bytes: float | None = None
    micro_batch: int | None = None
    graphs: StepGraphs | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Work:
    """A client at work: what it trains, and with what."""

    job: Job
    parts: Parts
    module: nn.Module
    arrived: Tensors
    memory: Tensors
    loss: Loss
    x: Tensor
    y: Tensor
    present: Tensor
    training: Training
    rng: np.random.Generator
    draws: np.random.Generator | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Member:
    """A client that is trained together with others: its number among them, and the tensors that it begins with."""

    number: int
    work: Work
    tensors: Tensors
    memory: StepMemory
