"""Operators of torch on single values, and products and sums of exponentials along an axis, by operators that have an ONNX form."""

from collections.abc import Callable, Sequence
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
    for _ in range(2):
        part = _times_power(size, -exponent)
        exponent = exponent + (part >= 1).to(self.dtype) - (part < 0.5).to(self.dtype)
    whole = torch.where((self == 0) | ~torch.isfinite(self), torch.zeros_like(self), exponent).to(torch.int32)
    return _times_power(self, -whole.to(self.dtype)), whole


def _times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return x·2ᵉ by two factors, each of which is finite."""
    half = torch.floor(exponent / 2)
    return x * torch.exp2(half) * torch.exp2(exponent - half)


def _norm(
    self: Tensor, ord: float | None = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute the norm of a matrix or of a vector, each of which has slopes of its own at 0."""
    axes = [dim] if isinstance(dim, int) else dim
    if ord is not None and (self.dim() == 2 if axes is None else len(axes) == 2):
        return torch.linalg.matrix_norm(self, ord, axes or (-2, -1), keepdim, dtype=dtype)
    return torch.linalg.vector_norm(self, 2 if ord is None else ord, axes, keepdim, dtype=dtype)


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


def _pair_distances(self: Tensor, p: float = 2.0) -> Any:
    """Return the distances of each row to all later ones, as norms of their differences."""
    if not isinstance(rows := self.shape[0], int):
        return NotImplemented
    if rows < 2 or not self.numel():
        return self.new_zeros(rows * (rows - 1) // 2)
    first, second = torch.triu_indices(rows, rows, 1)
    return torch.linalg.vector_norm(self[first] - self[second], p, -1)


def _randomly_leaky(
    self: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Return RReLU with random slopes, which an inference graph draws itself, and its slopes."""
    slope = lower + (upper - lower) * torch.rand_like(self) if training else torch.full_like(self, (lower + upper) / 2)
    slope = torch.where(self > 0, 1.0, slope)
    return self * slope, slope


def _by_root_of_squares(
    input: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Compute RMSNorm: x / √(mean of x² + ε), times the weight."""
    least = torch.finfo(input.dtype).eps if eps is None else eps
    mean = (input * input).mean(list(range(-len(normalized_shape), 0)), True)
    found = input * aten.add.Scalar(mean, least).rsqrt()
    return found if weight is None else found * weight


def running(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """Combine all entries so far, in log₂(n) steps: each doubles the number of entries; ``combine`` takes later and earlier ones."""
    size, step = x.shape[dim], 1
    while step < size:
        later = combine(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))
        x = torch.cat([x.narrow(dim, 0, step), later], dim)
        step *= 2
    return x


def _running_products(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    x = self if dtype is None else self.to(dtype)
    if x.dim() == 0:
        return x.clone()
    return running(torch.mul, x, dim) if isinstance(self.shape[dim], int) else NotImplemented


def _running_log_sums(input: Tensor, dim: int) -> Any:
    """Return log Σ exp x of all entries so far."""
    if input.dim() == 0:
        return input.clone()
    return running(_log_sum, input, dim) if isinstance(input.shape[dim], int) else NotImplemented


def _log_sum(later: Tensor, earlier: Tensor) -> Tensor:
    most = torch.maximum(later, earlier)
    most = torch.where(torch.isinf(most), 0, most)
    return most + torch.log(torch.exp(later - most) + torch.exp(earlier - most))


NUMBERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.copysign.Tensor, aten.copysign.Scalar), _with_sign),
    aten.frexp.Tensor: _parts,
    aten.linalg_norm.default: _norm,
    aten.rms_norm.default: _by_root_of_squares,
    aten.prod.default: lambda input, *, dtype=None: _product_of_axis(input.reshape(-1), 0, dtype=dtype),
    aten.prod.dim_int: _product_of_axis,
    aten.cumprod.default: _running_products,
    aten.logcumsumexp.default: _running_log_sums,
    aten._pdist_forward.default: _pair_distances,  # noqa: SLF001 - its name in torch's graphs
    aten.rrelu_with_noise_functional.default: _randomly_leaky,
    torch.ops.prims.view_of.default: lambda value: value,
}
"""Operator of torch → what computes it."""
