"""The coordinates that clients of unlike tiers share: which values of their updates stand for the same weight.

If a tensor fits its place, such as a leading slice, it has the coordinates of those entries of the server's state. Several tensors of a
client may have one place, as the two factors of a weight do. Then the entries of a factor are coordinates of their own: a smaller tier has
the leading components of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from edgefl.records import Place, Tier, Update

_CHUNK = 2**21
"""So many values are compared at a time: 16 MB in float64."""


_Key = tuple[str] | tuple[str, int]
"""The key of shared coordinates: a tensor of the state, or all factors of one name and number of dimensions."""


class CoordinateBlock(NamedTuple):
    """Changes at coordinates that the same clients hold.

    Attributes:
        holders: positions of the clients among the updates, ascending.
        values: their changes, (holders, coordinates) float64.
        names: the name of each holder's tensor.
        entries: for each holder, which values of its flat tensor these are, (coordinates,) int64.
    """

    holders: Sequence[int]
    values: Tensor
    names: Sequence[str]
    entries: Sequence[Tensor]


class _Held(NamedTuple):
    """A client's tensor: its position among the updates, its name, and the flat coordinate of each value (−1: none)."""

    position: int
    name: str
    coordinates: Tensor


@dataclass(frozen=True)
class Gaps:
    """How far the changes of a round lie apart.

    Attributes:
        tiers: of each client.
        rms: root mean square of each client's change, (clients,) float64.
        distances: mean squared difference of two changes over the coordinates that both clients hold, (clients, clients) float64; NaN if
            there are none.
        norms: norm of each client's change, (clients,) float64; None: not known.
    """

    tiers: tuple[Tier, ...]
    rms: Tensor
    distances: Tensor
    norms: Tensor | None = None


