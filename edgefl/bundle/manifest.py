"""The records of ``manifest.json``, format version 2, and the file, written with its own hash. ``export/README.md`` specifies it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from edgefl.errors import BundleError
from edgefl.onnxgrad.roles import Roles
from edgefl.util.files import sha256
from edgefl.util.validation import explain, short

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
CLIENT_FOLDER = "client"
UNSEALED = "0" * 64
MAX_ABS_ERROR = 1e-4
"""How far outputs may be from a reference's."""
MAX_LOSS_ERROR = 1e-3
"""How far losses may be from a reference's, relative: two runtimes add up in other orders, and three steps carry that on."""
START, SHIFT = "start.", "shift."
"""How the tensors are called that an objective adds for each trained one: its value at the start of the round, and a correction."""
_MAX_TIERS = 100


def _inside(path: str) -> str:
    """Refuse a path that could leave the bundle, or that platforms or terminals read differently."""
    parts = PurePosixPath(path).parts
    plain = path.isprintable() and not re.search(r"[\\:]", path) and all(part == part.strip(" ") for part in parts)
    if not parts or path.startswith("/") or ".." in parts or not plain or str(PurePosixPath(path)) != path:
        raise ValueError(f"expected a relative path inside the bundle, got {path!r}")
    return path


def _named(name: str) -> str:
    if not name or not name.isprintable() or len(name) > 500:
        raise ValueError(f"expected a tensor's name: 1 to 500 printable characters, got {name[:500]!r}")
    return name


InnerPath = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Shape = tuple[Annotated[int, Field(ge=1)], ...]
Shapes = dict[Annotated[str, AfterValidator(_named)], Shape]


class Record(BaseModel):
    """A frozen table of the manifest; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileEntry(Record):
    """What a file must be: its SHA-256 and its length."""

    sha256: Sha256
    bytes: Count


class Budget(Record):
    """What the device that a tier was sized for gives it: memory, and time and energy per round. None: without a limit."""

    memory_bytes: Count | None = None
    round_s: float | None = Field(default=None, ge=0)
    energy_j: float | None = Field(default=None, ge=0)


class Variant(Record):
    """A smaller ``forward.onnx``: with 8-bit weights (and activations), or 16-bit floats inside; same inputs and outputs."""

    kind: Literal["int8-static", "int8-dynamic", "fp16"]
    graph: InnerPath
    bytes: Count
    accuracy: Share | None = None


class Objective(Record):
    """What local training adds to the method's loss; its tensors are the ``f.start.`` and ``f.shift.`` inputs of a training graph."""

    name: str = Field(default="none", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    strength: float = Field(default=0.0, ge=0)


class TrainEntry(Record):
    """How a tier is trained on a device: its graphs, its tensors by role, and what an update holds."""

    graphs: tuple[InnerPath, ...] = Field(min_length=1)
    predict: InnerPath
    parameters: InnerPath
    reference: InnerPath
    optimizer: Literal["sgd", "momentum", "adam"]
    lr: float = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)
    batch_size: int = Field(ge=1)
    epochs: int = Field(ge=1)
    trained: Shapes = Field(min_length=1)
    statistics: Shapes
    frozen: Shapes
    personal: tuple[str, ...] = ()
    upload: Shapes
    objective: Objective = Objective()
    present: bool = False
    no_update: str = ""
    predicted_memory_bytes: Count | None = None
    onnx_peak_bytes: Count | None = None

    @property
    def tensors(self) -> dict[str, Shape]:
        """Every tensor of ``parameters``, by its bare name."""
        return {**self.trained, **self.statistics, **self.frozen}

    @property
    def roles(self) -> Roles:
        """What the inputs of the training graphs are, without those of an objective."""
        return Roles.of(self.trained, self.statistics, self.frozen)

    @property
    def anchors(self) -> Mapping[str, str]:
        """The inputs that an objective may add for each trained tensor, by their names."""
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
        learned = {**self.trained, **self.statistics}
        for name, shape in self.upload.items():
            if learned.get(name) != shape:
                raise ValueError(
                    f"upload: {name} {shape}, expected a trained tensor or a statistic: {learned.get(name, 'none such')}"
                )
        if kept := sorted(self.upload.keys() & set(self.personal)):
            raise ValueError(f"upload: {kept[0]} is personal: it never leaves the device")
        return self


class TierEntry(Record):
    """One tier: its files, the device that it was sized for, and its costs at ``batch_size``."""

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
    batch_size: int = Field(ge=1)
    costs: dict[str, Count]
    uncounted_ops: tuple[str, ...]
    accuracy_onnx: Share | None
    accuracy_torch: Share | None
    parity_max_abs_error: float = Field(ge=0)

    @property
    def paths(self) -> Iterator[str]:
        """Every file that the tier names."""
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


