"""Is a bundle what its manifest says, and does every model compute what it did when it was exported?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy
from google.protobuf.message import DecodeError
from safetensors import SafetensorError

from edgefl.errors import BundleError, EdgeflError
from edgefl.files import sha256
from edgefl.local.onnx_runtime import predict
from edgefl.onnxio.bundle import MAX_ABS_ERROR, Manifest, TierEntry, read


@dataclass(frozen=True)
class VerifyReport:
    """A bundle that passed: how many files were checked, and per tier how far its outputs are from the reference."""

    files: int
    max_abs_errors: Mapping[str, float]


def verify(folder: Path) -> VerifyReport:
    """Check every file of a bundle and run every model against its stored reference.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists all of it, a line each.
    """
    manifest = read(folder)
    problems = list(_file_problems(folder, manifest))
    errors: dict[str, float] = {}
    if not problems:
        for entry in manifest.tiers:
            try:
                errors[entry.label] = _check_tier(folder, manifest, entry)
            except EdgeflError as error:
                problems.append(f"tier {entry.label}: {error}")
    if problems:
        raise BundleError("\n".join(f"{folder}: {problem}" for problem in problems))
    return VerifyReport(len(manifest.files) + 1, errors)


def _file_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    folders = {parent.as_posix() for path in manifest.files for parent in Path(path).parents} - {"."}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield f"{name}: a symbolic link; a bundle holds plain files only"
        elif path.is_dir():
            if name not in folders:
                yield f"{name}/: not in the manifest"
        elif name not in manifest.files and name != "manifest.json":
            yield f"{name}: not in the manifest"
    for name, entry in manifest.files.items():
        path = folder / name
        if path.is_symlink():
            continue
        if not path.is_file():
            yield f"{name}: missing"
            continue
        content = path.read_bytes()
        if len(content) != entry.bytes:
            yield f"{name}: {len(content)} bytes, the manifest says {entry.bytes}"
        elif sha256(content) != entry.sha256:
            yield f"{name}: changed: its SHA-256 is not the manifest's"
    for tier in manifest.tiers:
        for name in (tier.forward, tier.reference):
            if name not in manifest.files:
                yield f"{name}: used by tier {tier.label}, but not among the manifest's files"


def _check_tier(folder: Path, manifest: Manifest, entry: TierEntry) -> float:
    content = (folder / entry.forward).read_bytes()
    _check_graph(content, manifest, entry)
    try:
        reference = safetensors.numpy.load((folder / entry.reference).read_bytes())
    except SafetensorError as error:
        raise BundleError(f"{entry.reference}: not a valid safetensors file ({error})") from None
    if reference.keys() != {"x", "logits"}:
        raise BundleError(f"{entry.reference}: holds {', '.join(sorted(reference))}, expected x and logits")
    x, expected = reference["x"], reference["logits"]
    shapes = ((len(x), *manifest.input_shape), (len(x), manifest.classes))
    if (x.shape, expected.shape) != shapes or not len(x) or not np.isfinite(x).all() or not np.isfinite(expected).all():
        raise BundleError(
            f"{entry.reference}: x {x.shape} and logits {expected.shape}, expected finite {shapes[0]} and {shapes[1]}"
        )
    outputs = predict(content, x.astype(np.float32), batch_size=len(x))
    if outputs.shape != expected.shape:
        raise BundleError(f"{entry.forward}: outputs of shape {outputs.shape}, expected {expected.shape}")
    difference = float(np.abs(outputs - expected).max())
    if not difference <= MAX_ABS_ERROR:
        raise BundleError(
            f"{entry.forward}: differs from its reference by {difference:.2e}, expected at most {MAX_ABS_ERROR:.0e}"
        )
    return difference


def _check_graph(content: bytes, manifest: Manifest, entry: TierEntry) -> None:
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
    except (DecodeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["damaged"])[0]
        raise BundleError(f"{entry.forward}: not a valid ONNX model ({reason})") from None
    domains = {opset.domain for opset in model.opset_import} | {node.domain for node in model.graph.node}
    if foreign := domains - {"", "ai.onnx"}:
        raise BundleError(f"{entry.forward}: operators outside ai.onnx: {', '.join(sorted(foreign))}")
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
        raise BundleError(f"{entry.forward}: keeps weights outside the file")
    inputs = [(i.name, tuple(d.dim_value for d in i.type.tensor_type.shape.dim[1:])) for i in model.graph.input]
    if inputs != [("x", manifest.input_shape)] or [o.name for o in model.graph.output] != ["logits"]:
        raise BundleError(f"{entry.forward}: inputs {inputs}, expected x of {manifest.input_shape} and one output, logits")
