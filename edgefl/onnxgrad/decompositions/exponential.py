"""The exponential of a matrix, and the product of reflections with a matrix."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_DEGREE, _LARGEST, _SQUARINGS = 8, 0.5, 12
"""Degree of the Taylor series, the norm up to which it is exact in float32, and the doublings of that norm that are computed."""


def _matrix_exp(self: Tensor) -> Any:
    """Return exp(A) as exp(A/2ˢ) to the power of 2ˢ, by s squarings; NaN for a norm of 2048 or more."""
    size = self.shape[-1]
    if not isinstance(size, int):
        return NotImplemented
    if size == 0:
        return self.clone()
    norm = self.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    squarings = torch.ceil(torch.log2(norm.clamp(min=_LARGEST) / _LARGEST))
    small, unit = self * torch.exp2(-squarings), torch.eye(size, dtype=self.dtype)
    found = unit + small / _DEGREE
    for degree in reversed(range(1, _DEGREE)):
        found = unit + small @ found / degree
    for step in range(_SQUARINGS):
        found = torch.where(squarings > step, found @ found, found)
    return torch.where(squarings > _SQUARINGS, math.nan, found)


def _reflected(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Any:
    """Return the product of ``input3`` with the reflections I − τvvᵀ, whose vectors are columns of ``self``, from one side."""
    rows, columns = self.shape[-2:]
    vectors = self.tril(-1) + torch.eye(rows, columns, dtype=self.dtype)
    found = input3
    count = input2.shape[-1]
    for step in range(count) if left == transpose else reversed(range(count)):
        vector, scale = vectors[..., step : step + 1], input2[..., step : step + 1].unsqueeze(-1)
        if left:
            found = found - scale * vector * (vector * found).sum(-2, keepdim=True)
        else:
            row = vector.transpose(-1, -2)
            found = found - scale * (found * row).sum(-1, keepdim=True) * row
    return found


EXPONENTIAL: dict[Any, Callable[..., Any]] = {aten.linalg_matrix_exp.default: _matrix_exp, aten.ormqr.default: _reflected}
"""Operator of torch → what computes it."""
