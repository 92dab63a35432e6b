"""Rows of costs: of a tier, of a tier on a device, and of a tier's layers. Their fields are the columns of every table and file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from edgefl.records import Cost, LayerCost
from edgefl.records.cost import cost_columns
from edgefl.report.results import Result

if TYPE_CHECKING:
    _Columns = Cost  # the same names and types
else:
    _columns = [(name, kind, field(default=default)) for name, kind, default in cost_columns()]
    _Columns = make_dataclass("_Columns", _columns, frozen=True, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class CostRow(_Columns, Result):
    """The costs of one tier: the columns of :class:`edgefl.records.Cost`, which explains each."""

    @classmethod
    def of(cls, cost: Cost, **others: Any) -> Self:
        """Return the row of ``cost``; ``others`` are the fields that a subclass adds."""
        return cls(**{name: getattr(cost, name) for name, *_ in cost_columns()}, **others)


@dataclass(frozen=True)
class TensorBytes:
    """The bytes of one tensor on its way down and up; 0 where it does not travel."""

    name: str
    shape: tuple[int, ...]
    download_bytes: int
    upload_bytes: int


@dataclass(frozen=True, kw_only=True)
class Setting(Result):
    """What a row of costs is about; ``method`` is None for the network as it is."""

    tier: float
    method: str | None
    model: str
    batch_size: int
    micro_batch: int
    optimizer: str
    codec: str


@dataclass(frozen=True, kw_only=True)
class ProfileRow(CostRow, Setting):
    """One row of :func:`edgefl.profile`: a tier, or a tier on a device. Seconds and joules are simulated.

    Attributes:
        layer_seconds: seconds of each of ``layers`` in a training step on the device; None without costs by kind of work.
        formula_bytes: four bytes per parameter, the usual estimate of what travels down.
        macs_forward_onnx: MACs of one sample's forward pass, counted over the tier's ONNX graph; None if that was not asked for, or some
            operator is not counted.
        device: None, as are all fields below, in a row without a device.
        inference_seconds: one sample through the deployed network; an epoch is one pass over a client's ``samples``, and a round
            has ``local_epochs`` of them.
        inference_by_macs: whether these seconds are MACs at the profile's one rate, without a time per operation, hence the least.
        round_seconds_low: the round if training takes 1 / ``clock_error`` times what is predicted; ``round_seconds_high`` is the other end.
        clock_error: the factor by which seconds of training on the device may be wrong, in nine cases of ten.
        budget_share: share used of the ``limiting_budget``; None if some operation is not counted.
        takes: whether the tier is the largest that fits.
    """

    header_bytes: int
    upload_header_bytes: int
    formula_bytes: int
    layers: tuple[LayerCost, ...]
    tensors: tuple[TensorBytes, ...]
    layer_seconds: tuple[float, ...] | None = None
    macs_forward_onnx: int | None = None
    device: str | None = None
    device_title: str | None = None
    inference_seconds: float | None = None
    inference_joules: float | None = None
    inference_by_macs: bool | None = None
    train_step_seconds: float | None = None
    train_step_joules: float | None = None
    epoch_seconds: float | None = None
    epoch_joules: float | None = None
    round_seconds: float | None = None
    round_joules: float | None = None
    round_seconds_low: float | None = None
    round_seconds_high: float | None = None
    clock_error: float | None = None
    samples: int | None = None
    local_epochs: int | None = None
    fits: bool | None = None
    limiting_budget: str | None = None
    budget_share: float | None = None
    takes: bool | None = None

    @property
    def draws(self) -> bool:
        """Whether every step trains one of several networks: the MACs of a step are then the mean over them."""
        return self.macs_drawn is not None

    @property
    def step(self) -> "StepMacs":
        """The MACs of a whole training step."""
        own = macs_of_step(self, self)
        return own if self.macs_drawn is None else StepMacs(compose=own.compose, drawn=self.batch_size * self.macs_drawn)

    @property
    def weights_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return self.parameter_bytes + self.buffer_bytes

    @property
    def absent(self) -> tuple[str, ...]:
        """The fields that the row lacks: those of a device, a second count of MACs, seconds of layers."""
        of_device = DEVICE_COLUMNS if self.device is None else ()
        return (*of_device, *(key for key in ("macs_forward_onnx", "layer_seconds") if getattr(self, key) is None))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the keys of fields that the row lacks."""
        return {key: value for key, value in super().to_dict().items() if key not in self.absent}


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(of.name for of in fields(kind))


