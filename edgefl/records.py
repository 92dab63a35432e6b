"""Frozen records that the stages of a round hand on to each other.

Units are in the names: ``_bytes``, ``_macs``, ``_s`` (simulated seconds; the host's are ``host_s``), ``_j`` (joules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

Index = tuple["slice | Tensor", ...]


@dataclass(frozen=True)
class Batch:
    """One minibatch: ``x`` (batch, …) float32 or int64, ``y`` (batch,) int64, and which labels the client has samples of.

    ``present`` is a boolean tensor (classes,), or None where no client is involved. ``draw`` is uniform in [0, 1), the same for all
    micro-batches of a step: what a method that chooses at random in every step chooses by; None, while costs are counted, stands for the
    most expensive choice.
    """

    x: Tensor
    y: Tensor
    present: Tensor | None = None
    draw: float | None = None


@dataclass(frozen=True, order=True)
class Tier:
    """A capacity class of clients: ``ratio`` in (0, 1] is the method's own measure of size (rank ratio, width, keep ratio).

    >>> Tier(0.25).label, Tier(1.0).label
    ('0.25', '1')
    """

    ratio: float

    @property
    def label(self) -> str:
        """The shortest decimal form: the name of the tier's folder in a bundle and its heading in tables."""
        return f"{self.ratio:g}"

    @property
    def number(self) -> int | float:
        """The ratio as JSON writes it: ``1`` rather than ``1.0``."""
        return int(self.ratio) if self.ratio == int(self.ratio) else self.ratio


@dataclass(frozen=True)
class Place:
    """Where a local tensor lives in the server's state.

    Attributes:
        index: the entries of the tensor ``target``, never a mask.
        client: the client that the server remembers the tensor of; None where it is a tensor of the global model or of a cluster's.
    """

    target: str
    index: Index
    client: int | None = None


