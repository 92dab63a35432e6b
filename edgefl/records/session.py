"""One client's session: what the server expects of it, and what became of its job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgefl.records.cost import RoundTrip, Timing
from edgefl.records.model import Tier
from edgefl.util.units import need_have

Foreseen = Literal["expected", "refused", "dropped", "interrupted"]
"""The server's expectation of a client before the client trains.

``expected``: it will answer; ``refused``: it fits no tier, and nothing is sent to it; ``dropped``: its device or the network will fail;
``interrupted``: its owner or its charger will end the session early.
"""
Ending = Literal["trained", "out_of_memory", "out_of_time", "crashed", "diverged", "lost"]
"""How a client's job ended on this computer.

Only updates of ``trained`` clients are aggregated. ``out_of_memory``: it needed more memory than its device has; ``out_of_time``: it needed
more processor time than this computer allows a client; ``crashed``: its process died; ``diverged``: its update contains NaN, or values
beyond ±10¹⁵ (:mod:`edgefl.wire.update_content`); ``lost``: its worker could not be reached, so the job must run elsewhere.
"""
Status = Literal[
    "trained", "late", "refused", "dropped", "interrupted", "out_of_memory", "out_of_time", "crashed", "diverged", "masked",
]  # fmt: skip
"""How a session ended: as the server expected, as its job ended, or as follows.

``late``: its round, or its group, had enough updates, or its deadline had passed. ``masked``: its update arrived, but
too few clients of its group were left to read the sum.
"""
BudgetName = Literal[
    "memory_bytes", "macs_forward", "macs_train_step", "deadline_s", "download_bytes", "upload_bytes", "energy_j", "battery_j",
    "uncounted_ops", "group_clients", "largest_tier",
]  # fmt: skip
"""The upper limits that an assignment checks; ``battery_j`` is the energy left in a battery, ``group_clients`` are the clients of a tier in
a round that form a group: they are too few, where others are too many. ``largest_tier`` is that of the fleet's class."""
BUDGETS = {
    "memory_bytes": "memory",
    "macs_forward": "forward MACs",
    "macs_train_step": "step MACs",
    "deadline_s": "deadline",
    "download_bytes": "download",
    "upload_bytes": "upload",
    "energy_j": "energy",
    "battery_j": "battery",
    "uncounted_ops": "uncounted operations",
    "group_clients": "clients of a group",
    "largest_tier": "largest tier",
}
"""Budgets in words."""


@dataclass(frozen=True)
class Shortfall:
    """One budget that a tier of ratio ``tier`` exceeds on a class of devices; ``need`` and ``have`` are in the unit of the budget's name.

    ``micro_batch`` is the number of samples per pass; None: as the run is configured. ``recompute``: the backward pass computes activations
    again. ``clock_margin`` is the factor on the predicted seconds of training that ``need`` contains.
    """

    budget: BudgetName
    need: float
    have: float
    device: str
    tier: float
    micro_batch: int | None = None
    recompute: bool = False
    clock_margin: float = 1.0

    def __str__(self) -> str:
        at = "" if self.micro_batch is None else f" in micro-batches of {self.micro_batch}"
        at += " with recomputation" if self.recompute else ""
        short = need_have(self.budget, self.need, self.have, self.clock_margin)
        return f"{self.device} cannot take tier {self.tier:g}{at}: {BUDGETS[self.budget]} {short}"


@dataclass(frozen=True)
class Grouped:
    """A session's part in a group of clients whose updates are read together only.

    Attributes:
        key: key of its entry in ``rounds.jsonl``.
        group: number of its group among those of its tier in the round.
        stages: the stages that it took part in, with their bytes.
        unmask_s: how long the last stage takes on the client's link, without waiting for others.
        agreed: whether it joined, so that the group cannot be read without its answer or its neighbours'.
        answers: whether it lasts until the last stage is over.
    """

    group: int
    stages: tuple[RoundTrip, ...]
    unmask_s: float
    key: str
    agreed: bool = True
    answers: bool = True

    @property
    def download_bytes(self) -> int:
        """Bytes of its stages from the server."""
        return sum(stage.download_bytes for stage in self.stages)

    @property
    def upload_bytes(self) -> int:
        """Bytes of its stages to the server, without the masked vector."""
        return sum(stage.upload_bytes for stage in self.stages)


@dataclass(frozen=True)
class Expected:
    """The server's expectation of one client in one round. A refusal is data, never an exception.

    Attributes:
        device, samples: the class of its device, and how many training samples it has.
        tier, timing: None if the client is refused.
        macs, download_bytes, upload_bytes: of the session, until it ends.
        predicted_memory_bytes, memory_bytes: peak of a training step, and what its device has for training.
        micro_batch: samples per pass; None: as the run is configured.
        recompute: layers at which a segment begins that the backward pass computes again; empty: all activations are saved.
        start_s: the simulated clock when its download begins.
        state: what else its device does, such as other apps or power saving.
        refusal: the budgets that no tier meets.
        grouped: its part in a group; None: its update is read alone.
    """

    client: int
    device: str
    status: Foreseen
    tier: Tier | None = None
    samples: int = 0
    timing: Timing | None = None
    macs: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    predicted_memory_bytes: int | None = None
    memory_bytes: float | None = None
    micro_batch: int | None = None
    recompute: tuple[str, ...] = ()
    start_s: float = 0.0
    state: str = ""
    refusal: tuple[Shortfall, ...] = ()
    grouped: Grouped | None = None

    @property
    def total_s(self) -> float:
        """Duration of the session; 0 if the client is refused."""
        return 0.0 if self.timing is None else self.timing.total_s


@dataclass(frozen=True)
class Outcome:
    """The outcome of one client's job.

    Attributes:
        client: the client's number.
        status: ``trained``, or why there is no update.
        steps: how many optimizer steps it took; 1 if its first step exceeded its memory.
        train_loss: the mean loss of the last epoch; None unless it trained.
        measured_peak_activation_bytes, measured_training_memory_bytes: peaks of a largest step, as metered; None: not metered.
        host_memory_bytes: peak of its process on this computer, if that exceeded the memory limit of the operating system.
        payload, kept: the update that it sends and what it stores for its next round, both encoded.
        accuracy_after_training: of the network that it has trained, on its own held-out samples, in [0, 1]; None: not asked for.
        labels: the labels that it has samples of, ascending; None unless the method needs them. Metadata of the update, not counted in
            bytes.
        summed_bytes: length of the encoded update, if it was added to a sum where the client trained and is not in ``payload``.
        figures: what stages report beside the update, by name, such as the norm of a change that was clipped where the client trained.
    """

    client: int
    status: Ending
    steps: int = 0
    train_loss: float | None = None
    measured_peak_activation_bytes: int | None = None
    measured_training_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    payload: bytes = field(default=b"", repr=False)
    kept: bytes = field(default=b"", repr=False)
    accuracy_after_training: float | None = None
    labels: tuple[int, ...] | None = None
    summed_bytes: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
