"""The check of the tensors that a bundle stores beside its graphs: the declared names, types and shapes, and finite numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from edgefl.bundle.graph_check import End
from edgefl.errors import BundleError

Arrays = dict[str, np.ndarray]


def stored_tensors(folder: Path, name: str, wanted: Mapping[str, End], optional: Mapping[str, End] | None = None) -> Arrays:
    """Return the tensors of the file ``name`` of a bundle.

    Args:
        folder: the bundle.
        name: path of the file in it.
        wanted: every tensor that it must hold; free sizes are the samples of ``x``, at least one.
        optional: tensors that it may hold besides.

    Raises:
        BundleError: a tensor is missing, is not declared, has another type or shape, or is not finite.
    """
    try:
        tensors: Arrays = safetensors.numpy.load((folder / name).read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy does not have
        raise BundleError(f"{name}: not a valid safetensors file ({str(error)[:300]})") from None
    known = {**wanted, **(optional or {})}
    if more := tensors.keys() - known:
        raise BundleError(f"{name}: holds {_some(more)}, expected {_some(set(wanted))} and nothing else")
    if absent := wanted.keys() - tensors.keys():
        raise BundleError(f"{name}: lacks {_some(set(absent))}")
    free = any(None in end.dims for end in wanted.values())
    samples = len(tensors["x"]) if free and tensors["x"].ndim else 0
    if free and not samples:
        raise BundleError(f"{name}: x {tensors['x'].shape}, expected at least one sample")
    for key, found in tensors.items():
        dtype, shape = known[key].dtype, tuple(samples if size is None else size for size in known[key].dims)
        if (found.dtype.name, found.shape) != (dtype, shape):
            raise BundleError(f"{name}: {key} is {found.dtype} {found.shape}, expected {dtype} {shape}")
        if not np.isfinite(found).all():
            raise BundleError(f"{name}: {key} holds values that are not finite")
    return tensors


def _some(names: set[str]) -> str:
    """Return the first names of a set that may be long, and may come from anywhere."""
    shown = [name if name.isprintable() else repr(name) for name in sorted(names)[:4]]
    return ", ".join(name[:100] for name in shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
