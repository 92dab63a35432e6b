"""Width slicing: a narrow network's tensors are the leading corner of the wide network's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from edgefl.records import Place


def leading(name: str, shape: tuple[int, ...]) -> Place:
    """Return the place of a narrow tensor: the first ``shape[d]`` entries of dimension d, for every d (HeteroFL, section 3.1).

    >>> leading("fc.weight", (10, 16)).index
    (slice(0, 10, None), slice(0, 16, None))
    """
    return Place(name, tuple(slice(0, size) for size in shape))


def cut(tensors: Mapping[str, Tensor], places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Return a copy of every placed entry, in the small shapes."""
    return {name: tensors[place.target][place.index].clone() for name, place in places.items()}
