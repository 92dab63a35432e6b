"""Adaptive and fractional pooling, maxima with their places, and transposed convolutions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten
_MEAN_2D, _MEAN_3D = aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default  # noqa: SLF001 - names in torch's graphs


def each_axis(axes: int, *values: Any) -> list[tuple[int, ...]]:
    """Return the settings of each axis, of settings that are a number, or numbers by axis."""
    return list(zip(*([v] * axes if isinstance(v, int) else list(v) * (axes // len(v)) for v in values), strict=True))


def _adaptive_maxima(self: Tensor, output_size: Sequence[int]) -> Any:
    """Return the maximum of each window and its place in the map."""
    axes = len(output_size)
    sizes = self.shape[-axes:]
    if not all(isinstance(size, int) for size in (*sizes, *output_size)):
        return NotImplemented
    entries = []
    for size, count in zip(sizes, output_size, strict=True):
        number = torch.arange(count).to(torch.float64).unsqueeze(-1)
        first, end = torch.floor(number * size / count), torch.ceil((number + 1) * size / count)
        own = first + torch.arange(max(-(-(i + 1) * size // count) - i * size // count for i in range(count)))
        entries.append(torch.where(own < end, own, first).to(torch.int64))  # shorter windows repeat their first entry
    x = self.unsqueeze(0) if self.dim() == axes + 1 else self
    found = _maxima(x, [own.reshape(1, 1, *own.shape) for own in entries])
    return tuple(part.reshape(*self.shape[:-axes], *output_size) for part in found)


def _means(mean: Callable[..., Tensor], operator: Any) -> Callable[..., Any]:
    """Return the means of windows of one size that do not overlap by ``mean``, others as torch decomposes ``operator``."""
    other: Any = decomposition_table.get(operator, lambda *args: NotImplemented)

    def pooled(self: Tensor, output_size: Sequence[int]) -> Any:
        sizes = self.shape[-len(output_size) :]
        fixed = all(isinstance(size, int) for size in (*sizes, *output_size))
        if not fixed or any(size % count for size, count in zip(sizes, output_size, strict=True)):
            return other(self, output_size)
        kernel = [size // count for size, count in zip(sizes, output_size, strict=True)]
        return self.clone() if set(kernel) == {1} else mean(self, kernel, kernel)

    return pooled


def _fractional_maxima(self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor) -> Any:
    """Return maxima of windows that begin at places drawn by ``random_samples`` (batch, channels, axes), as Graham (2014)."""
    axes = random_samples.shape[-1]
    single = self.dim() == axes + 1
    x = self.unsqueeze(0) if single else self
    sizes = x.shape[2:]
    if not all(isinstance(size, int) for size in (*sizes, *output_size, *kernel_size)):
        return NotImplemented
    kernels, counts = list(kernel_size) * (axes // len(kernel_size)), list(output_size) * (axes // len(output_size))
    entries = []
    for axis, (size, kernel, count) in enumerate(zip(sizes, kernels, counts, strict=True)):
        sample = random_samples[..., axis if axes == 3 else axes - 1 - axis]  # of a 2-d map, columns have the first number
        starts = _starts(sample.unsqueeze(-1), size, kernel, count)
        entries.append(starts.unsqueeze(-1) + torch.arange(kernel))
    found = _maxima(x, entries)
    return tuple(part.squeeze(0) if single else part for part in found)


def _maxima(x: Tensor, entries: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, the first of several, and its place in the flattened map.

    ``entries`` has, for each axis of the maps ``x`` (batch, channels, *sizes), the window's entries (batch or 1, channels or 1, windows,
    kernel).
    """
    axes, index = len(entries), torch.zeros((), dtype=torch.int64)
    for axis, own in enumerate(entries):
        shape = [*own.shape[:2], *[1] * (2 * axes)]
        shape[2 + axis], shape[2 + axes + axis] = own.shape[2:]
        index = index * x.shape[2 + axis] + own.reshape(shape)
    counts = index.shape[2 : 2 + axes]
    index = index.flatten(2 + axes).flatten(2, 1 + axes)  # (batch, channels, windows, entries)
    index = index.expand(*x.shape[:2], *index.shape[2:])
    values = x.flatten(2).gather(2, index.flatten(2)).reshape(index.shape)
    hit = values.argmax(-1, keepdim=True)
    value, place = (part.gather(-1, hit).squeeze(-1).reshape(*x.shape[:2], *counts) for part in (values, index))
    return value, place


def _starts(sample: Tensor, size: int, kernel: int, count: int) -> Tensor:
    """Return where the windows of an axis begin: the last one at the end, the others at steps of equal mean."""
    last = torch.full_like(sample, size - kernel)
    if count == 1:
        return last.to(torch.int64)
    step = (size - kernel) / (count - 1)
    numbers = torch.arange(count - 1).to(sample.dtype)
    return torch.cat([torch.floor((numbers + sample) * step) - torch.floor(sample * step), last], -1).to(torch.int64)


def _transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Compute a transposed convolution by the operator that has an argument for that."""
    settings = each_axis(input.dim() - 2, stride, padding, dilation, output_padding)
    strides, pads, dilations, behind = (list(values) for values in zip(*settings, strict=True))
    return aten.convolution.default(input, weight, bias, strides, pads, dilations, True, behind, groups)


WINDOWED: dict[Any, Callable[..., Any]] = {
    _MEAN_2D: _means(torch.nn.functional.avg_pool2d, _MEAN_2D),
    _MEAN_3D: _means(torch.nn.functional.avg_pool3d, _MEAN_3D),
    **dict.fromkeys((aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default), _adaptive_maxima),
    **dict.fromkeys((aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default), _fractional_maxima),
    **dict.fromkeys((aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input), _transposed),
}
"""Operator of torch → what computes it."""
