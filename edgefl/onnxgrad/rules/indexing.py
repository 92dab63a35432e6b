"""Operators that read and write at indices, find them, or make values of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Array, Choices, Operator, Rule


def _from_start(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index).long()


def _gather(node: Operator, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0) % x.dim()
    index = _from_start(index, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return F.embedding(index, x)
    return x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _at_elements(function: Callable[..., Tensor]) -> Rule:
    def rule(node: Operator, x: Tensor, index: Tensor, *updates: Tensor) -> Tensor:
        axis = node.get("axis", 0)
        return function(x, axis, _from_start(index, x.shape[axis]), *updates)

    return rule


def _scatter_elements(node: Operator, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis, reduction = node.get("axis", 0), node.get("reduction", "none")
    index = _from_start(index, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, index, updates)
    if reduction == "add":
        return x.scatter_add(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[reduction])


def _flat_places(index: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the places (…) of coordinates (…, axes) in a tensor of these sizes."""
    steps = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return sum(
        (_from_start(index[..., axis], size) * steps[axis] for axis, size in enumerate(sizes)), start=index.new_zeros(()).long()
    )


def _scatter_nd(node: Operator, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    reduction, axes = node.get("reduction", "none"), index.shape[-1]
    if reduction in ("none", "add"):
        return torch.index_put(x, index.unbind(-1), updates, accumulate=reduction == "add")
    rows = x.reshape(math.prod(x.shape[:axes]), -1)
    places = _flat_places(index, x.shape[:axes]).reshape(-1, 1).expand(-1, rows.shape[1])
    return rows.scatter_reduce(0, places, updates.reshape(places.shape), _REDUCTIONS[reduction]).reshape(x.shape)


def _gather_nd(node: Operator, x: Tensor, index: Tensor) -> Tensor:
    batch, axes = node.get("batch_dims", 0), index.shape[-1]
    first, inner, rest = math.prod(x.shape[:batch]), x.shape[batch : batch + axes], x.shape[batch + axes :]
    places = _flat_places(index, inner).reshape(first, -1)
    if batch:
        places = places + torch.arange(first, device=x.device).reshape(-1, 1) * math.prod(inner)
    return x.reshape(-1, math.prod(rest)).index_select(0, places.reshape(-1)).reshape(*index.shape[:-1], *rest)


def _tensor_scatter(node: Operator, past: Tensor, update: Tensor, start: Tensor | None = None) -> Tensor:
    axis, size = node.get("axis", -2) % past.dim(), update.dim()
    steps = torch.arange(update.shape[axis], device=past.device).reshape(-1, *[1] * (size - 1 - axis))
    places = steps if start is None else start.reshape(-1, *[1] * (size - 1)) + steps
    if node.get("mode", "linear") == "circular":
        places = places % past.shape[axis]
    return past.scatter(axis, places.expand(update.shape).long(), update)


def _reverse_sequence(node: Operator, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = node.get("batch_axis", 1), node.get("time_axis", 0)
    steps = torch.arange(x.shape[time], device=x.device).reshape(-1, *[1] * (x.dim() - 1 - time))
    ends = lengths.reshape(-1, *[1] * (x.dim() - 1 - batch))
    return x.gather(time, torch.where(steps < ends, ends - 1 - steps, steps).expand(x.shape))


def _one_hot(node: Operator, index: Tensor, depth: Array, values: Tensor) -> Tensor:
    size, axis = int(depth.item()), node.get("axis", -1)
    index = torch.where(index < 0, index + size, index).unsqueeze(axis)
    classes = torch.arange(size, device=index.device).reshape(-1, *[1] * (index.dim() - 1 - axis % index.dim()))
    return torch.where(index == classes, values[1], values[0])


def _eye_like(node: Operator, x: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    return (columns - rows[:, None] == node.get("k", 0)).to(DTYPES[node.get("dtype")] if node.get("dtype") else x.dtype)


def _compress(node: Operator, x: Tensor, condition: Array) -> Tensor:
    chosen = torch.tensor(np.flatnonzero(condition), device=x.device)
    return x.reshape(-1)[chosen] if node.get("axis") is None else x.index_select(node.get("axis"), chosen)


_REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}
RULES: dict[str, Rule] = {
    "Gather": _gather, "GatherElements": _at_elements(torch.gather), "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd, "TensorScatter": _tensor_scatter,
    "ReverseSequence": _reverse_sequence, "OneHot": _one_hot, "EyeLike": _eye_like, "Compress": _compress,
}  # fmt: skip
ATTRIBUTES = {
    "Gather": "axis", "GatherElements": "axis", "GatherND": "batch_dims", "ScatterElements": "axis reduction",
    "ScatterND": "reduction", "TensorScatter": "axis mode", "ReverseSequence": "batch_axis time_axis", "OneHot": "axis",
    "EyeLike": "dtype k", "Compress": "axis",
}  # fmt: skip
KNOWN = {"OneHot": (1,), "Compress": (1,)}
UNTRAINED: dict[str, tuple[int, ...]] = {"OneHot": (2,)}
_WRITES = {"reduction": ("none", "add", *_REDUCTIONS)}
CHOICES: dict[str, Choices] = {
    "ScatterElements": _WRITES, "ScatterND": _WRITES, "TensorScatter": {"mode": ("linear", "circular")},
}  # fmt: skip
