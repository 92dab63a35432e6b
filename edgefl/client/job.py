"""Records of a client's job: what a run's jobs have in common, one job, and the job while it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from edgefl.client.conduct import Conduct
from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.loop import LocalTraining
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import Parts
from edgefl.client.stage import Stage
from edgefl.client.stages.coded import PLAIN as PLAIN_CODEC
from edgefl.client.training import Training
from edgefl.cost.step_memory import StepMemory
from edgefl.data.given import PLAIN_READING, Reading
from edgefl.data.shards import TEST_SAMPLES
from edgefl.methods.base import Method
from edgefl.methods.state import Tensors
from edgefl.models.base import Architecture
from edgefl.records import Tier

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Enforce = Literal["plan", "meter", "hard"]
"""How a client's memory is limited: only planned, metered in training, or enforced by the system on a process of its own."""


@dataclass(frozen=True)
class Task:
    """The facts of a run that a worker needs to train any of its clients, besides the job.

    Attributes:
        dataset, data_dir, validation_share, reading, public_share: the data set, see :func:`edgefl.data.mix.load`.
        partition, clients, permute_labels, data_share: how it is divided, see :class:`edgefl.data.shards.Shards`.
        test_samples: how many held-out samples of its own a client is evaluated on, at most.
        criterion: the loss, and the metric of trained models.
        cpu_limit_s: processor seconds of this computer that a client may use if ``enforce`` is "hard".
        device: hardware that torch trains on, "cpu" or "cuda".
        plugins: what a worker imports first, see :func:`edgefl.plugins.load`.
        conduct: how some clients behave otherwise than the server asks; None: all do as it asks.
        stages: what an update passes on a client, in order; the last stage encodes it.
    """

    seed: int
    dataset: str
    data_dir: str | None
    partition: str
    clients: int
    architecture: Architecture
    training: Training
    objective: Objective = PLAIN
    criterion: Criterion = CROSS_ENTROPY
    permute_labels: bool = False
    data_share: float = 1.0
    test_samples: int = TEST_SAMPLES
    validation_share: float = 0.0
    public_share: float = 0.0
    enforce: Enforce = "plan"
    cpu_limit_s: float = 600.0
    device: str = "cpu"
    reading: Reading = PLAIN_READING
    plugins: Mapping[str, str] | None = None
    conduct: Conduct | None = None
    stages: tuple[Stage, ...] = (PLAIN_CODEC,)

    def conduct_of(self, client: int) -> Conduct | None:
        """Return how ``client`` behaves if it is one of those that do not do as the server asks."""
        return self.conduct if self.conduct is not None and self.conduct.departs(client) else None


@dataclass(frozen=True)
class Job:
    """The work of one client in its session.

    Attributes:
        round: the round's number, from 1; random draws and the learning rate depend on it.
        client: the client's number, from 0.
        method, tier: what makes the client's network.
        payload, kept: the sub-model, and what the client stored in its last round (None before its first); both encoded.
        memory_bytes: memory of the client's device for training; None: no limit.
        micro_batch: samples per pass; None: as the task says.
        recompute: layers at which a segment begins that the backward pass computes again; empty: all activations are saved.
        graphs: the tier's training steps for onnxruntime; None: torch trains.
        eval_after_training: whether the outcome has the metric of the network that the client has trained.
        weight: the update's weight in the sum of its tier; None: the server needs the update itself.
        handed: what the server tells this client for a stage, by the stage's name, as JSON.
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
    eval_after_training: bool = False
    recompute: tuple[str, ...] = ()
    weight: int | None = None
    handed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedJob:
    """A decoded job: tensors that ``arrived``, the ``memory`` of the client's objective, and its training, ready to start.

    Of a client that does not do as the server asks, ``conduct`` is what it does, and ``start`` what it would send without training.
    """

    job: Job
    parts: Parts
    arrived: Tensors
    memory: Tensors
    local: LocalTraining
    conduct: Conduct | None = None
    start: Tensors = field(default_factory=dict)

    @property
    def received(self) -> Tensors:
        """The tensors that arrived with the sub-model, without those of an objective."""
        return {name: self.arrived[name].cpu() for name in self.parts.shapes}


class GroupMember(NamedTuple):
    """A client that is trained together with others: its job's position, its tensors before step 1, and a step's memory."""

    number: int
    prepared: PreparedJob
    tensors: Tensors
    memory: StepMemory
