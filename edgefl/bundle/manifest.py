"""The records of ``manifest.json``, format version 2; ``export/README.md`` specifies every key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from edgefl.bundle.manifest_records import (
    Count,
    FileEntry,
    InnerPath,
    ManifestRecord,
    OtherFormat,
    Preprocessing,
    Sha256,
    Shape,
    Shapes,
    Size,
    printable_name,
)
from edgefl.onnxgrad.roles import Roles
from edgefl.util.fields import named
from edgefl.util.ratios import check_ratios

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
SIGNER = "manifest.pub"
CLIENT_FOLDER = "client"
UNSEALED = "0" * 64
"""The ``manifest_sha256`` of a manifest whose files are not filled in yet. The hash is computed with it in its own place."""
MAX_ERROR = 1e-4
"""Largest allowed difference of outputs from their reference, as a share of the reference's largest output, or of 1 if that is smaller."""
MAX_LOSS_ERROR = 1e-3
"""Largest allowed relative difference of a loss from its reference: runtimes sum in different orders, and the steps add up rounding."""
START, SHIFT = "start.", "shift."
"""Prefixes of the tensors that an objective reads for each trained one: its value at the start of the round, and a linear correction."""
_MAX_TIERS = 100


class Budget(ManifestRecord):
    """The limits of the device that a tier was sized for: memory, and seconds and joules per round. None: no limit."""

    memory_bytes: Count | None = None
    round_s: float | None = Field(default=None, ge=0)
    energy_j: float | None = Field(default=None, ge=0)


class Variant(ManifestRecord):
    """A smaller ``forward.onnx`` (:mod:`edgefl.bundle.quantize`), its length, and its accuracy on held-out samples (None: not measured)."""

    kind: Literal["int8-static", "int8-dynamic", "fp16"]
    graph: InnerPath
    bytes: Count
    accuracy: float | None = None


class Objective(ManifestRecord):
    """The term that local training adds to the method's loss; training graphs read its tensors as ``f.start.NAME`` and ``f.shift.NAME``."""

    name: str = Field(default="none", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    strength: float = Field(default=0.0, ge=0)


class InputEntry(ManifestRecord):
    """One of several inputs: a sample's shape, its type, and how a device prepares it, as :attr:`Manifest.preprocessing` says for one."""

    shape: Shape = Field(min_length=1)
    dtype: Literal["float32", "int64"] = "float32"
    preprocessing: Preprocessing = Field(default={})


class TrainEntry(ManifestRecord):
    """How a device trains a tier.

    Attributes:
        graphs: training graphs, one for each equally likely kind of step.
        predict: inference graph with the weights as inputs.
        parameters, reference: files with the first values of all tensors, and with a batch, and losses and tensors of three steps on it.
        trained: parameters that steps change by their gradient: name → shape.
        statistics, frozen: running statistics that steps update, and tensors that steps only read: name → shape.
        personal: names of tensors that never leave the device.
        present: whether the graphs read ``present``, the labels that occur in the client's data.
        labels: whether an update states the labels that occur in the client's data.
        clip_gradient: largest norm of a step's gradient, to which the graphs themselves scale longer ones; None: they clip none.
        augment: ``flip``: a device mirrors each image left-right with probability ½ in every epoch.
        no_update: why updates cannot be aggregated outside a simulation; empty if they can.
        predicted_memory_bytes, onnx_peak_bytes: peak of a step by the cost model, and by onnxruntime; None: not known.
    """

    graphs: tuple[InnerPath, ...] = Field(min_length=1)
    predict: InnerPath
    parameters: InnerPath
    reference: InnerPath
    optimizer: Literal["sgd", "momentum", "adam"]
    lr: float = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)
    clip_gradient: float | None = Field(default=None, gt=0)
    batch_size: Size
    epochs: Size
    trained: Shapes = Field(min_length=1)
    statistics: Shapes
    frozen: Shapes
    personal: tuple[str, ...] = ()
    upload: Shapes
    objective: Objective = Objective()
    present: bool = False
    labels: bool = False
    augment: Literal["none", "flip"] = "none"
    no_update: str = ""
    predicted_memory_bytes: Count | None = None
    onnx_peak_bytes: Count | None = None

    @property
    def tensors(self) -> dict[str, Shape]:
        """The tensors of ``parameters``: name in the network → shape."""
        return {**self.trained, **self.statistics, **self.frozen}

    @property
    def roles(self) -> Roles:
        """Which input of the training graphs is which tensor; inputs of an objective are not included."""
        return Roles.of(self.trained, self.statistics, self.frozen)

    @property
    def anchors(self) -> Mapping[str, str]:
        """Inputs that an objective may add: ``start.NAME`` and ``shift.NAME`` of each trained tensor → input."""
        return Roles.of((), (), [kind + name for kind in (START, SHIFT) for name in self.trained]).frozen

    @model_validator(mode="after")
    def _roles_agree(self) -> Self:
        if twice := _repeated([*self.trained, *self.statistics, *self.frozen]):
            raise ValueError(f"{twice}: expected in one of trained, statistics and frozen, not in several")
        # An objective's inputs are f.start.NAME and f.shift.NAME; a frozen tensor of such a name would be the same input.
        if clash := sorted(self.anchors.keys() & self.frozen.keys()):
            raise ValueError(f"frozen: {clash[0]} is the name of an objective's input")
        if unknown := sorted(set(self.personal) - self.tensors.keys()):
            raise ValueError(f"personal: {unknown[0]} is none of the tier's tensors")
        if twice := _repeated(self.personal):
            raise ValueError(f"personal: {twice} twice")
        for name, shape in self.upload.items():
            if self.tensors.get(name) != shape:
                raise ValueError(
                    f"upload: {name} {shape}, expected one of the tier's tensors: {self.tensors.get(name, 'none such')}"
                )
        if private := sorted(self.upload.keys() & set(self.personal)):
            raise ValueError(f"upload: {private[0]} is personal: it never leaves the device")
        return self