@dataclass(frozen=True)
class Changes:
    """The changes of a round, Δ = update − sent, by coordinate.

    Attributes:
        updates: the updates; each has in ``sent`` what its client was sent.
        state: name → tensor of the server's state.
        by_label: names of those tensors whose rows count only for clients with the row's label.
    """

    updates: tuple[Update, ...]
    state: Mapping[str, Tensor]
    by_label: frozenset[str] = frozenset()

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """The tier of each client."""
        return tuple(update.tier for update in self.updates)

    def blocks(self) -> Iterator[CoordinateBlock]:
        """Yield every coordinate once, in blocks of coordinates that the same clients hold."""
        for tensors in self._held.values():
            yield from self._blocks_of(tensors)

    def replaced(self, centre: Callable[[Tensor], Tensor]) -> list[Update]:
        """Return the updates with ``centre(values)`` as the change of every holder, for the values (holders, coordinates) of each block."""
        whole = torch.contiguous_format
        results = [{name: t.clone(memory_format=whole) for name, t in update.tensors.items()} for update in self.updates]
        for block in self.blocks():
            change = centre(block.values)
            for holder, name, entries in zip(block.holders, block.names, block.entries, strict=True):
                start = self.updates[holder].sent.get(name)
                moved = change if start is None else start.flatten()[entries].double() + change
                results[holder][name].view(-1)[entries] = moved.to(results[holder][name].dtype)
        return [replace(update, tensors=tensors) for update, tensors in zip(self.updates, results, strict=True)]

    def gaps(self) -> Gaps:
        """Return how far the changes lie apart."""
        count = len(self.updates)
        squares, products = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, count, dtype=torch.float64)
        shared = torch.zeros(count, count, dtype=torch.float64)
        for block in self.blocks():
            rows = torch.tensor(block.holders)
            pairs = rows[:, None], rows[None]
            squares[pairs] += block.values.square().sum(1)[:, None]
            products[pairs] += block.values @ block.values.T
            shared[pairs] += block.values.shape[1]
        distances = (squares + squares.T - 2 * products).clamp_min(0) / shared
        mean_squares = squares.diagonal() / shared.diagonal().clamp_min(1)
        return Gaps(self.tiers, mean_squares.sqrt(), distances, squares.diagonal().sqrt())

    @cached_property
    def _held(self) -> dict[_Key, list[_Held]]:
        """Key of shared coordinates → the clients' tensors."""
        named: dict[_Key, list[tuple[int, str]]] = {}
        for position, update in enumerate(self.updates):
            targets = [place.target for place in update.places.values()]
            for name, tensor in update.tensors.items():
                place = update.places.get(name)
                fits = place is not None and targets.count(place.target) == 1 and _fits(place, tensor, self.state)
                key: _Key = (place.target,) if fits and place is not None else (name, tensor.dim())
                named.setdefault(key, []).append((position, name))
        return {key: list(self._located(key, tensors)) for key, tensors in named.items()}

    def _located(self, key: _Key, tensors: Sequence[tuple[int, str]]) -> Iterator[_Held]:
        """Yield tensors with their coordinates; those of the same tier and labels share one tensor of coordinates."""
        shapes = [tuple(self.updates[position].tensors[name].shape) for position, name in tensors]
        whole = tuple(self.state[str(key[0])].shape) if len(key) == 1 else tuple(map(max, zip(*shapes, strict=True)))
        numbers = torch.arange(math.prod(whole)).view(whole)
        coordinates_of: dict[Hashable, Tensor] = {}
        for (position, name), shape in zip(tensors, shapes, strict=True):
            update = self.updates[position]
            rows = update.labels if len(key) == 1 and key[0] in self.by_label else None
            mark = (update.tier, name, rows) if len(key) == 2 else (update.tier, name, rows, id(update.places[name]))
            if mark not in coordinates_of:
                index = update.places[name].index if len(key) == 1 else tuple(map(slice, shape))
                coordinates_of[mark] = _without(numbers[index], rows).flatten()
            yield _Held(position, name, coordinates_of[mark])

    def _blocks_of(self, tensors: Sequence[_Held]) -> Iterator[CoordinateBlock]:
        kinds = {id(tensor.coordinates): tensor.coordinates for tensor in tensors}
        size = max(int(coordinates.max()) for coordinates in kinds.values() if len(coordinates)) + 1 if kinds else 0
        group, where = torch.zeros(size, dtype=torch.int64), dict[int, Tensor]()
        for number, (kind, coordinates) in enumerate(kinds.items(), 1):
            valid = coordinates >= 0
            positions = torch.full((size,), -1, dtype=torch.int64)
            positions[coordinates[valid]] = torch.arange(len(coordinates))[valid]
            where[kind] = positions
            group = group * 2 + (positions >= 0)
            if number % 60 == 0:  # int64 has room for 62 more
                group = torch.unique(group, return_inverse=True)[1]
        for value in torch.unique(group).tolist():
            members = (group == value).nonzero().flatten()
            holders = [tensor for tensor in tensors if int(where[id(tensor.coordinates)][members[0]]) >= 0]
            if not holders:
                continue
            for part in members.split(max(1, _CHUNK // len(holders))):
                entries = [where[id(holder.coordinates)][part] for holder in holders]
                values = torch.stack([self._change(*pair) for pair in zip(holders, entries, strict=True)])
                yield CoordinateBlock([h.position for h in holders], values, [h.name for h in holders], entries)

    def _change(self, holder: _Held, entries: Tensor) -> Tensor:
        update = self.updates[holder.position]
        start, values = update.sent.get(holder.name), update.tensors[holder.name].flatten()[entries].double()
        return values if start is None else values - start.flatten()[entries].double()


def _fits(place: Place, tensor: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Whether the entries of the state at ``place`` have the shape of ``tensor``."""
    whole = state.get(place.target)
    if whole is None or len(place.index) > whole.dim():
        return False
    return torch.empty(whole.shape, device="meta")[place.index].shape == tensor.shape


def _without(coordinates: Tensor, labels: tuple[int, ...] | None) -> Tensor:
    """Return coordinates with −1 in the rows of all but these ``labels``; None: as they are."""
    if labels is None:
        return coordinates
    counted = torch.full_like(coordinates, -1)
    counted[list(labels)] = coordinates[list(labels)]
    return counted


def middle_of(values: Tensor) -> Tensor:
    """Return the median (coordinates,) of ``values`` (clients, coordinates); of an even number, the mean of the two in the middle.

    >>> middle_of(torch.tensor([[1.0, 5.0], [2.0, 7.0], [-90.0, 6.0], [4.0, 8.0]])).tolist()
    [1.5, 6.5]
    """
    ordered, count = values.sort(0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
