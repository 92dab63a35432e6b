"""Is a bundle what its manifest says, and does every model compute what it did when it was exported?"""

from __future__ import annotations

import os
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
from edgefl.onnxio.bundle import MANIFEST, MAX_ABS_ERROR, Manifest, TierEntry, read
from edgefl.onnxio.export import ELEMENT_TYPES
from edgefl.onnxio.graphs import dims_of, graphs_in


@dataclass(frozen=True)
class VerifyReport:
    """A bundle that passed: how many files were checked, and per tier how far its outputs are from the reference."""

    files: int
    max_abs_errors: Mapping[str, float]


@dataclass(frozen=True)
class _Problem:
    name: str
    what: str


def verify(folder: Path) -> VerifyReport:
    """Check every file of a bundle and run every model against its stored reference.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists all of it, a line each.
    """
    manifest = read(folder)
    problems = [*_extra(folder, manifest), *_missing_or_changed(folder, manifest)]
    damaged = {problem.name for problem in problems}
    errors: dict[str, float] = {}
    for entry in manifest.tiers:
        if damaged.isdisjoint((entry.forward, entry.reference)):
            try:
                errors[entry.label] = _check_tier(folder, manifest, entry)
            except EdgeflError as error:
                problems.append(_Problem(f"tier {entry.label}", str(error)))
    if problems:
        raise BundleError("\n".join(f"{folder}: {problem.name}: {problem.what}" for problem in problems))
    return VerifyReport(len(manifest.files) + 1, errors)


def _extra(folder: Path, manifest: Manifest) -> Iterator[_Problem]:
    known = {*manifest.files, MANIFEST}
    folders = {parent.as_posix() for path in manifest.files for parent in Path(path).parents}
    for name in sorted(_walk(folder, folder)):
        path = folder / name
        if path.is_symlink():
            yield _Problem(name, "a symbolic link; a bundle holds plain files only")
        elif path.is_dir() and name not in folders:
            yield _Problem(f"{name}/", "not in the manifest")
        elif not path.is_dir() and name not in known:
            yield _Problem(name, "not in the manifest")


def _walk(top: Path, folder: Path) -> Iterator[str]:
    """Yield the path of everything under ``folder``, hidden or not; a folder that cannot be listed is an error, not empty."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise BundleError(f"{folder}: cannot be listed ({error.strerror})") from None
    for entry in entries:
        yield Path(entry.path).relative_to(top).as_posix()
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(top, Path(entry.path))


def _missing_or_changed(folder: Path, manifest: Manifest) -> Iterator[_Problem]:
    for name, entry in manifest.files.items():
        path = folder / name
        if path.is_symlink():
            continue
        try:
            if not path.is_file():
                yield _Problem(name, "missing")
            elif (found := path.stat().st_size) != entry.bytes:
                yield _Problem(name, f"{found} bytes, the manifest says {entry.bytes}")
            elif sha256(path.read_bytes()) != entry.sha256:
                yield _Problem(name, "changed: its SHA-256 is not the manifest's")
        except OSError as error:
            yield _Problem(name, f"cannot be read ({error.strerror})")
    for tier in manifest.tiers:
        for name in (tier.forward, tier.reference):
            if name not in manifest.files:
                yield _Problem(name, f"used by tier {tier.label}, but not among the manifest's files")


def _check_tier(folder: Path, manifest: Manifest, entry: TierEntry) -> float:
    """Return the largest difference between a tier's outputs in onnxruntime and its reference."""
    content = (folder / entry.forward).read_bytes()
    _check_graph(content, manifest, entry)
    x, expected = _reference(folder, manifest, entry)
    outputs = predict(content, x, batch_size=len(x))
    if outputs.shape != expected.shape:
        raise BundleError(f"{entry.forward}: outputs of shape {outputs.shape}, expected {expected.shape}")
    difference = float(np.abs(outputs - expected).max())
    if not difference <= MAX_ABS_ERROR:
        raise BundleError(
            f"{entry.forward}: differs from its reference by {difference:.2e}, expected at most {MAX_ABS_ERROR:.0e}"
        )
    return difference