class TierEntry(ManifestRecord):
    """One tier: its files, the device that it was sized for, and its costs.

    Attributes:
        label: ``tier``, the ratio, in its shortest decimal form; the name of the tier's folder.
        form: whether ``forward`` has factors or, in ``composed_layers``, their products (:mod:`edgefl.bundle.forms`).
        reference: inputs for ``forward`` and the outputs that it must compute.
        costs: MACs and bytes by name at ``batch_size``, as ``edgefl profile`` lists them.
        uncounted_ops: operations missing from ``costs``; if there are any, no budget can be claimed met.
        accuracy_onnx, accuracy_torch: shares of held-out samples that ``forward`` and the torch module classify correctly, or the values of
            :attr:`Manifest.metric`.
        parity_max_abs_error: largest difference between onnxruntime and torch on the reference inputs at the export.
    """

    tier: int | float = Field(gt=0, le=1)
    label: str
    device: str | None
    budget: Budget = Budget()
    form: Literal["factored", "composed", "auto"] = "factored"
    composed_layers: tuple[str, ...] = ()
    opset: int = Field(ge=1)
    forward: InnerPath
    reference: InnerPath
    variants: tuple[Variant, ...] = ()
    train: TrainEntry | None = None
    params: Count
    batch_size: Size
    costs: dict[str, Count]
    uncounted_ops: tuple[str, ...]
    accuracy_onnx: float | None
    accuracy_torch: float | None
    parity_max_abs_error: float = Field(ge=0)

    @property
    def paths(self) -> Iterator[str]:
        """The path of every file that the tier names."""
        yield from (self.forward, self.reference)
        yield from (variant.graph for variant in self.variants)
        if self.train is not None:
            yield from (*self.train.graphs, self.train.predict, self.train.parameters, self.train.reference)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.label != f"{self.tier:g}":
            raise ValueError(f"label {self.label!r}, expected {f'{self.tier:g}'!r}: the ratio's shortest decimal form")
        if self.form == "factored" and self.composed_layers:
            raise ValueError(f"composed_layers: {self.composed_layers[0]}, but form factored multiplies no layer out")
        if kind := _repeated(variant.kind for variant in self.variants):
            raise ValueError(f"variants: {kind} twice")
        return self


