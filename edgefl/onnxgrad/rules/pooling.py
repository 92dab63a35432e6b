"""Pools: over windows, and over all positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule, sides
from edgefl.onnxgrad.rules.convolution import by_rank, symmetric, window


def _max_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, dilations, pads = window(node, x, kernel)
    n = len(kernel)
    if not symmetric(pads) or any(2 * p > k for p, k in zip(pads[:n], kernel, strict=True)):
        x, pads = F.pad(x, sides(pads), value=-math.inf), [0] * n
    return by_rank(node, MAX_POOL, n)(x, kernel, strides, pads[:n], dilations, bool(node.get("ceil_mode", 0)))


def _average_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, _, pads = window(node, x, kernel)
    n, ceil, whole = len(kernel), bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    pool = by_rank(node, AVERAGE_POOL, n)
    if symmetric(pads) and all(2 * p <= k for p, k in zip(pads[:n], kernel, strict=True)):
        return pool(x, kernel, strides, pads[:n], ceil, whole)
    average = pool(F.pad(x, sides(pads)), kernel, strides, 0, ceil)
    if whole:
        return average
    # The share of real values in a window turns the average over all of it into one over them.
    return average / pool(F.pad(torch.ones_like(x[:1, :1]), sides(pads)), kernel, strides, 0, ceil)


def _check_average_pool(node: Operator) -> None:
    dilations = node.get("dilations", [])
    if any(d != 1 for d in dilations):
        node.refuse(f"dilations {dilations}, expected ones")


def _global_pool(function: Callable[[Tensor, list[int], bool], Tensor]) -> Rule:
    return lambda node, x: function(x, list(range(2, x.dim())), True)


MAX_POOL: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOL: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

RULES: dict[str, Rule] = {
    "MaxPool": _max_pool, "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool(torch.mean), "GlobalMaxPool": _global_pool(torch.amax),
}  # fmt: skip
CHECKS: dict[str, Check] = {"MaxPool": Operator.only_first_output, "AveragePool": _check_average_pool}
