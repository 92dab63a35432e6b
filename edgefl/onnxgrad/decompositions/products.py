"""Products, powers and sums of exponentials along an axis, in about log₂(n) steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _product_of_axis(input: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Multiply the first half of an axis by the second until one entry is left; so the gradient is exact where a factor is 0."""
    if input.dim() == 0:
        return input.clone()
    if dtype is not None or not isinstance(size := input.shape[dim], int):
        return NotImplemented
    while size > 1:
        half = size // 2
        rest = input.narrow(dim, 2 * half, size - 2 * half)
        input = input.narrow(dim, 0, half) * input.narrow(dim, half, half)
        input, size = (torch.cat([input, rest], dim), half + 1) if size % 2 else (input, half)
    return input if keepdim else input.squeeze(dim)


def _product(input: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _product_of_axis(input.reshape(-1), 0, dtype=dtype)


def _running_log_sums(input: Tensor, dim: int) -> Any:
    """Return log Σ exp x of all entries so far; each step doubles the number of terms."""
    if input.dim() == 0:
        return input.clone()
    if not isinstance(size := input.shape[dim], int):
        return NotImplemented
    step = 1
    while step < size:
        later, earlier = input.narrow(dim, step, size - step), input.narrow(dim, 0, size - step)
        most = torch.maximum(later, earlier)
        most = torch.where(torch.isinf(most), 0, most)
        sums = most + torch.log(torch.exp(later - most) + torch.exp(earlier - most))
        input = torch.cat([input.narrow(dim, 0, step), sums], dim)
        step *= 2
    return input


PRODUCTS: dict[Any, Callable[..., Any]] = {
    aten.prod.default: _product,
    aten.prod.dim_int: _product_of_axis,
    aten.logcumsumexp.default: _running_log_sums,
    torch.ops.prims.view_of.default: lambda value: value,
}