NESTED = ("layers", "tensors", "layer_seconds")
DEVICE_COLUMNS = _names(ProfileRow)[_names(ProfileRow).index("device") :]
COST_COLUMNS = tuple(name for name in _names(ProfileRow) if name not in (*NESTED, *DEVICE_COLUMNS))
_OF_LAYER = tuple(name for name in _names(LayerCost) if name != "work")
LAYER_COLUMNS = (*_OF_LAYER, "macs_train_step", "macs_share", "download_bytes", "upload_bytes")
OTHER = "(other)"
UNPLACED = "(network)"


class StepMacs(NamedTuple):
    """The MACs of a whole training step by kind; ``drawn`` is the mean of forward and backward passes of several networks."""

    forward: int = 0
    backward_input: int = 0
    backward_weight: int = 0
    compose: int = 0
    recompute: int = 0
    drawn: int = 0


def macs_of_step(tier: Cost, of: Cost | LayerCost) -> StepMacs:
    """Return the MACs of a tier, or of one of its layers, in a whole training step of the tier."""
    samples, passes = tier.batch_size, -(-tier.batch_size // tier.micro_batch)
    forward, back = samples * of.macs_forward, (samples * of.macs_backward_input, samples * of.macs_backward_weight)
    return StepMacs(forward, *back, passes * of.macs_compose, samples * of.macs_recompute)


@dataclass(frozen=True, kw_only=True)
class LayerRow(LayerCost):
    """The costs of one layer, with its step, its share of it and the bytes that travel.

    Attributes:
        macs_share: of the MACs of all layers, 0 where nothing multiplies.
        time_share: of a training step's seconds on the device; None without ``layer_seconds``.
    """

    step: StepMacs
    macs_share: float = 0.0
    download_bytes: int = 0
    upload_bytes: int = 0
    time_share: float | None = None

    @property
    def macs_train_step(self) -> int:
        """MACs of a whole training step."""
        return sum(self.step)


def layer_rows(row: ProfileRow) -> list[LayerRow]:
    """Return a tier's layers in the network's order.

    Where a step trains one of several networks, these are the layers of the tier's own. A tensor belongs to the layer whose name is the
    longest prefix of its own, or else to the network as a whole.
    """
    steps = [macs_of_step(row, layer) for layer in row.layers]
    total, sent = sum(map(sum, steps)), _sent(row, [layer.layer for layer in row.layers])
    shares = (sum(step) / total if total else 0.0 for step in steps)
    layers = [
        LayerRow(**vars(of), step=step, macs_share=share) for of, step, share in zip(row.layers, steps, shares, strict=True)
    ]
    if seconds := row.layer_seconds:
        layers = [replace(layer, time_share=own_s / sum(seconds)) for layer, own_s in zip(layers, seconds, strict=True)]
    if UNPLACED in sent and all(layer.layer != UNPLACED for layer in layers):
        layers.insert(0, replace(_summed([], UNPLACED), kind="", macs_share=0.0))
    found = ((layer, sent.get(layer.layer, (0, 0))) for layer in layers)
    return [replace(layer, download_bytes=down, upload_bytes=up) for layer, (down, up) in found]


def costliest(layers: Sequence[LayerRow], most: int, cost: Callable[[LayerRow], float]) -> list[LayerRow]:
    """Return the ``most`` layers with the highest ``cost``, in the network's order, and the rest summed in a last row ``(other)``."""
    if len(layers) <= most:
        return list(layers)
    kept = sorted(sorted(range(len(layers)), key=lambda i: cost(layers[i]), reverse=True)[:most])
    rest = [layer for i, layer in enumerate(layers) if i not in kept]
    return [*(layers[i] for i in kept), _summed(rest, OTHER)]


_SUMMED = tuple(name for name in LAYER_COLUMNS if name not in ("layer", "kind", "macs_train_step"))


def _summed(layers: Sequence[LayerRow], name: str) -> LayerRow:
    kind = f"{len(layers)} layer{'' if len(layers) == 1 else 's'}"
    step = StepMacs(*map(sum, zip(*(layer.step for layer in layers), strict=True)))
    return LayerRow(layer=name, kind=kind, step=step, **{key: sum(getattr(layer, key) for layer in layers) for key in _SUMMED})


def _sent(row: ProfileRow, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return each layer's bytes down and up."""
    sent: dict[str, tuple[int, int]] = {}
    for tensor in row.tensors:
        prefixes = accumulate(tensor.name.split("."), "{}.{}".format)
        name = next((prefix for prefix in reversed([*prefixes]) if prefix in names), UNPLACED)
        down, up = sent.get(name, (0, 0))
        sent[name] = (down + tensor.download_bytes, up + tensor.upload_bytes)
    return sent
