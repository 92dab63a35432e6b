"""Functions of torch that write entries to places known when a module is traced, or select such entries; used while it is traced.

Each has the arguments of torch's function and computes the same, or returns None as in :mod:`edgefl.onnxgrad.rewrites`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


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


SCATTERED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.diagonal_scatter, Tensor.diagonal_scatter), _diagonal_scatter),
    torch.combinations: _combinations,
}
"""Function of torch → the function here."""
