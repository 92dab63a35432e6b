"""Pooling: the largest value, mean or norm of each window of a map, or of a whole map."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, numbers, sides
from edgefl.onnxgrad.rules.convolutions import PADDING, by_rank, symmetric, window


def _max_pool(node: Operator, x: Tensor) -> tuple[Tensor, ...]:
    kernel, before = node.get("kernel_shape"), x.shape
    strides, dilations, pads = window(node, x, kernel)
    n = len(kernel)
    padded = not symmetric(pads) or any(2 * p > k for p, k in zip(pads[:n], kernel, strict=True))
    if padded:
        x, pads = F.pad(x, sides(pads), value=-math.inf), [0] * n
    settings = kernel, strides, pads[:n], dilations, bool(node.get("ceil_mode", 0))
    if not node.wants(1):
        return (by_rank(node, "max_pool", n)(x, *settings),)
    if padded or node.get("storage_order", 0):
        node.refuse("indices of asymmetric pads, or in the order of columns, have no rule")
    y, places = by_rank(node, "max_pool", n)(x, *settings, return_indices=True)
    maps = torch.arange(math.prod(before[:2]), device=x.device).reshape(*before[:2], *[1] * n)
    return y, places + maps * math.prod(before[2:])


def _max_unpool(node: Operator, x: Tensor, places: Tensor, shape: Array | None = None) -> Tensor:
    kernel = node.get("kernel_shape")
    n = len(kernel)
    strides, pads = node.get("strides", [1] * n), node.get("pads", [0] * 2 * n)
    sizes = [
        (size - 1) * s - a - b + k for size, s, a, b, k in zip(x.shape[2:], strides, pads[:n], pads[n:], kernel, strict=True)
    ]
    if shape is not None and numbers(shape)[2:] != sizes:
        node.refuse(f"output_shape {numbers(shape)} for maps of {sizes}: runtimes differ in what the indices mean")
    y = x.new_zeros(math.prod(x.shape[:2]) * math.prod(sizes)).scatter(0, places.reshape(-1), x.reshape(-1))
    return y.reshape(*x.shape[:2], *sizes)


def _average_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, dilations, pads = window(node, x, kernel)
    n, ceil, whole = len(kernel), bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    if any(d != 1 for d in dilations):
        counted = F.pad(torch.ones_like(x[:1, :1]), sides(pads), value=float(whole))
        parts, counts = (_windows(t, kernel, strides, dilations, ceil) for t in (F.pad(x, sides(pads)), counted))
        return parts.sum(list(range(-n, 0))) / counts.sum(list(range(-n, 0)))
    pool = by_rank(node, "avg_pool", n)
    if symmetric(pads) and all(2 * p <= k for p, k in zip(pads[:n], kernel, strict=True)):
        return pool(x, kernel, strides, pads[:n], ceil, whole)
    average = pool(F.pad(x, sides(pads)), kernel, strides, 0, ceil)
    if whole:
        return average
    # Divide by the share of entries that are not padding: the mean of the others remains.
    return average / pool(F.pad(torch.ones_like(x[:1, :1]), sides(pads)), kernel, strides, 0, ceil)


def _windows(x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], ceil: bool) -> Tensor:
    """Return the windows of a padded map (batch, channels, places…, values…); with ``ceil``, zeros fill those past the end."""
    n = len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if ceil:
        rests = [-(size - span) % s for size, span, s in zip(x.shape[2:], spans, strides, strict=True)]
        x = F.pad(x, sides([*[0] * n, *rests]))
    for axis, (span, stride, dilation) in enumerate(zip(spans, strides, dilations, strict=True), start=2):
        x = x.unfold(axis, span, stride)[..., ::dilation]
    return x


def _lp_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, dilations, pads = window(node, x, kernel)
    parts = _windows(F.pad(x, sides(pads)), kernel, strides, dilations, bool(node.get("ceil_mode", 0)))
    return torch.linalg.vector_norm(parts, node.get("p", 2), list(range(-len(kernel), 0)))


def _whole(function: Callable[[Operator, Tensor, list[int]], Tensor]) -> Rule:
    return lambda node, x: function(node, x, list(range(2, x.dim())))


RULES: dict[str, Rule] = {
    "MaxPool": _max_pool, "MaxUnpool": _max_unpool, "AveragePool": _average_pool, "LpPool": _lp_pool,
    "GlobalAveragePool": _whole(lambda node, x, axes: x.mean(axes, True)),
    "GlobalMaxPool": _whole(lambda node, x, axes: x.amax(axes, True)),
    "GlobalLpPool": _whole(lambda node, x, axes: torch.linalg.vector_norm(x, node.get("p", 2), axes, True)),
}  # fmt: skip
_WINDOW = "auto_pad ceil_mode dilations kernel_shape pads strides"
ATTRIBUTES = {
    "MaxPool": f"{_WINDOW} storage_order", "MaxUnpool": "kernel_shape pads strides",
    "AveragePool": f"{_WINDOW} count_include_pad", "LpPool": f"{_WINDOW} p", "GlobalLpPool": "p",
}  # fmt: skip
KNOWN = {"MaxUnpool": (2,)}
CHOICES: dict[str, Choices] = dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), PADDING)