@dataclass(frozen=True)
class Submodel:
    """What a client of one tier receives: tensors of the tier's own small shapes, and the network they belong to.

    Attributes:
        tensors: name → tensor, in the order of the network's ``state_dict``; only these travel.
        build: returns the tier's network with arbitrary weights; load ``tensors`` into it.
        places: for every local tensor, the entry of the global state that it stands for.
    """

    tier: Tier
    tensors: Mapping[str, Tensor]
    build: Callable[[], nn.Module]
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Update:
    """What the server aggregates: a client's tensors, already decoded and validated, and how many samples they saw."""

    client: int
    tier: Tier
    tensors: Mapping[str, Tensor]
    places: Mapping[str, Place]
    samples: int


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs: MACs per sample but for ``macs_compose`` (per pass), and its bytes at the peak of a training step."""

    layer: str
    kind: str
    params: int
    parameter_bytes: int
    macs_forward: int
    macs_backward_input: int
    macs_backward_weight: int
    macs_compose: int
    elementwise_ops: int
    elementwise_ops_backward: int
    elementwise_ops_step: int
    saved_bytes_at_peak: int
    temporary_bytes_at_peak: int


@dataclass(frozen=True)
class Deployed:
    """The network that a device runs, as far as it may differ from the one that is trained: ``macs`` are per sample."""

    params: int
    macs: int
    parameter_bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class Cost:
    """What one tier costs at one batch size. Integers; multiply-accumulates are MACs, never "FLOPs".

    ``macs_forward`` and ``macs_backward_*`` are per sample, ``macs_compose`` (work on weights: composition and regularisers) per forward
    and backward pass. ``elementwise_ops`` counts the values that activations, normalisation, pooling and reductions go through, per
    sample; ``elementwise_ops_step`` those of work on weights and of the update. ``peak_activation_bytes_*`` is what a step holds besides
    parameters, gradients and optimizer state; ``training_memory_bytes`` is the peak of everything together, at most the sum of the
    parts, because not all of them peak at the same moment; ``peak_*_bytes`` says what is alive then. A step trains ``batch_size``
    samples, ``micro_batch`` at a time. ``macs_drawn`` is set where every step trains one of several networks (FjORD): the mean MACs of a
    sample's forward and backward pass over them.

    Everything is about the network that is trained but for ``*_inference``, which is about the one that a device runs: ``deployed``,
    None where it is the same. Factors are composed then, and what only training holds, such as an objective's tensors, is gone.
    """

    batch_size: int
    micro_batch: int
    params: int
    macs_forward: int
    macs_backward_input: int
    macs_backward_weight: int
    macs_compose: int
    elementwise_ops: int
    elementwise_ops_backward: int
    elementwise_ops_step: int
    peak_activation_bytes_inference: int
    peak_activation_bytes_training: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    training_memory_bytes: int
    download_bytes: int
    upload_bytes: int
    uncounted_ops: tuple[str, ...] = ()
    layers: tuple[LayerCost, ...] = ()
    peak_gradient_bytes: int = 0
    peak_saved_bytes: int = 0
    peak_temporary_bytes: int = 0
    peak_layer_training: str = ""
    peak_layer_inference: str = ""
    macs_drawn: int | None = None
    deployed: Deployed | None = None

    @property
    def macs_backward(self) -> int:
        """MACs of a sample's backward pass: gradients of inputs and of weights, those that are needed."""
        return self.macs_backward_input + self.macs_backward_weight

    @property
    def macs_train_step(self) -> int:
        """MACs of one step at the full batch size, composition included."""
        return self.macs_of(self.batch_size, -(-self.batch_size // self.micro_batch))

    def macs_of(self, samples: int, passes: int, evaluated: int = 0) -> int:
        """MACs of training on ``samples`` samples in ``passes`` forward and backward passes, and of ``evaluated`` that go forward only."""
        of_sample = self.macs_forward + self.macs_backward if self.macs_drawn is None else self.macs_drawn
        trained = samples * of_sample + passes * self.macs_compose
        return trained + evaluated * self.macs_forward

    @property
    def params_inference(self) -> int:
        """Parameters of the network that a device runs."""
        return self.params if self.deployed is None else self.deployed.params

    @property
    def macs_inference(self) -> int:
        """MACs of one sample through the network that a device runs."""
        return self.macs_forward if self.deployed is None else self.deployed.macs

    @property
    def weights_bytes_inference(self) -> int:
        """Bytes of parameters and buffers of the network that a device runs."""
        held = self if self.deployed is None else self.deployed
        return held.parameter_bytes + held.buffer_bytes

    @property
    def inference_memory_bytes(self) -> int:
        """What inference holds at its peak: parameters, buffers and activations."""
        return self.weights_bytes_inference + self.peak_activation_bytes_inference


@dataclass(frozen=True)
class Timing:
    """Simulated seconds and joules of a client's part in a round; ``network_j`` is spent between device and server, the others on it."""

    download_s: float
    train_s: float
    upload_s: float
    compute_j: float
    radio_j: float
    network_j: float = 0.0

    @property
    def total_s(self) -> float:
        """Download, training and upload, one after the other."""
        return self.download_s + self.train_s + self.upload_s

    @property
    def total_j(self) -> float:
        """Energy on the device: computing and radio."""
        return self.compute_j + self.radio_j

    @property
    def end_to_end_j(self) -> float:
        """Energy on the device and on the network's path; the server's own is not in it."""
        return self.total_j + self.network_j


@dataclass(frozen=True)
class Totals:
    """Sums over simulated sessions: bytes to and from clients, joules of devices and with the network's path, and seconds of devices."""

    clients: int
    macs: int
    download_bytes: int
    upload_bytes: int
    energy_j: float
    end_to_end_j: float
    device_s: float

    @classmethod
    def of(cls, records: Iterable[ClientRecord]) -> Totals:
        """Return the sums over ``records``; a refused client adds one to the clients and nothing else."""
        sessions = [record.expected for record in records]
        timings = [s.timing for s in sessions if s.timing is not None]
        counted = (sum(getattr(s, name) for s in sessions) for name in ("macs", "download_bytes", "upload_bytes"))
        spent = (sum(getattr(t, name) for t in timings) for name in ("total_j", "end_to_end_j", "total_s"))
        return cls(len(sessions), *counted, *spent)


Foreseen = Literal["expected", "refused", "dropped", "interrupted"]
"""What the server expects of a client before the client trains.

``expected``: it will answer; ``refused``: nothing is sent to it; ``dropped``: the device or the network will fail; ``interrupted``: its
owner or its charger will end the session early.
"""
Ending = Literal["trained", "out_of_memory", "out_of_time", "crashed", "diverged", "lost"]
"""How a client's job ended on this computer.

Only updates of ``trained`` clients are aggregated. ``out_of_memory``: it needed more than the memory of its device; ``out_of_time``: more
than the processor time that this computer allows a client; ``crashed``: its process died; ``diverged``: its weights hold NaN or infinity;
``lost``: the worker could not be reached, so the job has to run elsewhere.
"""
Status = Literal[
    "trained", "late", "refused", "dropped", "interrupted", "out_of_memory", "out_of_time", "crashed", "diverged",
]  # fmt: skip
"""How a client's part in a round ended: as it was foreseen, as its job ended, or ``late``: it answers after the round closes."""
BudgetName = Literal[
    "memory_bytes", "macs_forward", "macs_train_step", "deadline_s", "download_bytes", "upload_bytes", "energy_j", "battery_j",
    "uncounted_ops",
]  # fmt: skip


@dataclass(frozen=True)
class Shortfall:
    """One budget that is not met, with need and supply in the unit of its name; ``micro_batch`` None is the run's own."""

    budget: BudgetName
    need: float
    have: float
    device: str
    tier: float
    micro_batch: int | None = None

    def __str__(self) -> str:
        at = "" if self.micro_batch is None else f" in micro-batches of {self.micro_batch}"
        return f"{self.device} cannot take tier {self.tier:g}{at}: {self.budget} needs {self.need:,.6g}, has {self.have:,.6g}"


@dataclass(frozen=True)
class Expected:
    """What the server expects of one client in one round. A refusal is data, never an exception.

    Attributes:
        tier, timing: None if the client is refused.
        macs, download_bytes, upload_bytes: of the session, up to the moment when it ends.
        predicted_memory_bytes: the peak that its tier and micro-batch need.
        micro_batch: how many samples pass the network at once, if fewer than the run's configuration says.
        state: the state of its device (other apps, power saving).
        refusal: the budgets that no tier meets.
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
    start_s: float = 0.0
    state: str = ""
    refusal: tuple[Shortfall, ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds of the session; 0 if the client is refused."""
        return 0.0 if self.timing is None else self.timing.total_s


@dataclass(frozen=True)
class Outcome:
    """What became of one client's job.

    Attributes:
        train_loss: the mean loss of the last epoch; None unless it trained.
        measured_peak_activation_bytes, measured_training_memory_bytes: what the meter saw of its largest step.
        host_memory_bytes: what its process had on this computer when a limit of the system ended it.
        payload, kept: the update that it sends, and what it stores for its next round.
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


@dataclass(frozen=True)
class ClientRecord:
    """One client's line in a round's record.

    Attributes:
        expected: its session, cut to what took place if its job did not end well.
        outcome: what became of its job, without the bytes that it sent or keeps; None if the server did not wait for it.
        staleness: the server's steps since its model was sent; None where rounds are synchronous.
    """

    expected: Expected
    outcome: Outcome | None = None
    staleness: int | None = None

    @property
    def client(self) -> int:
        """The client's number."""
        return self.expected.client

    @property
    def status(self) -> Status:
        """How its part in the round ended."""
        if self.outcome is not None and self.outcome.status != "lost":  # a lost job runs elsewhere
            return self.outcome.status
        return "late" if self.expected.status == "expected" else self.expected.status

    def to_json(self) -> dict[str, Any]:
        """Return the record's JSON form."""
        expected, timing = self.expected, self.expected.timing
        found = {**vars(self.outcome or Outcome(self.client, "lost")), **vars(expected)}
        times = ("download_s", "train_s", "upload_s", "total_s", "total_j", "end_to_end_j")
        return {
            **{key: found[key] for key in _BEFORE_TIMES},
            "status": self.status,
            "tier": expected.tier.number if expected.tier else None,
            "staleness": self.staleness,
            "start_s": expected.start_s,
            **{key.replace("total_j", "energy_j"): getattr(timing, key, None) for key in times},
            "refusal": [asdict(s) for s in expected.refusal],
        }


_BEFORE_TIMES = (
    "client", "device", "status", "tier", "samples", "steps", "train_loss", "macs", "download_bytes", "upload_bytes",
    "measured_peak_activation_bytes", "measured_training_memory_bytes", "predicted_memory_bytes", "memory_bytes", "host_memory_bytes",
    "micro_batch", "state",
)  # fmt: skip


@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``: what every client did, what it cost, and how accurate the models are now.

    Attributes:
        round_s, clock_s: how long the round lasts after the wait, and the simulated clock at its end.
        accuracy: ``"global"`` and each tier's label → a share in [0, 1]; empty if the round was not evaluated. Where clients have models or
            labels of their own, these are means over clients, each on its own held-out samples.
        waited_s: how long the server waited for eligible clients.
    """

    round: int
    clients: tuple[ClientRecord, ...]
    round_s: float
    clock_s: float
    accuracy: Mapping[str, float]
    host_s: float
    observed: Mapping[str, Any] = field(default_factory=dict)
    waited_s: float = 0.0
    deadline_s: float | None = None

    @property
    def useful(self) -> Totals:
        """Totals of the clients whose updates the server used."""
        return Totals.of(c for c in self.clients if c.status == "trained")

    @property
    def wasted(self) -> Totals:
        """Totals of the sessions without a used update: late, cut short, failed, diverged."""
        return Totals.of(c for c in self.clients if c.status not in ("trained", "refused"))

    def groups(self) -> list[dict[str, Any]]:
        """Return the totals of each combination of device, tier and status."""
        found: dict[tuple[str, float, str], list[ClientRecord]] = {}
        for record in self.clients:
            expected = record.expected
            found.setdefault((expected.device, expected.tier.ratio if expected.tier else 0.0, record.status), []).append(record)
        return [
            {"device": device, "tier": Tier(tier).number if tier else None, "status": status, **asdict(Totals.of(records))}
            for (device, tier, status), records in sorted(found.items())
        ]

    def to_json(self, clients: bool = True) -> dict[str, Any]:
        """Return the record's JSON form with its totals and, with ``clients``, an entry for each client."""
        useful, wasted = asdict(self.useful), asdict(self.wasted)
        return {
            **{key: getattr(self, key) for key in ("round", "round_s", "waited_s", "deadline_s", "clock_s")},
            "accuracy": dict(self.accuracy),
            "trained": useful["clients"],
            **{key: useful[key] + wasted[key] for key in ("macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j")},
            "useful": useful,
            "wasted": wasted,
            "groups": self.groups(),
            "host_s": self.host_s,
            **({"observed": dict(self.observed)} if self.observed else {}),
            **({"clients": [c.to_json() for c in self.clients]} if clients else {}),
        }
