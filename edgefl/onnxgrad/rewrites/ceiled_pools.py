"""Pooling with ``ceil_mode``, whose last windows may reach behind the map, or with a divisor of its own; used while a module is traced."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.graphs import OPSET

_MEANS: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


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
    attrs: dict[str, Any] = {"kernel_shape": kernels, "strides": strides, "pads": begins + ends, "dilations": dilations}
    shape = (*input.shape[:2], *places)
    found: Tensor = torch.onnx.ops.symbolic(operator, (input,), attrs, dtype=input.dtype, shape=shape, version=OPSET)
    return found


def _last(size: int, kernel: int, stride: int, pad: int, dilation: int) -> tuple[int, int]:
    """Return the number of windows along an axis with ``ceil_mode``, and how far the last one reaches behind the map."""
    reach = dilation * (kernel - 1) + 1
    count = -(-(size + 2 * pad - reach) // stride) + 1
    count -= (count - 1) * stride >= size + pad
    return count, max(0, (count - 1) * stride + reach - size - pad)


def _sums(input: Tensor, axes: int, *windows: Any) -> Tensor | None:
    """Return the sum of each window of a pooling with ``ceil_mode``; ``windows`` are kernel, stride and padding."""
    sizes, each = input.shape[-axes:], _each_axis(axes, *windows, 1)
    if not all(isinstance(size, int) for size in sizes):
        return None
    pads = [part for size, of in zip(sizes, each, strict=True) for part in (_last(size, *of)[1], of[2])]
    kernels, strides, *_ = (list(values) for values in zip(*each, strict=True))
    return _MEANS[axes](F.pad(input, pads[::-1]), kernels, strides) * math.prod(kernels)


def _each_axis(axes: int, *values: Any) -> list[tuple[int, ...]]:
    """Return the settings of each axis, of settings that are a number, or numbers by axis."""
    return list(zip(*([v] * axes if isinstance(v, int) else list(v) * (axes // len(v)) for v in values), strict=True))


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
            kernel = [kernel_size] * axes if isinstance(kernel_size, int) else kernel_size
            mean = _MEANS[axes](input, kernel_size, stride, padding)
            return mean * (math.prod(kernel) / divisor_override)
        if divisor_override is not None:
            sums = _sums(input, axes, kernel_size, stride or kernel_size, padding)
            return None if sums is None else sums / divisor_override
        if not ceil_mode or input.dim() != axes + 2:
            return None
        windows = _each_axis(axes, kernel_size, stride or kernel_size, padding, 1)
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
        return _padded_pool("MaxPool", input, _each_axis(axes, kernel_size, stride or kernel_size, padding, dilation))

    return pooled


CEILED: dict[Any, Callable[..., Tensor | None]] = {
    **{function: _ceiled_mean(axes) for axes, function in _MEANS.items()},
    **{function: _ceiled_max(axes) for axes, function in enumerate((F.max_pool1d, F.max_pool2d, F.max_pool3d), 1)},
    **{function: _ceiled_max(axes) for axes, function in enumerate((torch.max_pool1d, torch.max_pool2d, torch.max_pool3d), 1)},
}
"""Function of torch → the function here, which returns None for arguments with which torch's own is exported as it is."""
