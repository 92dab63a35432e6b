"""Averaging what clients send: updates that are checked, and sums that do not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from edgefl.errors import AggregationError
from edgefl.records import Update


def checked(updates: Iterable[Update], expected: Callable[[Update], Mapping[str, tuple[int, ...]]]) -> Iterator[Update]:
    """Yield updates that can be averaged, and refuse the others with the tensor and both shapes: nothing ever broadcasts.

    Raises:
        AggregationError: see :meth:`Method.aggregate`.
    """
    count = 0
    for update in updates:
        who = f"client {update.client}, tier {update.tier.label}"
        if update.samples <= 0:
            raise AggregationError(f"{who}: an update needs a positive number of samples, got {update.samples}")
        shapes = expected(update)
        if missing := shapes.keys() ^ update.tensors.keys():
            raise AggregationError(f"{who}: tensors missing or not expected: {', '.join(sorted(missing))}")
        for name, tensor in update.tensors.items():
            if tuple(tensor.shape) != shapes[name]:
                raise AggregationError(f"{who}: {name} has shape {tuple(tensor.shape)}, expected {shapes[name]}")
            if not bool(torch.isfinite(tensor).all()):
                raise AggregationError(f"{who}: {name} holds NaN or infinity")
        count += 1
        yield update
    if not count:
        raise AggregationError("no update arrived: the state cannot be aggregated from nothing")


class WeightedSum:
    """A running float64 sum of weighted tensors, entry by entry: the memory of one accumulator however many are added.

    >>> total = WeightedSum({"w": torch.zeros(3)})
    >>> total.add("w", torch.tensor([2.0, 4.0]), 1.0, (slice(0, 2),))
    >>> total.add("w", torch.tensor([6.0]), 3.0, (slice(0, 1),))
    >>> total.mean({"w": torch.tensor([-1.0, -1.0, -1.0])})["w"].tolist()
    [5.0, 4.0, -1.0]
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._sums = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in like.items()}
        # One number per tensor until a part of it is added on its own.
        self._weights = {name: torch.zeros((), dtype=torch.float64) for name in like}

    def add(self, name: str, tensor: Tensor, weight: float, index: Any = ...) -> None:
        """Add ``weight · tensor`` at ``index`` of the tensor ``name``."""
        if index is not ... and self._weights[name].dim() == 0:
            self._weights[name] = self._weights[name].expand(self._sums[name].shape).clone()
        self._sums[name][index] += weight * tensor.double()
        self._weights[name][index] += weight

    def mean(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return Σ weight·tensor / Σ weight in the old dtypes; entries that nobody covered keep their old value."""
        result = {}
        for name, before in old.items():
            weights = self._weights[name]
            mean = torch.where(weights > 0, self._sums[name] / weights.clamp_min(1e-300), before.double())
            result[name] = mean.to(before.dtype)
        return result
