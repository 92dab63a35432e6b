"""Minima and maxima of torch by operators that have an ONNX form, with torch's gradients where values are equal."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _running(extreme: Callable[..., Tensor], x: Tensor, dim: int) -> Tensor:
    """Return the extreme of all entries so far, in log₂(n) steps: each doubles the number of entries."""
    size, step = x.shape[dim], 1
    while step < size:
        later = extreme(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))
        x = torch.cat([x.narrow(dim, 0, step), later], dim)
        step *= 2
    return x


def _cumulative(extreme: Callable[..., Tensor]) -> Callable[..., Any]:
    def computed(self: Tensor, dim: int) -> Any:
        """Select the extreme so far; of equal ones the last, as torch."""
        if self.dim() == 0:
            return self.clone(), torch.zeros((), dtype=torch.int64)
        if not isinstance(size := self.shape[dim], int):
            return NotImplemented
        own = torch.arange(size).reshape(-1, *[1] * (self.dim() - dim % self.dim() - 1))
        hits = self == _running(extreme, self, dim)
        places = _running(torch.maximum, torch.where(hits, own, torch.zeros_like(own)), dim)
        return self.gather(dim, places), places

    return computed


def _both(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self.clone(), self.clone()
    axes = list(range(self.dim())) if dim is None else [dim]
    return torch.amin(self, axes, keepdim), torch.amax(self, axes, keepdim)


EXTREMES: dict[Any, Callable[..., Any]] = {
    aten.cummax.default: _cumulative(torch.maximum),
    aten.cummin.default: _cumulative(torch.minimum),
    aten.aminmax.default: _both,
}
"""Operator of torch → what computes it."""