class Manifest(Record):
    """``manifest.json``: what the bundle is, what a device must know to use it, and what every file must be."""

    format_version: Literal[2] = 2
    manifest_sha256: Sha256 = UNSEALED
    edgefl_version: str
    method: str
    model: str
    dataset: str
    round: Count = 0
    state_sha256: Sha256 | None = None
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    input_dtype: Literal["float32", "int64"] = "float32"
    classes: int = Field(ge=1)
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    tiers: tuple[TierEntry, ...] = Field(min_length=1, max_length=_MAX_TIERS)
    files: dict[InnerPath, FileEntry]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if len(self.class_names) != self.classes:
            raise ValueError(f"class_names: {len(self.class_names)} names, expected one per class: {self.classes}")
        labels = [tier.label for tier in self.tiers]
        if _repeated(labels):
            raise ValueError(f"tiers: {', '.join(labels)}, expected each once")
        if path := _repeated(path for tier in self.tiers for path in tier.paths):
            raise ValueError(f"tiers: {path} is named twice, expected a file of its own in each place")
        if MANIFEST in self.files:
            raise ValueError(f"files: {MANIFEST} cannot hold its own hash; manifest_sha256 does")
        if SIGNATURE in self.files:
            raise ValueError(f"files: {SIGNATURE} is made from the manifest, which cannot hold its hash")
        if path := _repeated(path.casefold() for path in self.files):
            raise ValueError(f"files: {path} in several spellings, which are one file on some systems")
        if self.manifest_sha256 != UNSEALED:
            self._names_listed_files()
        return self

    def _names_listed_files(self) -> None:
        for tier in self.tiers:
            for path in tier.paths:
                if path not in self.files:
                    raise ValueError(f"{path}: used by tier {tier.label}, but not among the manifest's files")
            for variant in tier.variants:
                if variant.bytes != self.files[variant.graph].bytes:
                    listed = self.files[variant.graph].bytes
                    raise ValueError(f"{variant.graph}: {variant.bytes} bytes in its variant, {listed} among the files")


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first name that comes a second time."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


MAX_MANIFEST_BYTES = 16 << 20
_MAX_LINES = 20


def seal(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Return ``manifest`` with hash and length of every file of ``contents``, and its own hash.

    Raises:
        BundleError: a path leaves the bundle, or a tier names a file that is not among ``contents``.
    """
    files = {path: {"sha256": sha256(content), "bytes": len(content)} for path, content in sorted(contents.items())}
    try:
        unsealed = Manifest.model_validate({**manifest.model_dump(), "files": files, "manifest_sha256": UNSEALED})
        if absent := sorted({path for tier in unsealed.tiers for path in tier.paths} - contents.keys()):
            raise BundleError(f"{folder}: no content for {', '.join(absent)}, which its tiers name")
        return Manifest.model_validate({**unsealed.model_dump(), "manifest_sha256": sha256(text_of(unsealed))})
    except ValidationError as error:
        raise BundleError(_explain(folder, error)) from None


def text_of(manifest: Manifest) -> bytes:
    """Return ``manifest.json``'s bytes."""
    return (json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False) + "\n").encode()


def read(folder: Path) -> Manifest:
    """Return the manifest of a bundle, every key checked, and the whole against its own hash; files that it names are not opened.

    Raises:
        BundleError: no bundle, not JSON, another format version, a wrong key, or changed; names file, key and expectation.
    """
    return parse(folder / MANIFEST, content_of(folder))


def content_of(folder: Path) -> bytes:
    """Return the bytes of a bundle's manifest, which are at most 16 MiB.

    Raises:
        BundleError: no folder, or no such file in it.
    """
    path = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"{folder}: a file; a folder is expected: unpack an archive of a bundle first")
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{folder}: holds no {MANIFEST}: not a bundle")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: {path.stat().st_size:,} bytes, expected at most {MAX_MANIFEST_BYTES:,}")
    return content


def differences(manifest: Manifest, opened: Callable[[str], BufferedReader]) -> Iterator[tuple[str, str]]:
    """Yield name and problem of every listed file that is missing or changed; ``opened`` opens one, or raises OSError."""
    for name, entry in manifest.files.items():
        try:
            with opened(name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.bytes:
                    yield name, f"{size} bytes, the manifest says {entry.bytes}"
                elif hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    yield name, "changed: its SHA-256 is not the manifest's"
        except OSError as error:
            yield name, "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def parse(path: Path, content: bytes) -> Manifest:
    """Return the manifest that ``content``, read from ``path``, is."""
    try:
        values = from_json(content)  # refuses nesting deeper than 200 levels
    except ValueError as error:
        raise BundleError(f"{path}: not valid JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: format_version {short(version)}, expected {FORMAT_VERSION}: made by another version of edgefl"
        )
    try:
        manifest = Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise BundleError(_explain(path, error)) from None
    # The hash is that of the file with zeros in its own place: any changed byte shows, and no canonical form of JSON is needed.
    if sha256(content.replace(manifest.manifest_sha256.encode(), UNSEALED.encode(), 1)) != manifest.manifest_sha256:
        raise BundleError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    return manifest


def _explain(path: Path, error: ValidationError) -> str:
    problems = error.errors()
    lines = [f"{path}: {explain(problem)}" for problem in problems[:_MAX_LINES]]
    if len(problems) > _MAX_LINES:
        lines.append(f"{path}: and {len(problems) - _MAX_LINES} more")
    return "\n".join(lines)
