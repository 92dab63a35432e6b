"""The cost of one tier, counted in integers, and what it takes in simulated time and energy."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from edgefl.records.work import NO_STEP_WORK, NO_WORK, ONCE, StepWork, Work


@dataclass(frozen=True)
class LayerCost:
    """One layer's cost: MACs per sample, except ``macs_compose`` (per pass), its bytes at the peak of a training step, and its work."""

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
    macs_recompute: int = 0
    work: StepWork = NO_STEP_WORK


class RoundTrip(NamedTuple):
    """The bytes of one client's messages that go to the server and back beside the model and its update."""

    name: str
    upload_bytes: int
    download_bytes: int


@dataclass(frozen=True)
class Added:
    """The cost that stages of the chain add to a session, at most.

    Attributes:
        before: round trips before the model is sent, such as an agreement on masks.
        after: round trips after the updates of a group have arrived.
        elementwise_bytes: bytes that a client reads and writes for them.
    """

    before: tuple[RoundTrip, ...] = ()
    after: tuple[RoundTrip, ...] = ()
    elementwise_bytes: int = 0

    @property
    def round_trips(self) -> tuple[RoundTrip, ...]:
        """All round trips."""
        return *self.before, *self.after


NOTHING_ADDED = Added()


_NO_COLUMN = {"column": False}


@dataclass(frozen=True)
class Deployed:
    """The network that a device runs, as far as it may differ from the one that is trained: ``macs`` are per sample."""

    params: int
    macs: int
    parameter_bytes: int
    buffer_bytes: int


Count = Callable[[Any], int]


