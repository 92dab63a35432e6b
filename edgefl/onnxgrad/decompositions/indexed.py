"""Operators of torch that add or combine entries at indices, by operators that have an ONNX form and a gradient rule."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.onnxgrad.decompositions.numbers import running
from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.errors import EdgeflError

aten = torch.ops.aten


def along(index: Tensor, dim: int, like: Tensor) -> Tensor:
    """Return a vector of indices along an axis in the shape of ``like``."""
    return index.reshape(-1, *[1] * (like.dim() - dim % like.dim() - 1)).expand_as(like)


def combined(input: Tensor, dim: int, places: Tensor, source: Tensor, reduce: str, include_self: bool) -> Tensor:
    """Return the sums, means or extremes of the entries of ``source`` that go to each of the ``places``.

    Extremes are without those of ``input``, which stay where none go to. As in torch, equal entries share the gradient, and an entry of
    ``input`` that is equal, but does not count, takes a share that is lost.
    """
    counts, zero = torch.zeros_like(input).scatter_add(dim, places, torch.ones_like(source)), torch.zeros_like(input)
    touched = counts > 0
    if reduce in ("sum", "mean"):
        total = (input if include_self else torch.where(touched, zero, input)).scatter_add(dim, places, source)
        return total if reduce == "sum" else total / (counts + include_self).clamp(min=1)
    start = torch.where(touched, torch.full_like(input, -math.inf if reduce == "amax" else math.inf), input)
    most = held(start.scatter_reduce(dim, places, source, reduce))
    hits = source == most.gather(dim, places)
    sharing = (input == most).to(input.dtype).scatter_add(dim, places, hits.to(input.dtype)).clamp(min=1)
    moved = torch.where(hits, (source - held(source)) / sharing.gather(dim, places), torch.zeros_like(source))
    return most + torch.where(touched, zero, input - held(input)).scatter_add(dim, places, moved)


def _index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Combine the entries of each place: sums and extremes by scatter, products over all entries that go there."""
    if self.dim() == 0:
        return _index_reduce(self.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self).reshape(())
    dim %= self.dim()
    index = index.reshape(-1)
    places = along(index, dim, source)
    if reduce in ("amax", "amin") and include_self:
        return self.scatter_reduce(dim, places, source, reduce)
    if reduce != "prod":
        return combined(self, dim, places, source, reduce, include_self)
    goes = torch.arange(self.shape[dim]).unsqueeze(-1) == index  # (rows, entries)
    counts = torch.zeros_like(self).scatter_add(dim, places, torch.ones_like(source))
    factors = torch.where(goes, source.movedim(dim, -1).unsqueeze(-2), torch.ones((), dtype=self.dtype))
    last = running(torch.mul, factors, -1)[..., -1].movedim(-1, dim)
    return (self if include_self else torch.where(counts > 0, torch.ones_like(self), self)) * last


def _add_at(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Add entry by entry: the operator that adds slices loses some in onnxruntime if an index repeats."""
    given = [index for index in indices if index is not None]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if not accumulate or any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return NotImplemented
    if not all(isinstance(self.shape[axis], int) for axis in axes):
        return NotImplemented
    others = [axis for axis in range(self.dim()) if axis not in axes]
    front = self.permute(*axes, *others)
    sizes, rest = front.shape[: len(axes)], front.shape[len(axes) :]
    wide = torch.broadcast_tensors(*given)
    strides = [math.prod(sizes[place + 1 :]) for place in range(len(axes))]
    place = sum(
        (torch.where(index < 0, index + size, index) * step for index, size, step in zip(wide, sizes, strides, strict=True)),
        torch.zeros((), dtype=torch.int64),
    )
    count, adjacent = place.dim(), axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if adjacent else 0
    shape = [*(self.shape[axis] for axis in others[:before]), *place.shape, *(self.shape[axis] for axis in others[before:])]
    parts = values.expand(shape).movedim(list(range(before, before + count)), list(range(count)))
    flat = parts.reshape(-1, math.prod(rest))
    rows = front.reshape(math.prod(sizes), math.prod(rest))
    summed = rows.scatter_add(0, place.reshape(-1, 1).expand(flat.shape), flat).reshape(front.shape)
    back = sorted(range(self.dim()), key=[*axes, *others].__getitem__)
    return summed.permute(back)


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0}


def _segments(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """Reduce the entries of each segment, each as those of the whole axis that belong to it."""
    if offsets is None and lengths is not None:
        offsets = torch.cat([torch.zeros_like(lengths[..., :1]), lengths.cumsum(-1)], -1)
    if indices is not None or offsets is None or axis != offsets.dim() - 1:
        return NotImplemented
    own, along = torch.arange(data.shape[axis]), axis + 1
    inside = (own >= offsets[..., :-1].unsqueeze(-1)) & (own < offsets[..., 1:].unsqueeze(-1))  # (…, segments, entries)
    inside = inside.reshape(*inside.shape, *[1] * (data.dim() - axis - 1))
    neutral = _NEUTRAL.get(reduce, 0.0)
    start = neutral if initial is None else float(initial)
    values = torch.where(inside, data.unsqueeze(axis), torch.full((), neutral, dtype=data.dtype))
    if reduce == "sum":
        return values.sum(along) + start
    if reduce == "mean":
        counts = inside.to(data.dtype).sum(along)
        nothing = torch.full((), math.nan if initial is None else start, dtype=data.dtype)
        return torch.where(counts > 0, (values.sum(along) + start) / counts.clamp(min=1), nothing)
    if reduce == "prod":
        return running(torch.mul, values, along).select(along, -1) * start
    raise EdgeflError(
        f"segment_reduce with {reduce}: torch's gradient of equal entries depends on its sign, which a graph cannot express; "
        "use scatter_reduce"
    )


def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """Write entries to places in the flattened tensor, or add them; a negative place counts from the end."""
    flat, places = self.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    entries = source.reshape(-1)
    found = flat.scatter_add(0, places, entries) if accumulate else flat.scatter(0, places, entries)
    return found.reshape(self.shape)


INDEXED: dict[Any, Callable[..., Any]] = {
    aten.index_reduce.default: _index_reduce,
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), _add_at),  # noqa: SLF001 - an operator's name
    aten.put.default: _put,
    aten.segment_reduce.default: _segments,
}
"""Operator of torch → what computes it."""
