"""The weighted mean of updates: the same bits in any order, in memory that does not grow with the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.errors import AggregationError
from edgefl.methods.networks import MethodLike
from edgefl.methods.state import GlobalState
from edgefl.methods.updates import checked
from edgefl.records import Update
from edgefl.util.exact_sum import ExactSum

# Waiting factors are multiplied when their ranks add up to this.
_RANKS = 512


Slice = tuple[int, tuple[int, ...], tuple[int, ...]]


class WeightedSum:
    """A running weighted sum of tensors, entry by entry, with the sum of the weights of each entry.

    ``like`` has the name and shape of every tensor. The tensors that are added are not stored. Sums of tensors are exact
    (:mod:`edgefl.util.exact_sum`). If sums of the weights are exact in float64, as those of sample counts are, any order gives the same
    bits. :meth:`add` raises :class:`AggregationError` for values that are not finite.

    >>> total = WeightedSum({"w": torch.zeros(3)})
    >>> total.add("w", torch.tensor([2.0, 4.0]), 1.0, (slice(0, 2),))
    >>> total.add("w", torch.tensor([6.0]), 3.0, (slice(0, 1),))
    >>> total.mean({"w": torch.tensor([-1.0, -1.0, -1.0])})["w"].tolist()
    [5.0, 4.0, -1.0]
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._sums = {name: ExactSum.zeros(t.shape) for name, t in like.items()}
        # Weights per tensor: of the whole tensor, of each slice (by offset, shape and strides), and of each entry, if entries were listed.
        self._whole = dict.fromkeys(like, 0.0)
        self._slices: dict[str, dict[Slice, float]] = {name: {} for name in like}
        self._entries: dict[str, Tensor] = {}
        self._factors: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in like}
        self._folds: dict[str, Callable[[Tensor], Tensor]] = {}

    def add(self, name: str, tensor: Tensor, weight: float, index: Any = ..., rows: Sequence[int] | None = None) -> None:
        """Add ``weight · tensor`` to the entries ``index`` of the tensor ``name``: slices, int64 tensors, or all.

        ``rows`` are the rows of ``tensor`` to add, ascending; the others have no weight. None: all. With fewer than all, ``index`` must
        have slices in the other dimensions.

        >>> total = WeightedSum({"fc.bias": torch.zeros(3)})
        >>> total.add("fc.bias", torch.tensor([1.0, 2.0, 3.0]), 1.0, rows=(0, 2))
        >>> total.add("fc.bias", torch.tensor([5.0, 6.0, 7.0]), 1.0, rows=(2,))
        >>> total.mean({"fc.bias": torch.full((3,), -1.0)})["fc.bias"].tolist()
        [1.0, -1.0, 5.0]
        """
        if rows is not None and len(rows) < len(tensor):
            chosen = torch.tensor(rows, dtype=torch.int64)
            first, *others = (slice(None),) if index is ... else index
            tensor, index = tensor[chosen], (torch.arange(len(self._sums[name].limbs[0]))[first][chosen], *others)
        self._weigh(name, weight, index)
        self._add(name, tensor, weight, index)

    def merge(self, name: str, part: ExactSum, weight: float, index: Any = ..., rows: Sequence[float] | None = None) -> None:
        """Add a sum of weighted tensors to the entries ``index`` of the tensor ``name``; ``part`` must not be used afterwards.

        ``weight`` is the sum of their weights. If rows of the tensor have different sums, ``rows`` has the sum of each row instead.
        """
        if rows is None:
            self._weigh(name, weight, index)
        else:
            sums = self._sums[name].limbs[0]
            self._entries.setdefault(name, torch.zeros_like(sums))[index] += torch.tensor(rows).view(-1, *[1] * (sums.dim() - 1))
        self._sums[name].merge(part, index)

    def add_product(
        self, name: str, left: Tensor, right: Tensor, weight: float, fold: Callable[[Tensor], Tensor] = lambda product: product
    ) -> None:
        """Add ``weight · fold(left @ right)`` to the tensor ``name``, for ``left`` (a, r) and ``right`` (r, b) in float32.

        Σ wᵢLᵢRᵢ is one product: all wᵢLᵢ side by side times all Rᵢ stacked. Factors wait until their ranks add up to 512, because one
        large product is faster than many small ones. ``fold`` maps the product to the tensor's shape. It must be linear, and the same in
        every call with this ``name``.

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
        """Return Σ weight·tensor / Σ weight, in the dtypes of ``old``. Entries without weight have their value from ``old``."""
        result = {}
        for name, before in old.items():
            self._multiply(name)
            sums, weight = self._sums[name].value(), self._whole[name]
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

    def _weigh(self, name: str, weight: float, index: Any) -> None:
        """Add ``weight`` to the weights of the entries ``index``."""
        sums = self._sums[name].limbs[0]
        if isinstance(index, Tensor) or (isinstance(index, tuple) and any(isinstance(part, Tensor) for part in index)):
            if name not in self._entries:
                self._entries[name] = torch.zeros_like(sums)
            self._entries[name][index] += weight
            return
        place = sums if index is ... else sums[index]
        if place.shape == sums.shape:
            self._whole[name] += weight
        else:
            key = int(place.storage_offset()), tuple(place.shape), place.stride()
            self._slices[name][key] = self._slices[name].get(key, 0.0) + weight

    def _multiply(self, name: str) -> None:
        """Add the product of the waiting factors of ``name``, if there are any."""
        if waiting := self._factors[name]:
            left, right = (torch.cat(parts, dim) for dim, parts in zip((1, 0), zip(*waiting, strict=True), strict=True))
            self._factors[name] = []
            self._add(name, self._folds[name](left @ right), 1.0, ...)

    def _add(self, name: str, tensor: Tensor, weight: float, index: Any) -> None:
        try:
            self._sums[name].add(tensor, weight, index)
        except ValueError as error:
            raise AggregationError(f"{name}: {error}") from None


def averaged(
    method: MethodLike, state: GlobalState, updates: Iterable[Update], by_label: frozenset[str] = frozenset()
) -> GlobalState:
    """Return ``state`` with the mean of every entry over the clients that hold it; see :meth:`Method.aggregate` for the errors.

    Rows of the tensors ``by_label`` count only for clients that have samples of the row's label.

    >>> from edgefl.methods.create import create
    >>> from edgefl.methods.networks import upload_shapes
    >>> from edgefl.models.base import Architecture
    >>> from edgefl.records import Tier
    >>> from edgefl.rng import generator
    >>> method, tier = create("fedavg"), Tier(1.0)
    >>> state = method.init(Architecture("mlp", (4,), 2), (tier,), generator(0))
    >>> places = method.submodel(state, tier, generator(0)).places
    >>> ones = {name: torch.ones(shape) for name, shape in upload_shapes(method, state.architecture, tier).items()}
    >>> fives = {name: 5 * tensor for name, tensor in ones.items()}
    >>> after = averaged(method, state, [Update(0, tier, ones, places, samples=30), Update(1, tier, fives, places, samples=10)])
    >>> {float(value) for tensor in after.tensors.values() for value in tensor.unique()}
    {2.0}
    """
    floats = {name: tensor for name, tensor in state.tensors.items() if tensor.is_floating_point()}
    total = WeightedSum(floats)
    for update in checked(method, state, updates):
        weight = float(update.samples) if method.weighs_samples else 1.0
        for name, tensor in update.tensors.items():
            place = update.places[name]
            total.add(place.target, tensor, weight, place.index, update.labels if place.target in by_label else None)
    return state.replace({**state.tensors, **total.mean(floats)})
