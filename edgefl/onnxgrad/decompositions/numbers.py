"""Operators on single values, and products, of torch by operators that have an ONNX form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _with_sign(self: Tensor, other: Any) -> Tensor:
    """Return |self| with the sign of ``other``, also that of a negative zero."""
    sign = other if isinstance(other, Tensor) else torch.full((), float(other))
    negative = (sign < 0) | (1 / sign < 0)
    size = self.abs()
    return torch.where(negative, -size, size)


def _parts(self: Tensor) -> tuple[Tensor, Tensor]:
    """Return mantissa and exponent; the logarithm may be wrong by one next to a power of 2, which two steps put right."""
    size = torch.where(self == 0, torch.ones_like(self), self.abs())
    exponent = torch.floor(torch.log2(size))
    part = _times_power(size, -exponent)
    exponent = exponent + (part >= 1).to(self.dtype) - (part < 0.5).to(self.dtype)
    part = _times_power(size, -exponent)
    exponent = exponent + (part >= 1).to(self.dtype) - (part < 0.5).to(self.dtype)
    whole = torch.where((self == 0) | ~torch.isfinite(self), torch.zeros_like(self), exponent).to(torch.int32)
    return _times_power(self, -whole.to(self.dtype)), whole


def _times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return x·2ᵉ by two factors, each of which is finite."""
    half = torch.floor(exponent / 2)
    return x * torch.exp2(half) * torch.exp2(exponent - half)


def running_products(input: Tensor, dim: int) -> Tensor:
    """Compute products of all entries so far, in log₂(n) steps: each doubles the number of factors."""
    size, step = input.shape[dim], 1
    while step < size:
        earlier = input.narrow(dim, 0, size - step)
        input = torch.cat([input.narrow(dim, 0, step), input.narrow(dim, step, size - step) * earlier], dim)
        step *= 2
    return input


def _products(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    x = self if dtype is None else self.to(dtype)
    if x.dim() == 0:
        return x.clone()
    return running_products(x, dim) if isinstance(self.shape[dim], int) else NotImplemented


def _norm(
    self: Tensor, ord: float | None = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute the norm of a matrix or of a vector, each of which has slopes of its own at 0."""
    axes = [dim] if isinstance(dim, int) else dim
    if ord is not None and (self.dim() == 2 if axes is None else len(axes) == 2):
        return torch.linalg.matrix_norm(self, ord, axes or (-2, -1), keepdim, dtype=dtype)
    return torch.linalg.vector_norm(self, 2 if ord is None else ord, axes, keepdim, dtype=dtype)


NUMBERS: dict[Any, Callable[..., Any]] = {
    aten.copysign.Tensor: _with_sign,
    aten.copysign.Scalar: _with_sign,
    aten.frexp.Tensor: _parts,
    aten.cumprod.default: _products,
    aten.linalg_norm.default: _norm,
}
"""Operator of torch → what computes it."""
