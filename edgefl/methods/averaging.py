"""Averages of what clients send: checked updates, and sums whose memory does not grow with their number."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from edgefl.errors import AggregationError
from edgefl.records import Update
from edgefl.util.compute import is_finite

# Values that are widened to float64 at once: 1 MB fits caches, and hides the cost of a call.
_CHUNK = 131072
# Factors are multiplied once their ranks add up to this.
_RANKS = 512


def checked(updates: Iterable[Update], expected: Callable[[Update], Mapping[str, tuple[int, ...]]]) -> Iterator[Update]:
    """Yield ``updates``, each checked against ``expected``, name → shape; raise :class:`AggregationError` as :meth:`Method.aggregate`."""
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
            if not is_finite(tensor):
                raise AggregationError(f"{who}: {name} holds NaN or infinity")
        count += 1
        yield update
    if not count:
        raise AggregationError("no update arrived: the state cannot be aggregated from nothing")


Slice = tuple[int, tuple[int, ...], tuple[int, ...]]


class WeightedSum:
    """A running float64 sum of weighted tensors, entry by entry, in the memory of one accumulator.

    >>> total = WeightedSum({"w": torch.zeros(3)})
    >>> total.add("w", torch.tensor([2.0, 4.0]), 1.0, (slice(0, 2),))
    >>> total.add("w", torch.tensor([6.0]), 3.0, (slice(0, 1),))
    >>> total.mean({"w": torch.tensor([-1.0, -1.0, -1.0])})["w"].tolist()
    [5.0, 4.0, -1.0]
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._sums = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in like.items()}
        # Of each tensor: the weight of all entries, of each slice (by offset, shape and strides), and of each entry, if any were listed.
        self._whole = dict.fromkeys(like, 0.0)
        self._slices: dict[str, dict[Slice, float]] = {name: {} for name in like}
        self._entries: dict[str, Tensor] = {}
        self._factors: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in like}
        self._folds: dict[str, Callable[[Tensor], Tensor]] = {}
        self._wide = torch.empty(_CHUNK, dtype=torch.float64)

    def add(self, name: str, tensor: Tensor, weight: float, index: Any = ...) -> None:
        """Add ``weight · tensor`` at ``index`` of the tensor ``name``; the tensor is not stored."""
        sums = self._sums[name]
        if isinstance(index, Tensor) or (isinstance(index, tuple) and any(isinstance(part, Tensor) for part in index)):
            if name not in self._entries:
                self._entries[name] = torch.zeros_like(sums)
            sums[index] += weight * tensor.double()
            self._entries[name][index] += weight
            return
        place = sums if index is ... else sums[index]
        if place.shape == sums.shape:
            self._whole[name] += weight
        else:
            key = int(place.storage_offset()), tuple(place.shape), place.stride()
            self._slices[name][key] = self._slices[name].get(key, 0.0) + weight
        self._accumulate(place, tensor, weight)

    def add_product(
        self, name: str, left: Tensor, right: Tensor, weight: float, fold: Callable[[Tensor], Tensor] = lambda product: product
    ) -> None:
        """Add ``weight · fold(left @ right)`` to the tensor ``name``, for ``left`` (a, r) and ``right`` (r, b) in float32.

        Σ wᵢLᵢRᵢ is the product of all wᵢLᵢ side by side and all Rᵢ stacked. Factors wait until their ranks add up to 512: one large
        product is faster than many small ones, and is widened and summed once. ``fold`` is linear, and the same at each call for a tensor.

        >>> total = WeightedSum({"w": torch.zeros(2, 1)})
        >>> total.add_product("w", torch.tensor([[2.0], [3.0]]), torch.tensor([[5.0]]), 0.5)
        >>> total.mean({"w": torch.zeros(2, 1)})["w"].tolist()
        [[10.0], [15.0]]
        """
        self._factors[name].append((left * weight, right.clone()))
        self._folds[name] = fold
        self._whole[name] += weight
        if sum(len(right) for _, right in self._factors[name]) >= _RANKS:
            self._multiply(name)

    def mean(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return Σ weight·tensor / Σ weight in the old dtypes; entries that no client covered keep their old value."""
        result = {}
        for name, before in old.items():
            self._multiply(name)
            sums, weight = self._sums[name], self._whole[name]
            if not self._slices[name] and name not in self._entries:
                result[name] = (sums / weight).to(before.dtype) if weight > 0 else before.clone()
                continue
            weights = self._entries[name].clone() if name in self._entries else torch.zeros_like(sums)
            for (offset, shape, strides), of_slice in self._slices[name].items():
                weights.as_strided(shape, strides, offset).add_(of_slice)
            weights += weight
            mean = torch.where(weights > 0, sums / weights.clamp_min(1e-300), before.double())
            result[name] = mean.to(before.dtype)
        return result

    def _multiply(self, name: str) -> None:
        """Add the product of the waiting factors, if there are any."""
        if waiting := self._factors[name]:
            left, right = (torch.cat(parts, dim) for dim, parts in zip((1, 0), zip(*waiting, strict=True), strict=True))
            self._factors[name] = []
            self._accumulate(self._sums[name], self._folds[name](left @ right), 1.0)

    def _accumulate(self, place: Tensor, tensor: Tensor, weight: float) -> None:
        """Add ``weight · tensor`` to ``place``, a view of the sums, without a temporary of its size."""
        if place.numel() <= _CHUNK:
            place.add_(tensor, alpha=weight)  # widened on the way
            return
        if place.is_contiguous() and tensor.is_contiguous():
            place, tensor = place.view(-1), tensor.view(-1)
        rows = max(1, _CHUNK * len(place) // place.numel())
        for part, values in zip(place.split(rows), tensor.split(rows), strict=True):
            if part.numel() > _CHUNK:
                self._accumulate(part[0], values[0], weight)
            else:
                part.add_(self._wide[: part.numel()].view(part.shape).copy_(values), alpha=weight)
