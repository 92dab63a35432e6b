"""Frozen records that the stages of a round hand on to each other.

Units are in the names: ``_bytes``, ``_macs``, ``_s`` (simulated seconds), ``_j`` (joules). Host time is never mixed with
simulated time: it is called ``host_s``.
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
    """Where a local tensor lives in the global state: the global tensor's name and an index into it, never a mask."""

    target: str
    index: Index


@dataclass(frozen=True)
class Submodel:
    """What a client of one tier receives: tensors of the tier's own small shapes, and the network they belong to.

    Attributes:
        tier: the capacity class.
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
    """Simulated seconds and joules of one client's part in a round.

    ``compute_j`` and ``radio_j`` are spent on the device; ``network_j`` on the path between it and the server, by whoever runs it.
    """

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
class Work:
    """What some clients' parts took together: MACs, bytes, joules and seconds of devices, simulated."""

    clients: int = 0
    macs: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    energy_j: float = 0.0
    end_to_end_j: float = 0.0
    device_s: float = 0.0

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Work:
        """Return the sum over ``outcomes``; of one that was refused there is nothing to add but the client."""
        found = list(outcomes)
        timings = [o.timing for o in found if o.timing is not None]
        return cls(
            clients=len(found),
            macs=sum(o.macs for o in found),
            download_bytes=sum(o.download_bytes for o in found),
            upload_bytes=sum(o.upload_bytes for o in found),
            energy_j=sum(t.total_j for t in timings),
            end_to_end_j=sum(t.end_to_end_j for t in timings),
            device_s=sum(t.total_s for t in timings),
        )


Status = Literal[
    "trained", "late", "refused", "dropped", "interrupted", "out_of_memory", "out_of_time", "crashed", "diverged",
]  # fmt: skip
"""How a client's part in a round ended.

Only what ``trained`` clients send is aggregated. ``late``: done after the round had closed; ``refused``: nothing was sent to it;
``dropped``: an error, or the network failed; ``interrupted``: its owner or its charger took it away before it was done;
``out_of_memory``: it went over its device's memory; ``out_of_time``: over the processor time that this computer allows a client;
``crashed``: its process died; ``diverged``: its weights are no numbers.
"""
BudgetName = Literal[
    "memory_bytes", "macs_forward", "macs_train_step", "deadline_s", "download_bytes", "upload_bytes", "energy_j", "battery_j",
    "uncounted_ops",
]  # fmt: skip


@dataclass(frozen=True)
class Shortfall:
    """One budget that is not met: which, how much is needed and how much there is, in the unit of the name.

    ``micro_batch`` is how many samples go through the network at once, None where it is the run's own number.
    """

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
class Outcome:
    """How one client's part in a round ended, refusals included: a refusal is data, never an exception.

    ``start_s`` is the simulated clock when its download began. ``state`` is what its device was in (other apps, power saving),
    "undisturbed" where devices do not change. ``predicted_memory_bytes`` is the peak that was foreseen for its tier and micro-batch,
    ``memory_bytes`` what its device had; ``host_memory_bytes`` is what its process held on this computer when a hard limit ended it.
    ``staleness`` counts the server's steps since its model was sent, None where rounds are synchronous.
    """

    client: int
    device: str
    status: Status
    tier: Tier | None = None
    samples: int = 0
    steps: int = 0
    train_loss: float | None = None
    timing: Timing | None = None
    macs: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    measured_peak_activation_bytes: int | None = None
    measured_training_memory_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    memory_bytes: float | None = None
    host_memory_bytes: int | None = None
    micro_batch: int | None = None
    start_s: float = 0.0
    state: str = ""
    staleness: int | None = None
    refusal: tuple[Shortfall, ...] = ()
    payload: bytes = field(default=b"", repr=False)
    kept: bytes = field(default=b"", repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the record's JSON form; what was sent and what the client keeps are left out."""
        timing = self.timing
        return {
            "client": self.client,
            "device": self.device,
            "status": self.status,
            "tier": self.tier.number if self.tier else None,
            "samples": self.samples,
            "steps": self.steps,
            "train_loss": self.train_loss,
            "macs": self.macs,
            "download_bytes": self.download_bytes,
            "upload_bytes": self.upload_bytes,
            "measured_peak_activation_bytes": self.measured_peak_activation_bytes,
            "measured_training_memory_bytes": self.measured_training_memory_bytes,
            "predicted_memory_bytes": self.predicted_memory_bytes,
            "memory_bytes": self.memory_bytes,
            "host_memory_bytes": self.host_memory_bytes,
            "micro_batch": self.micro_batch,
            "state": self.state,
            "staleness": self.staleness,
            "start_s": self.start_s,
            "download_s": timing.download_s if timing else None,
            "train_s": timing.train_s if timing else None,
            "upload_s": timing.upload_s if timing else None,
            "total_s": timing.total_s if timing else None,
            "energy_j": timing.total_j if timing else None,
            "end_to_end_j": timing.end_to_end_j if timing else None,
            "refusal": [asdict(s) for s in self.refusal],
        }


@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``: what every client did, what it cost, and how good the models are now.

    ``round_s`` is how long the round lasts on the simulated clock, after ``waited_s`` for clients to become eligible; ``clock_s`` is the
    clock at its end; ``accuracy`` maps ``"global"`` and each tier's label to a share in [0, 1], or is empty when the round was not
    evaluated; where clients have models or labels of their own, these are means over clients, each on its own held-out samples.
    ``observed`` is what the method says of the round. ``deadline_s`` is the most that the round may last, None where nothing limits it.
    """

    round: int
    outcomes: tuple[Outcome, ...]
    round_s: float
    clock_s: float
    accuracy: Mapping[str, float]
    host_s: float
    observed: Mapping[str, Any] = field(default_factory=dict)
    waited_s: float = 0.0
    deadline_s: float | None = None

    @property
    def useful(self) -> Work:
        """What the clients took whose updates the server used."""
        return Work.of(o for o in self.outcomes if o.status == "trained")

    @property
    def wasted(self) -> Work:
        """What the others took: late, lost on the way, killed, diverged."""
        return Work.of(o for o in self.outcomes if o.status not in ("trained", "refused"))

    def groups(self) -> list[dict[str, Any]]:
        """Return the sums over the clients of one device, tier and status each."""
        found: dict[tuple[str, float, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            key = outcome.device, outcome.tier.ratio if outcome.tier else 0.0, outcome.status
            found.setdefault(key, []).append(outcome)
        return [
            {"device": device, "tier": Tier(tier).number if tier else None, "status": status, **asdict(Work.of(outcomes))}
            for (device, tier, status), outcomes in sorted(found.items())
        ]

    def to_json(self, clients: bool = True) -> dict[str, Any]:
        """Return the JSON form of the record, totals included.

        ``clients`` writes a line for each of them.
        """
        useful, wasted = asdict(self.useful), asdict(self.wasted)
        return {
            "round": self.round,
            "round_s": self.round_s,
            "waited_s": self.waited_s,
            "deadline_s": self.deadline_s,
            "clock_s": self.clock_s,
            "accuracy": dict(self.accuracy),
            "trained": useful["clients"],
            **{key: useful[key] + wasted[key] for key in ("macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j")},
            "useful": useful,
            "wasted": wasted,
            "groups": self.groups(),
            "host_s": self.host_s,
            **({"observed": dict(self.observed)} if self.observed else {}),
            **({"clients": [o.to_json() for o in self.outcomes]} if clients else {}),
        }
