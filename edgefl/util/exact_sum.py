"""Sums of tensors that have the same bits in any order and grouping, at about the price of a plain sum.

Each term weight · value, computed in float64, is rounded to a multiple of 2⁻⁷¹. A sum of such terms is an integer times 2⁻⁷¹, and integers
add up to the same in any order. The integer is held in limbs of float64, as in the binned sums of Demmel and Nguyen (2015, Parallel
Reproducible Summation): every entry of limb k is a multiple of u_k = 2⁴⁵ᵏ⁻⁷¹. Multiples of u add up exactly while sums stay below 2⁵³ u, so
a limb is carried to the next one before it could reach half of this. A term below 2²⁵ in magnitude needs limbs 0 and 1. Larger terms, and
sums above 2²⁶, need more limbs. The sum is rounded once, when it is read.

A product is exact before it is rounded if the value is a float32 and the weight has at most 29 significant bits, as sample counts do.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

_CHUNK = 32768
"""So many values are added at a time: with both limbs they fit a core's cache, and are enough work to make calls cheap."""


_FULL = 2.0**52
"""A limb is carried before an entry could have more units. Half of what is exact, because bounds are rounded themselves."""


def _unit(limb: int) -> float:
    """Return u_k for limb k."""
    return 2.0 ** (45 * limb - 71)


