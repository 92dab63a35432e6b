"""Functions of torch that write entries to places known when a module is traced, or select such entries; used while it is traced.

Each has the arguments of torch's function and computes the same, or returns None as in :mod:`edgefl.onnxgrad.rewrites`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _places(shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the place of each entry of a tensor in its memory."""
    return np.arange(math.prod(shape)).reshape(tuple(shape))


def _is_fixed(*tensors: Tensor) -> bool:
    return all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def _written(input: Tensor, src: Tensor, places: np.ndarray[Any, Any]) -> Tensor:
    """Return ``input`` with the entries of ``src`` at the places; of several for one place the last."""
    last = {int(place): number for number, place in enumerate(places.reshape(-1))}
    numbers = src.reshape(-1)[torch.tensor(list(last.values()))]
    return input.reshape(-1).scatter(0, torch.tensor(list(last)), numbers).reshape(input.shape)


def _diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor | None:
    if not _is_fixed(input, src) or not src.numel():
        return None
    return _written(input, src, np.diagonal(_places(input.shape), offset, dim1, dim2))


def _as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor | None:
    if not _is_fixed(input, src) or not src.numel() or not input.is_contiguous():
        return None
    steps = [np.arange(count) * step for count, step in zip(size, stride, strict=True)]
    places = sum(np.ix_(*steps), np.zeros((), np.int64)) + (storage_offset or 0)
    return _written(input, src, np.broadcast_to(places, tuple(size)))


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor | None:
    if not _is_fixed(input) or input.dim() != 1:
        return None
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(places)] if places and r else None


SCATTERED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.diagonal_scatter, Tensor.diagonal_scatter), _diagonal_scatter),
    **dict.fromkeys((torch.as_strided_scatter, Tensor.as_strided_scatter), _as_strided_scatter),
    torch.combinations: _combinations,
}
"""Function of torch → the function here."""
