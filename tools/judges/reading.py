"""Reads an ONNX graph as edgefl does, computes it, and counts it twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from edgefl.errors import InputError
from edgefl.onnxgrad import count_macs
from edgefl.onnxgrad.rules import KNOWN
from edgefl.onnxgrad.to_torch import module_of
from judges.counts import torch_macs
from judges.verdict import EQUAL, Skip, Verdict

ROUNDING: Mapping[str, float] = {"float16": 2e-3, "bfloat16": 1e-2}
"""Type of 16 bits → how far results computed in another order may differ, of values near 1."""


def as_network(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """Return a model whose shapes and settings are stored in it, as in an exported network, and the inputs that are left."""
    names = [value.name for value in model.graph.input]
    slots = {node.input[i] for node in model.graph.node for i in KNOWN.get(node.op_type, ()) if i < len(node.input)}
    stored = {name for name in slots if name in names[1:]}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.input[:]
    changed.graph.input.extend(value for value in model.graph.input if value.name not in stored)
    given = dict(zip(names, inputs, strict=False))
    changed.graph.initializer.extend(onnx.numpy_helper.from_array(given[name], name) for name in names if name in stored)
    return changed, [value for name, value in given.items() if name not in stored]


def read(model: onnx.ModelProto, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], relative: float) -> Verdict:
    """Compare what edgefl computes of a graph with its known results, and the MACs of the two counters with each other.

    Results may differ by a share of ``relative``; results of 16 bits by as much as their rounding.
    """
    module, _ = module_of(model)
    batch = [tensor_of(value) for value in inputs]
    rounding = max((ROUNDING.get(str(value.dtype), 1e-5) for value in (*inputs, *outputs)), default=1e-5)
    results, again = _computed(module, batch), _computed(module, batch)
    if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(results, again, strict=True)):
        raise Skip("the result is random")
    for name, value, theirs in zip((value.name for value in model.graph.output), results, outputs, strict=False):
        if value.shape != theirs.shape:
            return Verdict("wrong", f"{name} has the shape {value.shape}, expected {theirs.shape}")
        ours, other = value.astype(np.float64), theirs.astype(np.float64)
        if not np.allclose(ours, other, rtol=max(relative, rounding), atol=rounding, equal_nan=True):
            with np.errstate(all="ignore"):
                off = np.nanmax(np.abs(ours - other))
            return Verdict("wrong", f"{name} differs by {off:.2g}")
    return _counted(model, module, batch)


def _computed(module: torch.nn.Module, batch: Sequence[torch.Tensor]) -> list[np.ndarray]:
    with torch.no_grad():
        found = module(*batch)
    return [_array(value) for value in (found if isinstance(found, (tuple, list)) else [found])]


def tensor_of(value: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor; torch takes bfloat16 from no array, and so through float32."""
    bfloat16 = str(value.dtype) == "bfloat16"
    found = torch.from_numpy(np.array(value.astype(np.float32) if bfloat16 else value))
    return found.bfloat16() if bfloat16 else found


def _array(value: Any) -> np.ndarray:
    return value.float().numpy() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else np.asarray(value)


def _counted(model: onnx.ModelProto, module: torch.nn.Module, batch: Sequence[torch.Tensor]) -> Verdict:
    if not batch or not batch[0].dim():
        return EQUAL
    try:
        graph = count_macs(model, len(batch[0]))
    except InputError:  # a shape that only the values tell
        return EQUAL
    torchs = torch_macs(module, batch)
    if graph.uncounted_ops or graph.total == torchs:
        return EQUAL
    return Verdict("wrong", f"MACs: torch's operations {torchs:,}, the graph {graph.total:,}")
