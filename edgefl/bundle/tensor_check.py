"""The tensors that a bundle stores beside its graphs: the declared names, types and shapes, and nothing but numbers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from edgefl.bundle.manifest import Manifest, TierEntry, TrainEntry
from edgefl.errors import BundleError

Arrays = dict[str, np.ndarray]
CONTROL = "control:"
"""Prefix of control variates."""
STEPS = 3
"""Training steps whose losses a reference holds."""


def references(folder: Path, manifest: Manifest, entry: TierEntry) -> tuple[np.ndarray, np.ndarray]:
    """Return ``x`` and ``logits`` of a tier's reference.

    Raises:
        BundleError: it holds something else.
    """
    tensors = _tensors(folder, entry.reference, {"x", "logits"})
    samples = _samples(entry.reference, tensors)
    dtypes = {"x": manifest.input_dtype, "logits": "float32"}
    _hold(entry.reference, tensors, dtypes, {"x": (samples, *manifest.input_shape), "logits": (samples, manifest.classes)})
    return tensors["x"], tensors["logits"]


def train_references(folder: Path, manifest: Manifest, train: TrainEntry) -> Arrays:
    """Return ``x``, ``y`` and the three ``losses`` of a tier's reference for training.

    Raises:
        BundleError: it holds something else, or labels that there are not.
    """
    tensors = _tensors(folder, train.reference, {"x", "y", "losses"})
    samples = _samples(train.reference, tensors)
    dtypes = {"x": manifest.input_dtype, "y": "int64", "losses": "float32"}
    _hold(train.reference, tensors, dtypes, {"x": (samples, *manifest.input_shape), "y": (samples,), "losses": (STEPS,)})
    y = tensors["y"]
    if y.min() < 0 or y.max() >= manifest.classes:
        raise BundleError(f"{train.reference}: y from {y.min()} to {y.max()}, expected labels from 0 to {manifest.classes - 1}")
    return tensors


def parameters(folder: Path, train: TrainEntry) -> Arrays:
    """Return the initial values of everything that a tier's training graphs read; with ``scaffold`` also the server's control variates.

    Raises:
        BundleError: a tensor is missing, is more than declared, has another type or shape, or is not finite.
    """
    controls = {f"{CONTROL}{name}": shape for name, shape in train.trained.items()} if train.objective.name == "scaffold" else {}
    tensors = _tensors(folder, train.parameters, set(train.tensors), set(controls))
    shapes = {name: shape for name, shape in {**train.tensors, **controls}.items() if name in tensors}
    _hold(train.parameters, tensors, dict.fromkeys(shapes, "float32"), shapes)
    return tensors


def _tensors(folder: Path, name: str, expected: set[str], allowed: Set[str] = frozenset()) -> Arrays:
    try:
        tensors: Arrays = safetensors.numpy.load((folder / name).read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy does not have
        raise BundleError(f"{name}: not a valid safetensors file ({str(error)[:300]})") from None
    if more := tensors.keys() - expected - allowed:
        raise BundleError(f"{name}: holds {_some(more)}, expected {_some(expected)} and nothing else")
    if absent := expected - tensors.keys():
        raise BundleError(f"{name}: lacks {_some(absent)}")
    return tensors


def _some(names: set[str]) -> str:
    """Return the first names of a set that may be long, and may come from anywhere."""
    shown = [name if name.isprintable() else repr(name) for name in sorted(names)[:4]]
    return ", ".join(name[:100] for name in shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _samples(name: str, tensors: Arrays) -> int:
    samples = len(tensors["x"]) if tensors["x"].ndim else 0
    if not samples:
        raise BundleError(f"{name}: x {tensors['x'].shape}, expected at least one sample")
    return samples


def _hold(name: str, tensors: Arrays, dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for key, shape in shapes.items():
        found = tensors[key]
        if (found.dtype.name, found.shape) != (dtypes[key], shape):
            raise BundleError(f"{name}: {key} is {found.dtype} {found.shape}, expected {dtypes[key]} {shape}")
        if not np.isfinite(found).all():
            raise BundleError(f"{name}: {key} holds values that are not finite")