class Manifest(ManifestRecord):
    """``manifest.json``.

    Attributes:
        manifest_sha256: SHA-256 of the file with :data:`UNSEALED` in the place of this value.
        round, state_sha256: round of the run and hash of the server's state that the bundle was made from.
        input_shape: shape of one sample; ``input_dtype`` is ``int64`` if the network reads token ids.
        inputs: name → entry, of a network with several inputs, for which ``input_shape`` is empty; None: it has one.
        classes, class_names: number and names of the outputs.
        target_shape: shape of one sample's float32 target; None: targets are labels.
        metric: name of the metric under ``accuracy_onnx`` and ``accuracy_torch``; None: it is the accuracy.
        other_formats: files of tiers for other runtimes; None: none.
        files: path in the bundle → hash and length, for every file except the manifest and its signature.
    """

    format_version: Literal[2] = 2
    manifest_sha256: Sha256 = UNSEALED
    edgefl_version: str
    method: str
    model: str
    dataset: str
    round: Count = 0
    state_sha256: Sha256 | None = None
    input_shape: Shape
    input_dtype: Literal["float32", "int64"] = "float32"
    inputs: dict[Annotated[str, AfterValidator(printable_name)], InputEntry] | None = None
    classes: Size
    class_names: tuple[str, ...]
    target_shape: Shape | None = None
    metric: str | None = None
    preprocessing: Preprocessing
    tiers: tuple[TierEntry, ...] = Field(min_length=1, max_length=_MAX_TIERS)
    other_formats: tuple[OtherFormat, ...] | None = None
    files: dict[InnerPath, FileEntry]

    @property
    def samples(self) -> dict[str, InputEntry]:
        """Input of the graphs → its entry: ``x``, or ``x.NAME`` for each of several inputs."""
        single = InputEntry.model_construct(shape=self.input_shape, dtype=self.input_dtype)
        return named(single if self.inputs is None else self.inputs, "x")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if bool(self.input_shape) == bool(self.inputs):
            raise ValueError("input_shape: expected the shape of a sample, or an empty one and inputs")
        values = [
            v for t in self.tiers for v in (t.accuracy_onnx, t.accuracy_torch, *(variant.accuracy for variant in t.variants))
        ]
        if self.metric is None and not all(value is None or 0 <= value <= 1 for value in values):
            raise ValueError("tiers: expected every accuracy from 0 to 1")
        if len(self.class_names) != self.classes:
            raise ValueError(f"class_names: {len(self.class_names)} names, expected one per class: {self.classes}")
        check_ratios(tuple(tier.tier for tier in self.tiers))
        others = self._others([tier.label for tier in self.tiers])
        if path := _repeated([*(path for tier in self.tiers for path in tier.paths), *others]):
            raise ValueError(f"tiers: {path} is named twice, expected a file of its own in each place")
        if len(self.input_shape) != 3 and any(tier.train and tier.train.augment == "flip" for tier in self.tiers):
            raise ValueError(f"augment: flip, but samples have shape {self.input_shape}, expected (channels, height, width)")
        if MANIFEST in self.files:
            raise ValueError(f"files: {MANIFEST} cannot hold its own hash; manifest_sha256 does")
        for name in (SIGNATURE, SIGNER):
            if name in self.files:
                raise ValueError(f"files: {name} signs the manifest, which cannot hold its hash")
        if path := _repeated(path.casefold() for path in self.files):
            raise ValueError(f"files: {path} in several spellings, which are one file on some systems")
        if self.manifest_sha256 != UNSEALED:
            self._names_listed_files()
        return self

    def _others(self, labels: Sequence[str]) -> list[str]:
        """Return the files of other formats; ValueError if one is of no tier."""
        for other in self.other_formats or ():
            if other.tier not in labels:
                raise ValueError(f"other_formats: tier {other.tier!r}, expected one of {', '.join(labels)}")
        return [other.file for other in self.other_formats or ()]

    def _names_listed_files(self) -> None:
        for other in self.other_formats or ():
            if (listed := self.files.get(other.file)) is None or listed.bytes != other.bytes:
                raise ValueError(f"{other.file}: of {other.bytes} bytes by other_formats, but not so among the manifest's files")
        for tier in self.tiers:
            for path in tier.paths:
                if path not in self.files:
                    raise ValueError(f"{path}: used by tier {tier.label}, but not among the manifest's files")
            for variant in tier.variants:
                if variant.bytes != (size := self.files[variant.graph].bytes):
                    raise ValueError(f"{variant.graph}: {variant.bytes} bytes in its variant, {size} among the files")


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice, None if there is none."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
