"""Rows of costs: of a tier, of a tier on a device, and of a tier's layers. Their fields are the columns of every table and file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from edgefl.records import Cost, LayerCost
from edgefl.records.cost import cost_columns
from edgefl.report.results import Result
from edgefl.report.tables import Row

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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the keys of a device and of a second count of MACs where the row has none."""
        absent = DEVICE_COLUMNS if self.device is None else ()
        absent += tuple(key for key in ("macs_forward_onnx", "layer_seconds") if getattr(self, key) is None)
        return {key: value for key, value in super().to_dict().items() if key not in absent}


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(of.name for of in fields(kind))


NESTED = ("layers", "tensors", "layer_seconds")
DEVICE_COLUMNS = _names(ProfileRow)[_names(ProfileRow).index("device") :]
COST_COLUMNS = tuple(name for name in _names(ProfileRow) if name not in (*NESTED, *DEVICE_COLUMNS))
_OF_LAYER = tuple(name for name in _names(LayerCost) if name != "work")
LAYER_COLUMNS = (*_OF_LAYER, "macs_train_step", "macs_share", "download_bytes", "upload_bytes")


OTHER = "(other)"
UNPLACED = "(network)"


def macs_of_step(row: Row, layer: Row) -> dict[str, int]:
    """Return the MACs of one layer in a whole training step of the tier ``row``, under the names of the costs.

    >>> layer = {"macs_forward": 10, "macs_backward_input": 9, "macs_backward_weight": 10, "macs_compose": 7}
    >>> sum(macs_of_step({"batch_size": 4, "micro_batch": 2}, layer).values())
    130
    """
    samples = row["batch_size"]
    times = {"macs_forward": samples, "macs_backward_input": samples, "macs_backward_weight": samples}
    times |= {"macs_recompute": samples} if "macs_recompute" in layer else {}
    times["macs_compose"] = -(-samples // row["micro_batch"])
    return {key: layer[key] * count for key, count in times.items()}


def layer_rows(row: Row) -> list[dict[str, Any]]:
    """Return a tier's layers in the network's order, each with its step, its share of it and the bytes that travel.

    With ``layer_seconds``, every layer gains ``time_share``, its share of a training step's seconds on the device. Every layer gains
    ``macs_train_step``, ``macs_share`` (of all layers, 0 where nothing multiplies), ``download_bytes`` and
    ``upload_bytes``; where a step trains one of several networks, these are the layers of the tier's own. A tensor belongs to the layer
    whose name is the longest prefix of its own, or else to the network as a whole.
    """
    layers = [{**layer, "macs_train_step": sum(macs_of_step(row, layer).values())} for layer in row["layers"]]
    for layer, seconds in zip(layers, row.get("layer_seconds") or (), strict=False):
        layer["time_share"] = seconds / sum(row["layer_seconds"])
    total = sum(layer["macs_train_step"] for layer in layers)
    sent = _sent(row, [layer["layer"] for layer in layers])
    if UNPLACED in sent and all(layer["layer"] != UNPLACED for layer in layers):
        layers.insert(0, {**_summed([], UNPLACED), "kind": ""})
    for layer in layers:
        down, up = sent.get(layer["layer"], (0, 0))
        share = layer["macs_train_step"] / total if total else 0.0
        layer |= {"macs_share": share, "download_bytes": down, "upload_bytes": up}
    return layers


def costliest(layers: Sequence[Row], most: int, cost: Callable[[Row], float]) -> list[Row]:
    """Return the ``most`` layers with the highest ``cost``, in the network's order, and the rest summed in a last row ``(other)``."""
    if len(layers) <= most:
        return list(layers)
    ranked = sorted(range(len(layers)), key=lambda i: cost(layers[i]), reverse=True)
    kept = sorted(ranked[:most])
    rest = [layers[i] for i in sorted(ranked[most:])]
    return [*(layers[i] for i in kept), _summed(rest, OTHER)]


def _summed(layers: Sequence[Row], name: str) -> dict[str, Any]:
    kind = f"{len(layers)} layer{'' if len(layers) == 1 else 's'}"
    return {"layer": name, "kind": kind, **{key: sum(layer[key] for layer in layers) for key in LAYER_COLUMNS[2:]}}


def _sent(row: Row, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return each layer's bytes down and up."""
    sent: dict[str, tuple[int, int]] = {}
    for tensor in row["tensors"]:
        prefixes = accumulate(tensor["name"].split("."), "{}.{}".format)
        name = next((prefix for prefix in reversed([*prefixes]) if prefix in names), UNPLACED)
        down, up = sent.get(name, (0, 0))
        sent[name] = (down + tensor["download_bytes"], up + tensor["upload_bytes"])
    return sent
