"""Axes of tensors that have to be cut together, such as the channels of two convolutions whose outputs are added.

Every dimension of every tensor of a traced network is an :class:`Axis`. Operations say which axes are the same (:func:`unify`), which
consist of others (:class:`Joined` by a concatenation, :class:`NestedAxis` by a reshape), and which stay whole (:func:`freeze`). The free
ones are the channels that a narrower network has fewer of.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class Axis:
    """A dimension of ``size`` entries. It may turn out to be another axis, or to consist of others.

    Attributes:
        frozen: whether every network, however narrow, has all entries.
        why: why it is frozen, such as "fft in encoder"; "" if that is not known yet.
    """

    def __init__(self, size: int, frozen: bool = False) -> None:
        self.size, self.frozen, self.why = size, frozen or size == 1, ""
        self._same: Axis | None = None

    @property
    def root(self) -> "Axis":
        """The axis that stands for this one and for all axes unified with it."""
        axis: Axis = self
        while axis._same is not None:
            axis = axis._same
        return axis

    def become(self, other: "Axis") -> None:
        """Make this axis, which stands for itself, the same as ``other``."""
        if self.frozen:
            freeze(other, self.why)
        self._same = other

    def kept(self, width: float) -> Tensor:
        """Return the numbers of the entries that a network of ``width`` has, ascending int64: leading ones, ⌈width · size⌉ if free."""
        axis = self.root
        if type(axis) is not Axis:
            return axis.kept(width)
        return torch.arange(axis.count(width))

    def count(self, width: float) -> int:
        """Return how many entries a network of ``width`` has."""
        axis = self.root
        if type(axis) is not Axis:
            return axis.count(width)
        return axis.size if axis.frozen else max(1, math.ceil(axis.size * width - 1e-9))


class Joined(Axis):
    """Axes end to end, as a concatenation makes them."""

    def __init__(self, parts: Sequence[Axis]) -> None:
        super().__init__(sum(part.size for part in parts))
        self.frozen = False
        self.parts = tuple(parts)

    def kept(self, width: float) -> Tensor:
        """Return what is kept of each part."""
        start, numbers = 0, []
        for part in self.parts:
            numbers.append(part.kept(width) + start)
            start += part.size
        return torch.cat(numbers)

    def count(self, width: float) -> int:
        """Return how many entries of all parts a network of ``width`` has."""
        return sum(part.count(width) for part in self.parts)


class NestedAxis(Axis):
    """Rows of columns, as a reshape makes them of several dimensions; the last factor runs fastest."""

    def __init__(self, factors: Sequence[Axis]) -> None:
        super().__init__(math.prod(factor.size for factor in factors))
        self.frozen = False
        self.factors = tuple(factors)

    def kept(self, width: float) -> Tensor:
        """Return every combination of what is kept of the factors."""
        numbers = torch.zeros(1, dtype=torch.int64)
        for factor in self.factors:
            numbers = (numbers[:, None] * factor.size + factor.kept(width)).flatten()
        return numbers

    def count(self, width: float) -> int:
        """Return how many combinations a network of ``width`` has."""
        return math.prod(factor.count(width) for factor in self.factors)


def freeze(axis: Axis, why: str = "") -> None:
    """Make ``axis`` stay whole at every width, for the reason ``why`` unless it has one."""
    axis = axis.root
    for inner in _inner(axis):
        freeze(inner, why)
    axis.frozen, axis.why = True, axis.why or why


def explain(axis: Axis, why: str) -> None:
    """Give the reason ``why`` to all that is frozen in ``axis`` without one."""
    for leaf in leaves(axis):
        if leaf.frozen and not leaf.why:
            leaf.why = why


def unify(one: Axis, other: Axis) -> None:
    """Make two axes of equal size the same, and split those that are made of smaller ones where the other one is; ValueError: sizes differ.

    Two axes whose parts do not match stay whole.

    >>> a, b, both = Axis(4), Axis(2), Axis(6)
    >>> unify(Joined([a, b]), both)
    >>> both.kept(0.5)
    tensor([0, 1, 4])
    """
    one, other = one.root, other.root
    if one is other:
        return
    if one.size != other.size:
        raise ValueError(f"an axis of {one.size} is no axis of {other.size}")
    if type(one) is Axis and not _within(one, other):
        one.become(other)
    elif type(other) is Axis and not _within(other, one):
        other.become(one)
    elif not (_unify_parts(one, other) or _unify_factors(one, other) or _unify_blocks(one, other) or _unify_blocks(other, one)):
        freeze(one)
        freeze(other)


def _inner(axis: Axis) -> tuple[Axis, ...]:
    return axis.parts if isinstance(axis, Joined) else axis.factors if isinstance(axis, NestedAxis) else ()


def _within(axis: Axis, other: Axis) -> bool:
    """Whether ``other`` contains ``axis``; the same one they cannot be then, unless what else it contains has one entry."""
    return any(inner.root is axis or _within(axis, inner.root) for inner in _inner(other))


def axes_in(axis: Axis) -> Iterator[Axis]:
    """Yield ``axis``, then the axes that it consists of, and those that these consist of."""
    axis = axis.root
    yield axis
    for inner in _inner(axis):
        yield from axes_in(inner)


def leaves(axis: Axis) -> Iterator[Axis]:
    """Yield the axes that ``axis`` consists of in the end."""
    return (part for part in axes_in(axis) if not _inner(part))


def _flat(axis: Axis, kind: type[Joined] | type[NestedAxis]) -> list[Axis]:
    axis = axis.root
    if not isinstance(axis, kind):
        return [axis]
    return [flat for inner in _inner(axis) for flat in _flat(inner, kind) if kind is Joined or flat.size > 1]


def _unify_parts(one: Axis, other: Axis) -> bool:
    """Unify two axes of several parts each, part by part; False if a part would have to be cut inside of a product."""
    ours, theirs = _flat(one, Joined), _flat(other, Joined)

    def split(large: Axis, size: int) -> tuple[Axis, Axis]:
        first, rest = Axis(size), Axis(large.size - size)
        large.become(Joined((first, rest)))
        return first, rest

    return len(ours) > 1 and len(theirs) > 1 and _unify_in_turn(ours, theirs, split)


def _unify_factors(one: Axis, other: Axis) -> bool:
    """Unify two products factor by factor, from the fastest on; False if sizes do not divide each other."""

    def split(large: Axis, size: int) -> tuple[Axis, Axis] | None:
        if large.size % size:
            return None
        inner, outer = Axis(size), Axis(large.size // size)
        large.become(NestedAxis((outer, inner)))
        return inner, outer

    both = isinstance(one, NestedAxis) and isinstance(other, NestedAxis)
    return both and _unify_in_turn(_flat(one, NestedAxis)[::-1], _flat(other, NestedAxis)[::-1], split)


def _unify_in_turn(ours: list[Axis], theirs: list[Axis], split: Callable[[Axis, int], tuple[Axis, Axis] | None]) -> bool:
    """Unify two lists of axes one after the other; the larger of two is split: ``split`` returns the unified part and the rest, if any."""
    pairs = []
    while ours and theirs:
        a, b = ours.pop(0), theirs.pop(0)
        small, large, waiting = (a, b, theirs) if a.size < b.size else (b, a, ours)
        if small.size < large.size:
            pieces = split(large, small.size) if type(large) is Axis else None
            if pieces is None:
                return False
            large, rest = pieces
            waiting.insert(0, rest)
        pairs.append((small, large))
    for small, large in pairs:
        unify(small, large)
    return True


def _unify_blocks(one: Axis, other: Axis) -> bool:
    """Unify parts, such as query, key and value or the heads of two kernels, with a product whose first factors count them.

    False if the parts are something else.
    """
    if not (isinstance(one, Joined) and isinstance(other, NestedAxis)):
        return False
    parts, factors = _flat(one, Joined), _flat(other, NestedAxis)
    for count in range(1, len(factors)):
        inner = factors[count:]
        size = math.prod(axis.size for axis in inner)
        if all(part.size % size == 0 for part in parts):
            for axis in factors[:count]:
                freeze(axis)
            for part in parts:
                outer = [Axis(part.size // size, frozen=True)] if part.size > size else []
                unify(part, NestedAxis([*outer, *inner]) if outer or len(inner) > 1 else inner[0])
            return True
    return False