def _reference(folder: Path, manifest: Manifest, entry: TierEntry) -> tuple[np.ndarray, np.ndarray]:
    try:
        tensors = safetensors.numpy.load((folder / entry.reference).read_bytes())
    except (SafetensorError, KeyError) as error:  # KeyError: a type that NumPy does not have
        raise BundleError(f"{entry.reference}: not a valid safetensors file ({error})") from None
    if tensors.keys() != {"x", "logits"}:
        raise BundleError(f"{entry.reference}: holds {', '.join(sorted(tensors)) or 'nothing'}, expected x and logits")
    x, logits = tensors["x"], tensors["logits"]
    samples = len(x) if x.ndim else 0
    shapes = ((samples, *manifest.input_shape), (samples, manifest.classes))
    types = (x.dtype.name, logits.dtype.name) == (manifest.input_dtype, "float32")
    sound = types and bool(np.isfinite(x).all() and np.isfinite(logits).all())
    if (x.shape, logits.shape) != shapes or not samples or not sound:
        raise BundleError(
            f"{entry.reference}: {x.dtype} x {x.shape} and {logits.dtype} logits {logits.shape}, "
            f"expected finite {_types(manifest)} {shapes[0]} and {shapes[1]}"
        )
    return x, logits


def _types(manifest: Manifest) -> str:
    return "float32" if manifest.input_dtype == "float32" else f"{manifest.input_dtype} and float32"


def _check_graph(content: bytes, manifest: Manifest, entry: TierEntry) -> None:
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise BundleError(f"{entry.forward}: not a valid ONNX model ({_first_line(error)})") from None
    graphs = list(graphs_in(model.graph))
    # Before the checker, which looks for external files.
    if any(tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(graphs)):
        raise BundleError(f"{entry.forward}: keeps weights outside the file")
    domains = {opset.domain for opset in model.opset_import} | {node.domain for graph in graphs for node in graph.node}
    domains |= {function.domain or "a function of its own" for function in model.functions}
    if foreign := domains - {"", "ai.onnx"}:
        raise BundleError(f"{entry.forward}: operators outside ai.onnx: {', '.join(sorted(foreign))}")
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise BundleError(f"{entry.forward}: not a valid ONNX model ({_first_line(error)})") from None
    if (opset := model.opset_import[0].version) != entry.opset:
        raise BundleError(f"{entry.forward}: opset {opset}, the manifest says {entry.opset}")
    _check_ends(model.graph, manifest, entry)


def _check_ends(graph: onnx.GraphProto, manifest: Manifest, entry: TierEntry) -> None:
    """Hold inputs and outputs to x (batch, …), of the manifest's type, and logits (batch, classes) float32, with a free batch."""
    inputs, outputs = ([(v.name, dims_of(v)[1:]) for v in values] for values in (graph.input, graph.output))
    if inputs != [("x", manifest.input_shape)]:
        raise BundleError(f"{entry.forward}: inputs {inputs}, expected x of {manifest.input_shape}")
    if outputs != [("logits", (manifest.classes,))]:
        raise BundleError(f"{entry.forward}: outputs {outputs}, expected logits of {(manifest.classes,)}")
    for value, dtype in ((graph.input[0], manifest.input_dtype), (graph.output[0], "float32")):
        if not isinstance(dims_of(value)[0], str) or value.type.tensor_type.elem_type != ELEMENT_TYPES[dtype]:
            raise BundleError(f"{entry.forward}: {value.name} is {dims_of(value)}, expected {dtype} with a free batch")


def _tensors(graphs: list[onnx.GraphProto]) -> Iterator[onnx.TensorProto]:
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["damaged"])[0]