def _runs(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the values of ``parts`` in tensors of one dimension; small parts are joined, because each call has its price.

    >>> [len(run) for run in _runs([torch.ones(2, 3), torch.ones(4), torch.ones(40_000), torch.ones(0), torch.ones(5)])]
    [10, 40000, 5]
    """
    flat = (part.reshape(-1) for part in parts if part.numel())
    for small, group in groupby(flat, key=lambda values: len(values) < _CHUNK):
        run = [*group]
        yield from [torch.cat(run)] if small else run


@dataclass
class ExactSum:
    """Σ weight · tensor, of which every entry is rounded once, however the terms were ordered and grouped.

    Attributes:
        limbs: float64 tensors of the sum's shape, two or more, the finest first. They add up to the sum.
        bounds: the most that the magnitude of an entry of each limb can be.

    >>> one, other = ExactSum.zeros((2,)), ExactSum.zeros((2,))
    >>> one.add(torch.tensor([0.1, 1e30]), 3)
    >>> other.add(torch.tensor([0.2, -1e30]), 3)
    >>> other.add(torch.tensor([0.3]), 1, (slice(1, 2),))
    >>> one.merge(other)
    >>> one.value()
    tensor([0.9000, 0.3000], dtype=torch.float64)
    """

    limbs: list[Tensor]
    bounds: list[float]
    _scratch: list[Array] = field(default_factory=list, repr=False)

    @classmethod
    def zeros(cls, shape: Sequence[int]) -> Self:
        """Return the sum of nothing."""
        return cls([torch.zeros(tuple(shape), dtype=torch.float64) for _ in range(2)], [0.0, 0.0])

    def add(self, values: Tensor, weight: float = 1.0, index: Any = ...) -> None:
        """Add ``weight · values`` to the entries ``index``: slices, int64 tensors without repetitions, or all.

        Raises:
            ValueError: a value is NaN or infinite, or its product is; or ``values`` has another shape than the entries.
        """
        if not values.numel():
            return
        self._make_room([values], weight)
        places = self.limbs if index is ... else [limb[index] for limb in self.limbs]
        if places[0].shape != values.shape:
            raise ValueError(
                f"values of shape {tuple(values.shape)} cannot be added to entries of shape {tuple(places[0].shape)}"
            )
        # For tensors of this size a call of numpy takes half the time of a call of torch.
        self._accumulate([place.numpy() for place in places], values.detach().numpy(), weight)
        if index is not ... and places[0].untyped_storage().data_ptr() != self.limbs[0].untyped_storage().data_ptr():
            for limb, entries in zip(self.limbs, places, strict=True):  # int64 tensors select copies
                limb[index] = entries

    def add_parts(self, parts: Sequence[Tensor], weight: float = 1.0) -> None:
        """Add ``weight`` times the values of ``parts``, one after the other, to a sum of one dimension: their concatenation, not copied.

        Raises:
            ValueError: as of :meth:`add`; then no part was added.

        >>> total = ExactSum.zeros((3,))
        >>> total.add_parts([torch.tensor([1.0]), torch.tensor([[2.0, 3.0]])], 2)
        >>> total.value().tolist()
        [2.0, 4.0, 6.0]
        """
        count = sum(part.numel() for part in parts)
        if (count,) != tuple(self.limbs[0].shape):
            raise ValueError(f"parts of {count} values cannot be added to entries of shape {tuple(self.limbs[0].shape)}")
        if not (runs := list(_runs(parts))):
            return
        self._make_room(runs, weight)
        start = 0
        for values in runs:
            end = start + len(values)
            self._accumulate([limb[start:end].numpy() for limb in self.limbs], values.detach().numpy(), weight)
            start = end

    def merge(self, other: "ExactSum", index: Any = ...) -> None:
        """Add the sum ``other`` to the entries ``index``. The limbs of ``other`` may be carried, which does not change its value."""
        while True:
            count = max(len(self.limbs), len(other.limbs))
            self.extend(count)
            other.extend(count)
            if not (full := self._full(other.bounds)):
                break
            self.carry(full[0])
            other.carry(full[0])
        self.bounds = [bound + more for bound, more in zip(self.bounds, other.bounds, strict=True)]
        for limb, more in zip(self.limbs, other.limbs, strict=True):
            limb[index] += more

    def value(self) -> Tensor:
        """Return the sum in float64, each entry rounded once to the nearest."""
        total = self.limbs[0] + self.limbs[1]
        if len(self.limbs) > 2:
            # Of two numbers, an addition rounds the exact sum. Of more, fsum does.
            large = torch.stack([limb != 0 for limb in self.limbs[2:]]).any(0)
            parts = zip(*(limb[large].tolist() for limb in self.limbs), strict=True)
            total[large] = torch.tensor([math.fsum(entry) for entry in parts], dtype=torch.float64)
        return total

    def extend(self, count: int) -> None:
        """Have at least ``count`` limbs."""
        while len(self.limbs) < count:
            self.limbs.append(torch.zeros_like(self.limbs[0]))
            self.bounds.append(0.0)

    def carry(self, limb: int) -> None:
        """Move the multiples of the next limb's unit to the next limb."""
        self.extend(limb + 2)
        unit = _unit(limb + 1)
        if self.bounds[limb + 1] + self.bounds[limb] + unit / 2 > _FULL * unit:
            self.carry(limb + 1)
        whole = (self.limbs[limb] + 1.5 * 2.0**52 * unit).sub_(1.5 * 2.0**52 * unit)
        self.limbs[limb].sub_(whole)
        self.limbs[limb + 1].add_(whole)
        self.bounds[limb + 1] += self.bounds[limb] + unit / 2
        self.bounds[limb] = unit / 2

    def _make_room(self, parts: Sequence[Tensor], weight: float) -> None:
        """Extend and carry limbs so that they can take ``weight`` times ``parts``, which have values, and count these in the bounds."""
        ends = [float(end) for part in parts for end in torch.aminmax(part)]
        largest = max(map(abs, ends)) * abs(weight)
        if not all(map(math.isfinite, (largest, *ends))):  # max overlooks NaN
            of = f"values from {np.min(ends)} to {np.max(ends)} with weight {weight}"
            raise ValueError(f"only finite values can be added, got {of}")
        while largest > 2.0**51 * _unit(len(self.limbs) - 1):
            self.extend(len(self.limbs) + 1)
        while self._full(more := self._most(largest)):
            self.carry(self._full(more)[0])
        self.bounds = [bound + most for bound, most in zip(self.bounds, more, strict=True)]

    def _most(self, largest: float) -> list[float]:
        """Return what a term of magnitude up to ``largest`` can add to each limb."""
        top = len(self.limbs) - 1
        return [*(_unit(limb + 1) / 2 for limb in range(top)), largest + _unit(top) / 2]

    def _full(self, more: Sequence[float]) -> list[int]:
        """Return the limbs that cannot take ``more`` and be sure to stay exact."""
        bounds = enumerate(zip(self.bounds, more, strict=True))
        return [limb for limb, (bound, most) in bounds if bound + most > _FULL * _unit(limb)]

    def _accumulate(self, places: Sequence[Array], values: NDArray[Any], weight: float) -> None:
        """Add ``weight · values`` to ``places``, views of the limbs, without a temporary array of the same size."""
        place = places[0]
        if place.size > _CHUNK:
            if place.flags.c_contiguous and values.flags.c_contiguous:
                places, values = [view.reshape(-1) for view in places], values.reshape(-1)
            rows = max(1, _CHUNK * len(values) // values.size)
            for start in range(0, len(values), rows):
                parts, some = [view[start : start + rows] for view in places], values[start : start + rows]
                if some.size > _CHUNK:
                    parts, some = [view[0] for view in parts], some[0]
                self._accumulate(parts, some, weight)
            return
        if not self._scratch:
            self._scratch = [np.empty(min(self.limbs[0].numel(), _CHUNK)) for _ in range(2)]
        rest, whole = (buffer[: place.size].reshape(place.shape) for buffer in self._scratch)
        np.multiply(values, weight, out=rest, dtype=np.float64)
        # Adding 1.5 · 2⁵² units leaves a double no bits below the unit: it is rounded to a multiple, ties to even.
        for limb in reversed(range(1, len(places))):
            magic = 1.5 * 2.0**52 * _unit(limb)
            np.add(rest, magic, out=whole)
            np.subtract(whole, magic, out=whole)
            np.add(places[limb], whole, out=places[limb])
            np.subtract(rest, whole, out=rest)
        magic = 1.5 * 2.0**52 * _unit(0)
        np.add(rest, magic, out=rest)
        np.subtract(rest, magic, out=rest)
        np.add(places[0], rest, out=places[0])
