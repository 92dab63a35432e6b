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
from typing import Annotated, Any, Literal

import numpy as np
import safetensors.numpy
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from edgefl.errors import BundleError
from edgefl.files import sha256, storage_errors, sync_folder
from edgefl.local.onnx_runtime import predict
from edgefl.onnxio.export import OPSET, forward_graph

FORMAT_VERSION = 1
MAX_ABS_ERROR = 1e-4
REFERENCE_SAMPLES = 4


def _inside(path: str) -> str:
    """Refuse a path that could leave the bundle or that platforms read differently."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\\:\0]", path) or str(PurePosixPath(path)) != path:
        raise ValueError(f"expected a relative path inside the bundle, got {path!r}")
    return path


InnerPath = Annotated[str, AfterValidator(_inside)]


class Record(BaseModel):
    """A frozen table of the manifest; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileEntry(Record):
    """What a file must be: its SHA-256 and its length."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class TierEntry(Record):
    """One tier: its files, the device that it was sized for, and its costs at ``batch_size``."""

    tier: int | float = Field(gt=0, le=1)
    label: str
    device: str | None
    form: Literal["factored", "composed"]
    opset: int
    forward: InnerPath
    reference: InnerPath
    params: int = Field(ge=0)
    batch_size: int = Field(ge=1)
    costs: dict[str, int]
    uncounted_ops: tuple[str, ...]
    accuracy_onnx: float | None = Field(ge=0, le=1)
    accuracy_torch: float | None = Field(ge=0, le=1)
    parity_max_abs_error: float = Field(ge=0)


class Manifest(Record):
    """``manifest.json``: what the bundle is, what a device must know to use it, and what every file must be."""

    format_version: Literal[1] = 1
    edgefl_version: str
    method: str
    model: str
    dataset: str
    input_shape: tuple[int, ...]
    classes: int = Field(ge=1)
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    tiers: tuple[TierEntry, ...] = Field(min_length=1)
    files: dict[InnerPath, FileEntry]


@dataclass(frozen=True)
class TierFiles:
    """One tier's files by their paths in the bundle, and how far onnxruntime is from torch on the reference inputs."""

    contents: Mapping[str, bytes]
    opset: int
    parity_max_abs_error: float


def build_tier(module: nn.Module, input_shape: tuple[int, ...], label: str, rng: np.random.Generator) -> TierFiles:
    """Export ``module`` and store reference inputs, drawn from ``rng``, with the outputs that torch computes for them.

    Raises:
        BundleError: onnxruntime's outputs differ from torch's by more than 1e-4.
    """
    graph = forward_graph(module, input_shape)
    x = rng.standard_normal((REFERENCE_SAMPLES, *input_shape)).astype(np.float32)
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
        BundleError: ``folder`` exists and is not empty.
        StorageError: the disk is full or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder}: exists and is not an empty folder; give another")
    files = {path: FileEntry(sha256=sha256(content), bytes=len(content)) for path, content in sorted(contents.items())}
    complete = manifest.model_copy(update={"files": files})
    text = json.dumps(complete.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for path, content in {**contents, "manifest.json": text.encode()}.items():
                _write_synced(temporary / path, content)
            temporary.chmod(0o755)
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(folder.parent)
    return complete


def _write_synced(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> Manifest:
    """Return the manifest of a bundle, every key checked; the files that it names are not opened.

    Raises:
        BundleError: no bundle, not JSON, another format version, or a key that is wrong; names file, key and expectation.
    """
    path = folder / "manifest.json"
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{folder}: holds no manifest.json: not a bundle")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BundleError(f"{path}: not valid JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise BundleError(f"{path}: format_version {version!r}, expected {FORMAT_VERSION}: made by another version of edgefl")
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors())
        raise BundleError("\n".join(f"{path}: {problem}" for problem in problems)) from None
