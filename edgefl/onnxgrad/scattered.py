"""Functions of torch that write entries to places known when a module is traced, or select such entries; used while it is traced.

Each has the arguments of torch's function and computes the same, or returns None as in :mod:`edgefl.onnxgrad.rewrites`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _is_fixed(*tensors: Tensor) -> bool:
    return all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def _diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor | None:
    """Write the entries of ``src`` one by one over those of a diagonal."""
    if not _is_fixed(input, src) or not src.numel():
        return None
    places = np.diagonal(np.arange(input.numel()).reshape(tuple(input.shape)), offset, dim1, dim2).reshape(-1)
    return input.reshape(-1).scatter(0, torch.tensor(places), src.reshape(-1)).reshape(input.shape)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor | None:
    if not _is_fixed(input) or input.dim() != 1:
        return None
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(places)] if places and r else None


SCATTERED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.diagonal_scatter, Tensor.diagonal_scatter), _diagonal_scatter),
    torch.combinations: _combinations,
}
"""Function of torch → the function here."""
