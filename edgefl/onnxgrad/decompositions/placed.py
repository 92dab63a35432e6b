"""Operators of torch on single entries: written to places, compared in pairs, or scaled at random."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """Write entries to places in the flattened tensor, or add them; a negative place counts from the end."""
    flat, places = self.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    entries = source.reshape(-1)
    found = flat.scatter_add(0, places, entries) if accumulate else flat.scatter(0, places, entries)
    return found.reshape(self.shape)


def _pair_distances(self: Tensor, p: float = 2.0) -> Any:
    """Return the distances of each row to all later ones, as norms of their differences."""
    if not isinstance(rows := self.shape[0], int):
        return NotImplemented
    if rows < 2 or not self.numel():
        return self.new_zeros(rows * (rows - 1) // 2)
    first, second = torch.triu_indices(rows, rows, 1)
    return torch.linalg.vector_norm(self[first] - self[second], p, -1)


def _randomly_leaky(
    self: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Return RReLU with random slopes, which an inference graph draws itself, and its slopes."""
    slope = lower + (upper - lower) * torch.rand_like(self) if training else torch.full_like(self, (lower + upper) / 2)
    slope = torch.where(self > 0, 1.0, slope)
    return self * slope, slope


PLACED: dict[Any, Callable[..., Any]] = {
    aten.put.default: _put,
    aten._pdist_forward.default: _pair_distances,  # noqa: SLF001 - its name in torch's graphs
    aten.rrelu_with_noise_functional.default: _randomly_leaky,
}
"""Operator of torch → what computes it."""
