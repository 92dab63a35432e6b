"""Adaptive pooling, pooling with ``ceil_mode``, whose last windows may reach behind the map, or with a divisor of its own, and windows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.decompositions.windows import each_axis
from edgefl.onnxgrad.detached import onnx_node
from edgefl.onnxgrad.stand_ins import ENTRIES_OF_WINDOWS, MEANS_OF_WINDOWS

_MEAN_POOLS: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _padded_pool(operator: str, input: Tensor, windows: Sequence[tuple[int, ...]], counts: bool = False) -> Tensor | None:
    """Return pooling with ``ceil_mode`` as the node ``operator`` without it, with the padding that its last windows reach.

    ``windows`` has kernel, stride, padding and dilation of each axis. torch drops a last window that begins in the padding behind the
    map; ONNX with ``ceil_mode`` does not. If padding ``counts``, it becomes a part of the map: what windows reach behind it never counts.
    """
    sizes = input.shape[2:]
    if len(sizes) != len(windows) or not all(isinstance(size, int) for size in sizes):
        return None
    places, ends = [], []
    for size, (kernel, stride, pad, dilation) in zip(sizes, windows, strict=True):
        count, end = _last(size, kernel, stride, pad, dilation)
        places.append(count)
        ends.append(end)
        if ends[-1] >= kernel:  # a dilated window, for which onnxruntime has no such padding
            return None
    kernels, strides, begins, dilations = (list(values) for values in zip(*windows, strict=True))
    if counts and any(begins):
        input = F.pad(input, [pad for pad in reversed(begins) for _ in range(2)])
        ends = [max(0, end - pad) for end, pad in zip(ends, begins, strict=True)]
        begins = [0] * len(begins)
    attributes = {"kernel_shape": kernels, "strides": strides, "pads": begins + ends, "dilations": dilations}
    return onnx_node(operator, (input,), (*input.shape[:2], *places), **attributes)


def _last(size: int, kernel: int, stride: int, pad: int, dilation: int) -> tuple[int, int]:
    """Return the number of windows along an axis with ``ceil_mode``, and how far the last one reaches behind the map."""
    reach = dilation * (kernel - 1) + 1
    count = -(-(size + 2 * pad - reach) // stride) + 1
    count -= (count - 1) * stride >= size + pad
    return count, max(0, (count - 1) * stride + reach - size - pad)


def _sums(input: Tensor, axes: int, *windows: Any) -> Tensor | None:
    """Return the sum of each window of a pooling with ``ceil_mode``; ``windows`` are kernel, stride and padding."""
    sizes, each = input.shape[-axes:], each_axis(axes, *windows, 1)
    if not all(isinstance(size, int) for size in sizes):
        return None
    pads = [part for size, of in zip(sizes, each, strict=True) for part in (_last(size, *of)[1], of[2])]
    kernels, strides, *_ = (list(values) for values in zip(*each, strict=True))
    return _MEAN_POOLS[axes](F.pad(input, pads[::-1]), kernels, strides) * math.prod(kernels)


def _ceiled_mean(axes: int) -> Callable[..., Tensor | None]:
    def pooled(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor | None:
        if divisor_override is not None and not ceil_mode:
            mean = _MEAN_POOLS[axes](input, kernel_size, stride, padding)
            return mean * (math.prod(kernel for (kernel,) in each_axis(axes, kernel_size)) / divisor_override)
        if divisor_override is not None:
            sums = _sums(input, axes, kernel_size, stride or kernel_size, padding)
            return None if sums is None else sums / divisor_override
        if not ceil_mode or input.dim() != axes + 2:
            return None
        windows = each_axis(axes, kernel_size, stride or kernel_size, padding, 1)
        return _padded_pool("AveragePool", input, windows, counts=count_include_pad)

    return pooled


def _ceiled_max(axes: int) -> Callable[..., Tensor | None]:
    def pooled(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor | None:
        if not ceil_mode or return_indices:
            return None
        return _padded_pool("MaxPool", input, each_axis(axes, kernel_size, stride or kernel_size, padding, dilation))

    return pooled


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return begin and end of each window of an adaptive pooling from ``size`` entries to ``count``."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _targets(x: Tensor, output_size: Any, axes: int) -> list[tuple[int, int]] | None:
    """Return the size and the target of each of the last ``axes`` of an adaptive pooling; None if a size is free."""
    asked = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    sizes = x.shape[-axes:]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return [(size, int(size if count is None else count)) for size, count in zip(sizes, asked, strict=True)]


def _divides(targets: list[tuple[int, int]]) -> bool:
    return all(size % count == 0 for size, count in targets)


def _adaptive_mean(axes: int) -> Callable[..., Tensor | None]:
    """Return adaptive average pooling as one product with a constant matrix along each axis."""

    def pooled(input: Tensor, output_size: Any) -> Tensor | None:
        targets = _targets(input, output_size, axes)
        if targets is None or _divides(targets):  # torch's own form has a rule
            return None
        for axis, (size, count) in enumerate(targets, input.dim() - axes):
            shares = torch.tensor([[(b <= i < e) / (e - b) for b, e in _windows(size, count)] for i in range(size)])
            input = MEANS_OF_WINDOWS(input.transpose(axis, -1), shares.to(input.dtype)).transpose(axis, -1)
        return input

    return pooled


def _adaptive_max(axes: int) -> Callable[..., Tensor | None]:
    """Return adaptive maximum pooling; the first maximum of a window, by rows, gets the gradient."""
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]

    def pooled(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor | None:
        targets = _targets(input, output_size, axes)
        if targets is None or return_indices:
            return None
        if _divides(targets):
            return pool(input, [size // count for size, count in targets])
        for axis, (size, count) in reversed([*enumerate(targets, input.dim() - axes)]):
            parts = [input.narrow(axis, b, e - b).max(axis, keepdim=True).values for b, e in _windows(size, count)]
            input = torch.cat(parts, axis)
        return input

    return pooled


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _unfolded(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor | None:
    """Compute the entries of each window by a convolution of each channel with kernels of one 1."""
    if input.dim() != 4:
        return None
    rows, columns = _pair(kernel_size)
    one = torch.eye(rows * columns, dtype=input.dtype).reshape(rows * columns, 1, rows, columns)
    channels = input.shape[1]
    found = ENTRIES_OF_WINDOWS(
        input, one.repeat(channels, 1, 1, 1), None, _pair(stride), _pair(padding), _pair(dilation), channels
    )
    return found.flatten(2)


POOLS: dict[Any, Callable[..., Tensor | None]] = {
    **{function: _ceiled_mean(axes) for axes, function in _MEAN_POOLS.items()},
    **{function: _ceiled_max(axes) for axes, function in enumerate((F.max_pool1d, F.max_pool2d, F.max_pool3d), 1)},
    **{function: _ceiled_max(axes) for axes, function in enumerate((torch.max_pool1d, torch.max_pool2d, torch.max_pool3d), 1)},
    torch.adaptive_avg_pool1d: _adaptive_mean(1),
    F.adaptive_avg_pool2d: _adaptive_mean(2),
    F.adaptive_avg_pool3d: _adaptive_mean(3),
    F.adaptive_max_pool1d: _adaptive_max(1),
    F.adaptive_max_pool2d: _adaptive_max(2),
    F.adaptive_max_pool3d: _adaptive_max(3),
    F.unfold: _unfolded,
}
"""Function of torch → the function here."""
