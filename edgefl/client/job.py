"""The job of a simulated device, and the run that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch import Tensor

from edgefl.client.loop import LocalTraining
from edgefl.client.objective import Objective
from edgefl.client.objectives.terms import PLAIN
from edgefl.client.parts import Parts
from edgefl.client.training import Training
from edgefl.cost.memory import StepMemory
from edgefl.methods.base import Method
from edgefl.models.base import Architecture
from edgefl.records import Tier

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Tensors = Mapping[str, Tensor]
Enforce = Literal["plan", "meter", "hard"]
"""How a client's memory is limited: by the plan only, metered while it trains, or by the system, for a process of its own."""


@dataclass(frozen=True)
class Task:
    """What a worker needs to train any client of a run, besides the job.

    Attributes:
        partition, clients, permute_labels, data_share: how samples are divided among clients.
        cpu_limit_s: processor seconds that a client may use if ``enforce`` is "hard".
        device: where torch trains: payloads are moved there, updates come from there.
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
    """The computing part of one client's session.

    Attributes:
        round: decides the random draws and the learning rate.
        kept: what the client stored in its last round; None before its first one.
        memory_bytes: what its device has for training; None: no limit.
        micro_batch: how many samples pass the network at once, if fewer than the run's configuration says.
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
class PreparedJob:
    """A job whose bytes have been read: tensors that arrived, and the memory of the client's objective."""

    job: Job
    parts: Parts
    arrived: Tensors
    memory: Tensors
    local: LocalTraining


class GroupMember(NamedTuple):
    """A client that is trained together with others: its job's position, and its tensors before the first step."""

    number: int
    prepared: PreparedJob
    tensors: Tensors
    memory: StepMemory
