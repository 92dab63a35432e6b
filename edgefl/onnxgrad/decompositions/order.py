"""Operators that select entries by their rank: sorting, minima and maxima, medians, and the most frequent entry."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgefl.onnxgrad.decompositions.numbers import running

aten = torch.ops.aten


def _cumulative(extreme: Callable[..., Tensor]) -> Callable[..., Any]:
    def computed(self: Tensor, dim: int) -> Any:
        """Select the extreme so far; of equal ones the last, as torch."""
        if self.dim() == 0:
            return self.clone(), torch.zeros((), dtype=torch.int64)
        if not isinstance(size := self.shape[dim], int):
            return NotImplemented
        own = torch.arange(size).reshape(-1, *[1] * (self.dim() - dim % self.dim() - 1))
        hits = self == running(extreme, self, dim)
        places = running(torch.maximum, torch.where(hits, own, torch.zeros_like(own)), dim)
        return self.gather(dim, places), places

    return computed


def _both(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self.clone(), self.clone()
    axes = list(range(self.dim())) if dim is None else [dim]
    return torch.amin(self, axes, keepdim), torch.amax(self, axes, keepdim)


def _sorted(input: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Sort an axis; the operator of ONNX puts the first of several equal entries first."""
    if input.dim() == 0 or not isinstance(size := input.shape[dim], int):
        return NotImplemented
    return tuple(torch.topk(input, size, dim, largest=descending))


def _kth(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the last of the ``k`` smallest entries, and its place."""
    if input.dim() == 0:
        return input, torch.zeros_like(input, dtype=torch.int64)
    value, place = (part.narrow(dim, k - 1, 1) for part in torch.topk(input, k, dim, largest=False))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _median_of_axis(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Return the lower median of an axis of fixed size, and its place."""
    size = input.shape[dim] if input.dim() else 1
    return _kth(input, (size + 1) // 2, dim, keepdim) if isinstance(size, int) else NotImplemented


def _known_median_of_axis(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Return the lower median of the entries of an axis that are not NaN, and its place."""
    if input.dim() == 0:
        return input, torch.zeros_like(input, dtype=torch.int64)
    size = input.shape[dim]
    if not isinstance(size, int):
        return NotImplemented
    unknown = torch.isnan(input)
    places = torch.topk(torch.where(unknown, torch.inf, input), size, dim, largest=False).indices
    rank = torch.floor((size - 1 - unknown.to(input.dtype).sum(dim, keepdim=True)).clamp(min=0) / 2).to(torch.int64)
    place = places.gather(dim, rank)
    value = input.gather(dim, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _of_all(of_axis: Callable[..., Any]) -> Callable[[Tensor], Any]:
    """Return a median of all entries. Its gradient goes to all entries that equal it, in equal parts."""

    def median(input: Tensor) -> Any:
        flat = input.reshape(-1)
        found = of_axis(flat, 0)
        if found is NotImplemented:
            return NotImplemented
        same = flat == found[0]
        return torch.where(same, flat, 0).sum() / same.to(input.dtype).sum()

    return median


def _most_frequent(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the most frequent entry of an axis, the smallest of several, and the last of its places."""
    if input.dim() == 0:
        return input, torch.zeros_like(input, dtype=torch.int64)
    size = input.shape[dim]
    if not isinstance(size, int):
        return NotImplemented
    rows = input.movedim(dim, -1)
    counts = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).to(input.dtype).sum(-1)
    least = torch.where(counts == counts.amax(-1, keepdim=True), rows, torch.inf).amin(-1, keepdim=True)
    numbered = torch.where(rows == least, torch.arange(size), -1)
    place = numbered.amax(-1, keepdim=True).movedim(-1, dim)
    value = input.gather(dim, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


ORDER: dict[Any, Callable[..., Any]] = {
    aten.sort.stable: _sorted,
    aten.kthvalue.default: _kth,
    aten.median.default: _of_all(_median_of_axis),
    aten.median.dim: _median_of_axis,
    aten.nanmedian.default: _of_all(_known_median_of_axis),
    aten.nanmedian.dim: _known_median_of_axis,
    aten.mode.default: _most_frequent,
    aten.cummax.default: _cumulative(torch.maximum),
    aten.cummin.default: _cumulative(torch.minimum),
    aten.aminmax.default: _both,
}
"""Operator of torch → what computes it."""