def column(after: str = "") -> Callable[[Count], Count]:
    """Return the mark of a property of :class:`Cost` that is a column of every table and file: after another one, or the last."""

    def marked(count: Count) -> Count:
        count.after = after  # type: ignore[attr-defined]
        return count

    return marked


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one tier at one batch size. Integers; multiply-accumulates are MACs, never "FLOPs".

    Counts and names are columns of tables and files (:func:`cost_columns`), as are properties that are marked by :func:`column`.

    ``macs_forward`` and ``macs_backward_*`` are per sample, ``macs_compose`` (work on weights: composition and regularisers) per forward
    and backward pass. ``elementwise_ops`` counts the values that activations, normalisation, pooling and reductions go through, per
    sample; ``elementwise_ops_step`` those of work on weights and of the update. ``peak_activation_bytes_*`` is what a step holds besides
    parameters, gradients and optimizer state; ``training_memory_bytes`` is the peak of everything together, at most the sum of the
    parts, because not all of them peak at the same moment; ``peak_*_bytes`` says what is alive then. A step trains ``batch_size``
    samples, ``micro_batch`` at a time. ``macs_drawn`` is set where every step trains one of several networks (FjORD): the mean MACs of a
    sample's forward and backward pass over them.

    ``work`` has all of it by kind, as a clock needs it; ``inference_work`` is that of an inference of ``batch_size`` samples.

    ``added`` has what stages of the chain add to a session; ``download_bytes`` and ``upload_bytes`` include its messages.

    Everything is about the network that is trained but for ``*_inference``, which is about the one that a device runs: ``deployed``,
    None where it is the same. Factors are composed then, and what only training holds, such as an objective's tensors, is gone.
    """

    batch_size: int = field(metadata=_NO_COLUMN)
    micro_batch: int = field(metadata=_NO_COLUMN)
    params: int
    macs_forward: int
    macs_backward_input: int
    macs_backward_weight: int
    macs_compose: int
    macs_recompute: int = 0
    macs_drawn: int | None = None
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
    peak_gradient_bytes: int = 0
    peak_saved_bytes: int = 0
    peak_temporary_bytes: int = 0
    peak_layer_training: str = ""
    peak_layer_inference: str = ""
    download_bytes: int
    upload_bytes: int
    uncounted_ops: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    layers: tuple[LayerCost, ...] = field(default=(), metadata=_NO_COLUMN)
    deployed: Deployed | None = field(default=None, metadata=_NO_COLUMN)
    work: StepWork = field(default=NO_STEP_WORK, metadata=_NO_COLUMN)
    inference_work: Work = field(default=NO_WORK, metadata=_NO_COLUMN)
    added: Added = field(default=NOTHING_ADDED, metadata=_NO_COLUMN)

    @property
    def not_counted(self) -> str:
        """The remark that the cost of some operations is not known; "" if all are counted."""
        if not self.uncounted_ops:
            return ""
        names = ", ".join(self.uncounted_ops)
        return (
            f"the cost of {names} is not known, so no budget can be claimed met; use other operations in the network and its loss"
        )

    @property
    def model_bytes(self) -> tuple[int, int]:
        """Bytes down and up of the model and of its update, without other messages."""
        trips = self.added.round_trips
        down, up = (sum(getattr(trip, name) for trip in trips) for name in ("download_bytes", "upload_bytes"))
        return self.download_bytes - down, self.upload_bytes - up

    @property
    @column("macs_backward_weight")
    def macs_backward(self) -> int:
        """MACs of a sample's backward pass: gradients of inputs and of weights, those that are needed."""
        return self.macs_backward_input + self.macs_backward_weight

    @property
    def macs_sample(self) -> int:
        """MACs of a sample's forward and backward pass, recomputation included."""
        return self.macs_forward + self.macs_backward + self.macs_recompute

    @property
    @column("macs_drawn")
    def macs_train_step(self) -> int:
        """MACs of one step at the full batch size, composition included."""
        return self.macs_of(self.batch_size, -(-self.batch_size // self.micro_batch))

    def macs_of(self, samples: int, passes: int, evaluated: int = 0) -> int:
        """MACs of training on ``samples`` samples in ``passes`` forward and backward passes, and of ``evaluated`` that go forward only."""
        of_sample = self.macs_sample if self.macs_drawn is None else self.macs_drawn
        trained = samples * of_sample + passes * self.macs_compose
        return trained + evaluated * self.macs_forward

    def work_of(self, samples: int, passes: int, updates: int, evaluated: int = 0) -> Work:
        """Return the work of a client by kind. The arguments are those of :meth:`macs_of`, and the steps of the optimizer.

        A cost without kinds counts as products.
        """
        if self.work == NO_STEP_WORK:
            return Work(product_macs=self.macs_of(samples, passes, evaluated))
        runs = -(-evaluated // self.micro_batch)
        if self.macs_drawn is None:
            return self.work.of(samples, passes, updates, evaluated, runs)
        # Every step trains one of several networks: each kind has the share of the whole that the mean of them has.
        drawn = self.work.sample.times(samples * self.macs_drawn, self.macs_sample)
        return drawn + self.work.of(0, passes, updates, evaluated, runs)

    def inference_of(self, samples: int = 1) -> Work:
        """Return the work of an inference of ``samples`` samples by kind."""
        if self.inference_work == NO_WORK:
            return Work(product_macs=samples * self.macs_inference)
        once = {kind: getattr(self.inference_work, kind) for kind in ONCE}
        return replace(self.inference_work.times(samples, self.batch_size), **once)

    @property
    @column("params")
    def params_inference(self) -> int:
        """Parameters of the network that a device runs."""
        return self.params if self.deployed is None else self.deployed.params

    @property
    @column("macs_train_step")
    def macs_inference(self) -> int:
        """MACs of one sample through the network that a device runs."""
        return self.macs_forward if self.deployed is None else self.deployed.macs

    @property
    @column("training_memory_bytes")
    def weights_bytes_inference(self) -> int:
        """Bytes of parameters and buffers of the network that a device runs."""
        cost = self if self.deployed is None else self.deployed
        return cost.parameter_bytes + cost.buffer_bytes

    @property
    @column("weights_bytes_inference")
    def inference_memory_bytes(self) -> int:
        """The bytes that inference holds at its peak: parameters, buffers and activations."""
        return self.weights_bytes_inference + self.peak_activation_bytes_inference


def cost_columns() -> list[tuple[str, Any, Any]]:
    """Return name, type and default of every column of a cost, in order.

    The default of a property is None: files that were written before it was added do not have it.
    """
    columns = [(of.name, of.type, of.default) for of in fields(Cost) if of.metadata != _NO_COLUMN]
    for name, of in vars(Cost).items():
        if isinstance(of, property) and (after := getattr(of.fget, "after", None)) is not None:
            places = (place for place, (other, *_) in enumerate(columns, start=1) if other == after)
            columns.insert(next(places, len(columns)), (name, int | None, None))
    return columns


@dataclass(frozen=True)
class Timing:
    """Simulated seconds and joules of one session; ``network_j`` is spent on the path to the server, the others on the device.

    Joules are None if the device's profile lacks figures of energy. ``train_j`` are those while it trains, a part of ``compute_j``.

    A session in a group begins with ``agree_s``, in which the group forms, and ends with ``unmask_s``: the client waits for the updates of
    others, and helps the server to read their sum.
    """

    download_s: float
    train_s: float
    upload_s: float
    compute_j: float | None
    radio_j: float | None
    network_j: float = 0.0
    agree_s: float = 0.0
    unmask_s: float = 0.0
    train_j: float = 0.0

    @property
    def total_s(self) -> float:
        """Duration of agreement, download, training, upload and unmasking, one after the other."""
        return self.agree_s + self.download_s + self.train_s + self.upload_s + self.unmask_s

    @property
    def total_j(self) -> float | None:
        """Energy that the device spends on computing and radio."""
        return None if self.compute_j is None or self.radio_j is None else self.compute_j + self.radio_j

    @property
    def end_to_end_j(self) -> float | None:
        """Energy of the device and of the path to the server; that of the server is not counted."""
        return None if (own_j := self.total_j) is None else own_j + self.network_j
