"""Writes bundles. ``export/README.md`` specifies their files; ``manifest.py`` has the records."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn

from edgefl.bundle.forms import form_files
from edgefl.bundle.manifest import CLIENT_FOLDER, MANIFEST, Manifest
from edgefl.bundle.manifest_file import seal, text_of
from edgefl.bundle.signature import signature_files
from edgefl.bundle.tier_check import allowed_error
from edgefl.errors import BundleError, EdgeflError
from edgefl.models.input_spec import InputSpec
from edgefl.models.valueless import reason
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.predict import predict
from edgefl.records import Preparation
from edgefl.util.fields import Fields, each, named
from edgefl.util.files import check_free, shared, whole_folder, write_bytes
from edgefl.util.keys import SigningKey
from edgefl.util.scratch import scratch_folder
from edgefl.util.shelf import Facts

REFERENCE_SAMPLES = 4
_CLIENTS = ("python", "ts", "web")
_NOT_SHIPPED = ("node_modules", "__pycache__")


@dataclass(frozen=True)
class TierFiles:
    """A tier's files for inference, by path in the bundle, and the largest difference of onnxruntime from torch on the reference."""

    contents: Mapping[str, bytes]
    opset: int
    parity_max_abs_error: float


def build_tier(
    module: nn.Module,
    inputs: Fields[InputSpec],
    label: str,
    rng: np.random.Generator,
    graph: bytes | None = None,
    facts: Facts | None = None,
) -> TierFiles:
    """Export ``module`` and compare onnxruntime with torch on four reference inputs, which become a file of the tier.

    ``module`` is in evaluation mode: samples of ``inputs`` (n, …) → (n, classes), or (n, …), which its graph returns as (n, outputs).
    Reference inputs are :func:`drawn` from ``rng``. ``graph`` is the module's graph, if it exists; ``facts`` are as
    :func:`form_files` takes them.

    Raises:
        BundleError: onnxruntime's outputs differ from torch's by more than :func:`allowed_error`, or are not finite.
        EdgeflError: the module cannot be exported, or onnxruntime cannot run its graph.
    """
    path = f"{label}/forward.onnx"
    files = form_files(module, inputs, path, facts=facts) if graph is None else {path: graph}
    x = drawn(rng, REFERENCE_SAMPLES, inputs)
    logits = forward(module, x, label).flatten(1).numpy()
    if not (finite := np.isfinite(logits)).all():
        spoiled = f"the network computes {logits[~finite].flat[0]}, expected finite outputs: its training diverged"
        raise BundleError(f"tier {label}: {spoiled}, and it has no bundle; a lower lr, or clip_norm, may prevent this")
    error, allowed = float(np.abs(_run(files, path, x) - logits).max()), allowed_error(logits)
    if not error <= allowed:
        raise BundleError(f"tier {label}: onnxruntime differs from torch by {error:.2e}, expected at most {allowed:.0e}")
    reference = safetensors.numpy.save({**named(x, "x"), "logits": np.ascontiguousarray(logits)})
    return TierFiles({**files, f"{label}/reference.safetensors": reference}, OPSET, error)


def drawn(rng: np.random.Generator, samples: int, inputs: Fields[InputSpec]) -> Any:
    """Return so many random samples of ``inputs``: normal float32, or int64 ids within :attr:`InputSpec.span`, else below ``below``.

    An input with ids below 2 among several is a mask, which begins with 1: no sample is empty.
    """

    def one(spec: InputSpec) -> np.ndarray:
        shape = (samples, *spec.shape)
        if not spec.below:
            return rng.standard_normal(shape).astype(np.float32)
        least, largest = spec.span or (0, spec.below - 1)
        return rng.integers(least, largest, size=shape, endpoint=True)

    x = each(one, inputs)
    for name, spec in inputs.items() if isinstance(inputs, Mapping) else ():
        if spec.below == 2:
            x[name][..., 0] = 1
    return x


def forward(module: nn.Module, x: Fields[np.ndarray], label: str) -> Any:
    """Return what the network of the tier ``label`` computes for samples ``x``, without gradients.

    BundleError: its code raises an error. Such samples are :func:`drawn`, and a network may only take real ones.
    """
    try:
        with torch.no_grad():
            return module(each(torch.from_numpy, x))
    except EdgeflError:
        raise
    except Exception as error:  # a user's network may raise anything
        raise BundleError(
            f"tier {label}: the network does not take random samples in place of real ones: {reason(error)}"
        ) from error


def about_inputs(inputs: Fields[InputSpec], preprocessing: Preparation) -> dict[str, Any]:
    """Return the manifest's fields about what a sample consists of; ``preprocessing`` is by name if there are several inputs."""
    if isinstance(inputs, InputSpec):
        return {"input_shape": inputs.shape, "input_dtype": inputs.kind, "preprocessing": dict(preprocessing)}
    entries = {
        name: {"shape": spec.shape, "dtype": spec.kind, "preprocessing": dict(preprocessing.get(name, {}))}
        for name, spec in inputs.items()
    }
    return {"input_shape": (), "input_dtype": "float32", "inputs": entries, "preprocessing": {}}


def _run(files: Mapping[str, bytes], path: str, x: Fields[np.ndarray]) -> np.ndarray:
    """Return the outputs of the graph at ``path`` of ``files``; its weights may be in a second file."""
    if len(files) == 1:
        return predict(files[path], x, batch_size=REFERENCE_SAMPLES)
    with scratch_folder() as folder:
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
        return predict(folder / Path(path).name, x, batch_size=REFERENCE_SAMPLES)


def write(folder: Path, manifest: Manifest, contents: Mapping[str, bytes], key: SigningKey | None = None) -> Manifest:
    """Write a bundle to ``folder``, whole or not at all, and return its manifest with ``files`` and ``manifest_sha256`` filled in.

    ``contents`` maps paths in the bundle to files. ``key`` signs the manifest's bytes; None: the bundle is not signed.

    Raises:
        BundleError: ``folder`` exists and is not an empty folder, a path leads out of the bundle, or ``contents`` lacks a tier's file.
        StorageError: the disk is full or cannot be written.
    """
    check_free(folder, BundleError)
    complete = seal(folder, manifest, contents)
    text = text_of(complete)
    beside = {MANIFEST: text, **signature_files(text, key)}
    with whole_folder(folder) as temporary:
        for path, content in {**contents, **beside}.items():
            write_bytes(temporary / path, content)
    return complete


def client_files() -> dict[str, bytes]:
    """Return the Python, TypeScript and browser clients, which need neither torch nor edgefl, by their paths in a bundle.

    >>> "client/python/edgefl_client.py" in client_files()
    True
    """
    top = shared("export")
    files = {}
    for path in sorted(path for folder in _CLIENTS for path in (top / folder).rglob("*") if path.is_file()):
        inner = path.relative_to(top)
        if not any(part in _NOT_SHIPPED or part.startswith(".") for part in inner.parts):
            files[f"{CLIENT_FOLDER}/{inner.as_posix()}"] = path.read_bytes()
    core = f"{CLIENT_FOLDER}/ts/lib/core/"  # which the page has in a folder of its own
    return files | {
        f"{CLIENT_FOLDER}/web/core/{name.removeprefix(core)}": files[name]
        for name in files
        if name.startswith(core) and name.endswith(".js")
    }
