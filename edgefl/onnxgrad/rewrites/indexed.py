"""Functions of torch that select, write or combine entries by index or place, in operations with a gradient rule."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgefl.onnxgrad.decompositions.indexed import along, combined


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor | None:
    """Add entry by entry: the operator that adds slices loses some in onnxruntime if an index repeats."""
    if input.dim() == 0:
        return input + (source * alpha).sum()
    index, source = (index.reshape(1), source.reshape(1)) if index.dim() == 0 and source.dim() == 0 else (index, source)
    if index.dim() != 1:
        return None
    return input.scatter_add(dim, along(index, dim, source), source if alpha == 1 else source * alpha)


def _index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor | None:
    found = _index_add(input, dim, index, source, alpha=alpha)
    return None if found is None else input.copy_(found)


def _scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | None:
    """Leave out the entries of ``input`` that count for nothing; compute means by scatter_add."""
    if reduce == "prod" and src.is_floating_point() and input.dim():
        return _scattered_product(input, dim % input.dim(), index, src, include_self)
    if not src.is_floating_point() or (reduce != "mean" and include_self) or reduce == "prod":
        return None
    if reduce in ("amax", "amin"):
        src = src[tuple(slice(size) for size in index.shape)]  # entries without an index go nowhere
    return combined(input, dim % max(1, input.dim()), index, src, reduce, include_self)


def _scattered_product(input: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor | None:
    """Compute products of all entries that go to a place, so that the gradient is exact where one is 0."""
    sizes = (*input.shape, *index.shape, *src.shape)
    if not all(isinstance(size, int) for size in sizes):
        return None
    src = src[tuple(slice(size) for size in index.shape)]
    counts = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(src))
    start = input if include_self else torch.where(counts > 0, 1.0, input)
    missing = [0 if axis == dim else own - few for axis, (own, few) in enumerate(zip(input.shape, index.shape, strict=True))]
    pads = [part for size in reversed(missing) for part in (0, size)]
    src, index = torch.nn.functional.pad(src, pads, value=1.0), torch.nn.functional.pad(index, pads)
    goes = torch.arange(input.shape[dim]).unsqueeze(-1) == index.movedim(dim, -1).unsqueeze(-2)  # (…, places, entries)
    factors = torch.where(goes, src.movedim(dim, -1).unsqueeze(-2), 1.0)
    return start * factors.prod(-1).movedim(-1, dim)


def _take_along(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor | None:
    """Gather with the sizes of ``indices``, or those of ``input`` where ``indices`` has size 1."""
    if dim is None or input.dim() != indices.dim():
        return None
    axis = dim % input.dim()
    wide, sizes = (
        [-1 if place == axis or not isinstance(own, int) or own != 1 else other for place, (own, other) in enumerate(pairs)]
        for pairs in (list(zip(a.shape, b.shape, strict=True)) for a, b in ((input, indices), (indices, input)))
    )
    return input.expand(wide).gather(axis, indices.expand(sizes))


def _diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor | None:
    """Select every (columns + 1)th entry of the flattened matrices."""
    rows, columns = input.shape[dim1], input.shape[dim2]
    first, last = max(0, -offset), max(0, offset)
    if not isinstance(rows, int) or not isinstance(columns, int) or min(rows - first, columns - last) < 1:
        return None
    start, step = first * columns + last, columns + 1
    end = start + (min(rows - first, columns - last) - 1) * step + 1
    return input.movedim((dim1, dim2), (-2, -1)).flatten(-2)[..., start:end:step]


def _diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor | None:
    """Write the entries of ``src`` one by one over those of a diagonal of the flattened matrices."""
    sizes = input.shape[dim1], input.shape[dim2]
    if not all(isinstance(size, int) for size in (*sizes, src.shape[-1])) or not src.shape[-1]:
        return None
    places = torch.tensor(np.diagonal(np.arange(math.prod(sizes)).reshape(sizes), offset).copy())
    matrices = input.movedim((dim1, dim2), (-2, -1))
    written = matrices.flatten(-2).scatter(-1, places.expand(src.shape), src)
    return written.unflatten(-1, sizes).movedim((-2, -1), (dim1, dim2))


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor | None:
    if input.dim() != 1 or not isinstance(input.shape[0], int):
        return None
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(places)] if places and r else None


INDEXED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.index_add, Tensor.index_add), _index_add),
    Tensor.index_add_: _index_add_,
    **dict.fromkeys((torch.scatter_reduce, Tensor.scatter_reduce), _scatter_reduce),
    **dict.fromkeys((torch.take_along_dim, Tensor.take_along_dim), _take_along),
    **dict.fromkeys((torch.diagonal, Tensor.diagonal), _diagonal),
    torch.linalg.diagonal: lambda A, *, offset=0, dim1=-2, dim2=-1: _diagonal(A, offset, dim1, dim2),
    **dict.fromkeys((torch.diagonal_scatter, Tensor.diagonal_scatter), _diagonal_scatter),
    torch.combinations: _combinations,
}
"""Function of torch → the function here."""
