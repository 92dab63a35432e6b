"""The bundle: what leaves for a device. ``export/README.md`` specifies it; the models here are the same in code."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

import numpy as np
import safetensors.numpy
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from torch import nn

from edgefl.errors import BundleError
from edgefl.files import sha256, storage_errors, sync_folder
from edgefl.local.onnx_runtime import predict
from edgefl.onnxio.export import OPSET, forward_graph

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_ABS_ERROR = 1e-4
REFERENCE_SAMPLES = 4
_UNSEALED = "0" * 64


def _inside(path: str) -> str:
    """Refuse a path that could leave the bundle or that platforms read differently."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\\:\0]", path) or str(PurePosixPath(path)) != path:
        raise ValueError(f"expected a relative path inside the bundle, got {path!r}")
    return path


InnerPath = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen table of the manifest; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileEntry(Record):
    """What a file must be: its SHA-256 and its length."""

    sha256: Sha256
    bytes: Count


class TierEntry(Record):
    """One tier: its files, the device that it was sized for, and its costs at ``batch_size``."""

    tier: int | float = Field(gt=0, le=1)
    label: str
    device: str | None
    form: Literal["factored", "composed"] = "factored"
    opset: int = Field(ge=1)
    forward: InnerPath
    reference: InnerPath
    params: Count
    batch_size: int = Field(ge=1)
    costs: dict[str, Count]
    uncounted_ops: tuple[str, ...]
    accuracy_onnx: float | None = Field(ge=0, le=1)
    accuracy_torch: float | None = Field(ge=0, le=1)
    parity_max_abs_error: float = Field(ge=0)

    @model_validator(mode="after")
    def _label_is_the_ratio(self) -> Self:
        if self.label != f"{self.tier:g}":
            raise ValueError(f"label {self.label!r}, expected {f'{self.tier:g}'!r}: the ratio's shortest decimal form")
        return self


class Manifest(Record):
    """``manifest.json``: what the bundle is, what a device must know to use it, and what every file must be."""

    format_version: Literal[1] = 1
    manifest_sha256: Sha256 = _UNSEALED
    edgefl_version: str
    method: str
    model: str
    dataset: str
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    input_dtype: Literal["float32", "int64"] = "float32"
    classes: int = Field(ge=1)
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    tiers: tuple[TierEntry, ...] = Field(min_length=1)
    files: dict[InnerPath, FileEntry]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if len(self.class_names) != self.classes:
            raise ValueError(f"class_names: {len(self.class_names)} names, expected one per class: {self.classes}")
        labels = [tier.label for tier in self.tiers]
        if len(set(labels)) != len(labels):
            raise ValueError(f"tiers: {', '.join(labels)}, expected each once")
        if MANIFEST in self.files:
            raise ValueError(f"files: {MANIFEST} cannot hold its own hash; manifest_sha256 does")
        return self


@dataclass(frozen=True)
class TierFiles:
    """One tier's files by their paths in the bundle, and how far onnxruntime is from torch on the reference inputs."""

    contents: Mapping[str, bytes]
    opset: int
    parity_max_abs_error: float


def build_tier(
    module: nn.Module, input_shape: tuple[int, ...], label: str, rng: np.random.Generator, vocabulary: int = 0
) -> TierFiles:
    """Export ``module`` and store reference inputs, drawn from ``rng``, with the outputs that torch computes for them.

    Inputs are float32 from a normal distribution, or, where there is a ``vocabulary``, int64 ids below it.

    Raises:
        BundleError: onnxruntime's outputs differ from torch's by more than 1e-4.
    """
    graph = forward_graph(module, input_shape, "int64" if vocabulary else "float32")
    shape = (REFERENCE_SAMPLES, *input_shape)
    x = rng.integers(vocabulary, size=shape) if vocabulary else rng.standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        logits = module(torch.from_numpy(x)).numpy()
    error = float(np.abs(predict(graph, x, batch_size=REFERENCE_SAMPLES) - logits).max())
    if not error <= MAX_ABS_ERROR:
        raise BundleError(f"tier {label}: onnxruntime differs from torch by {error:.2e}, expected at most {MAX_ABS_ERROR:.0e}")
    reference = safetensors.numpy.save({"x": x, "logits": np.ascontiguousarray(logits)})
    return TierFiles({f"{label}/forward.onnx": graph, f"{label}/reference.safetensors": reference}, OPSET, error)


def write(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Write a bundle to ``folder``, whole or not at all, and return the manifest with its files filled in.

    Raises:
        BundleError: ``folder`` exists and is not empty, a path leaves the bundle, or a tier's file is not among ``contents``.
        StorageError: the disk is full or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder}: exists and is not an empty folder; give another")
    complete = _with_files(folder, manifest, contents)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for path, content in {**contents, MANIFEST: _text(complete)}.items():
                _write_synced(temporary / path, content)
            for inner in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
                sync_folder(inner)
            temporary.chmod(0o755)
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(folder.parent)
    return complete


def _with_files(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Return the manifest with hash and length of every file, and its own hash."""
    files = {path: {"sha256": sha256(content), "bytes": len(content)} for path, content in sorted(contents.items())}
    try:
        unsealed = Manifest.model_validate({**manifest.model_dump(), "files": files, "manifest_sha256": _UNSEALED})
    except ValidationError as error:
        raise BundleError(_explain(folder, error)) from None
    if absent := sorted({name for tier in unsealed.tiers for name in (tier.forward, tier.reference)} - contents.keys()):
        raise BundleError(f"{folder}: no content for {', '.join(absent)}, which its tiers name")
    return unsealed.model_copy(update={"manifest_sha256": sha256(_text(unsealed))})


def _text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False) + "\n").encode()


def _write_synced(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> Manifest:
    """Return the manifest of a bundle, every key checked, and the whole against its own hash; files that it names are not opened.

    Raises:
        BundleError: no bundle, not JSON, another format version, a wrong key, or changed; names file, key and expectation.
    """
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{folder}: holds no {MANIFEST}: not a bundle")
    try:
        content = path.read_bytes()
        values = from_json(content)
    except (ValueError, OSError) as error:
        raise BundleError(f"{path}: not valid JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise BundleError(f"{path}: format_version {version!r}, expected {FORMAT_VERSION}: made by another version of edgefl")
    try:
        manifest = Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise BundleError(_explain(path, error)) from None
    # The hash is that of the file with zeros in its own place: any changed byte shows, and no canonical form of JSON is needed.
    if sha256(content.replace(manifest.manifest_sha256.encode(), _UNSEALED.encode(), 1)) != manifest.manifest_sha256:
        raise BundleError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    return manifest


def _explain(path: Path, error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        lines.append(f"{path}: {key}{': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)
