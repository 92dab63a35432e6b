"""Convolution, pooling and resizing: operators on maps (batch, channels, …)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Operator, Rule, sides


def window(node: Operator, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations and pads [begin…, end…] of a sliding window of size ``kernel``."""
    n = len(kernel)
    strides, dilations = list(node.get("strides", [1] * n)), list(node.get("dilations", [1] * n))
    automatic = node.get("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        return strides, dilations, list(node.get("pads", [0] * 2 * n))
    if automatic == "VALID":
        return strides, dilations, [0] * 2 * n
    sizes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
    totals = [max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0) for size, k, s, d in sizes]
    return strides, dilations, _halves(totals, automatic == "SAME_UPPER")


def _halves(totals: Sequence[int], more_at_the_end: bool) -> list[int]:
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if more_at_the_end else large + small


def symmetric(pads: Sequence[int]) -> bool:
    """Return whether torch's layers support these pads: equal on both sides and not negative."""
    half = len(pads) // 2
    return list(pads[:half]) == list(pads[half:]) and min(pads, default=0) >= 0


def by_rank(node: Operator, name: str, rank: int) -> Callable[..., Tensor]:
    """Return torch's function ``name`` for a number of spatial axes, such as ``conv2d``, or refuse the node."""
    if rank not in (1, 2, 3):
        node.refuse(f"{rank} spatial axes, expected 1, 2, 3")
    function: Callable[..., Tensor] = getattr(F, f"{name}{rank}d")
    return function


def _conv(node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = weight.dim() - 2
    strides, dilations, pads = window(node, x, weight.shape[2:])
    if not symmetric(pads):
        x, pads = F.pad(x, sides(pads)), [0] * n
    return by_rank(node, "conv", n)(x, weight, bias, strides, pads[:n], dilations, node.get("group", 1))


def _conv_transpose(node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = weight.dim() - 2
    strides, dilations = node.get("strides", [1] * n), node.get("dilations", [1] * n)
    extra, group = node.get("output_padding", [0] * n), node.get("group", 1)
    automatic, sizes = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    pads = [0] * 2 * n if automatic == "VALID" else list(node.get("pads", [0] * 2 * n))
    if sizes is None and automatic.startswith("SAME"):
        sizes = [size * s for size, s in zip(x.shape[2:], strides, strict=True)]
    if sizes is not None:
        full = [(x.shape[2 + i] - 1) * strides[i] + (weight.shape[2 + i] - 1) * dilations[i] + 1 + extra[i] for i in range(n)]
        pads = _halves([f - size for f, size in zip(full, sizes[-n:], strict=True)], automatic == "SAME_UPPER")
    convolve = by_rank(node, "conv_transpose", n)
    if symmetric(pads):
        return convolve(x, weight, bias, strides, pads[:n], extra, group, dilations)
    y = F.pad(convolve(x, weight, None, strides, 0, extra, group, dilations), sides([-p for p in pads]))
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def _max_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, dilations, pads = window(node, x, kernel)
    n = len(kernel)
    if not symmetric(pads) or any(2 * p > k for p, k in zip(pads[:n], kernel, strict=True)):
        x, pads = F.pad(x, sides(pads), value=-math.inf), [0] * n
    return by_rank(node, "max_pool", n)(x, kernel, strides, pads[:n], dilations, bool(node.get("ceil_mode", 0)))


def _average_pool(node: Operator, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, _, pads = window(node, x, kernel)
    n, ceil, whole = len(kernel), bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    pool = by_rank(node, "avg_pool", n)
    if symmetric(pads) and all(2 * p <= k for p, k in zip(pads[:n], kernel, strict=True)):
        return pool(x, kernel, strides, pads[:n], ceil, whole)
    average = pool(F.pad(x, sides(pads)), kernel, strides, 0, ceil)
    if whole:
        return average
    # Divide by the share of entries that are not padding: the mean of the others remains.
    return average / pool(F.pad(torch.ones_like(x[:1, :1]), sides(pads)), kernel, strides, 0, ceil)


def _check_average_pool(node: Operator) -> None:
    dilations = node.get("dilations", [])
    if any(d != 1 for d in dilations):
        node.refuse(f"dilations {dilations}, expected ones")


def _resize(
    node: Operator, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Tensor:
    mode, axes = node.get("mode", "nearest"), node.get("axes", list(range(x.dim())))
    by_scale = scales is not None and scales.size > 0
    for i, axis in enumerate(axes):
        before = x.shape[axis]
        after = math.floor(before * scales[i]) if by_scale else int(sizes[i])  # type: ignore[index]
        if after != before or (by_scale and scales[i] != 1):  # type: ignore[index]
            scale = np.float32(scales[i] if by_scale else after / before)  # type: ignore[index]
            x = _resize_axis(node, x, axis, _coordinates(node, before, after, scale), mode)
    return x


def _check_resize(node: Operator) -> None:
    mode, kind = node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear") or node.get("antialias", 0):
        node.refuse(f"mode {mode!r}{' with antialias' * node.get('antialias', 0)}, expected 'nearest' or 'linear'")
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        node.refuse("keep_aspect_ratio_policy, expected 'stretch'")
    if kind not in ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"):
        node.refuse(f"coordinate_transformation_mode {kind!r} has no rule")
    if (rounding := node.get("nearest_mode", "round_prefer_floor")) not in ROUNDING:
        node.refuse(f"nearest_mode {rounding!r}, expected {', '.join(ROUNDING)}")


def _coordinates(node: Operator, before: int, after: int, scale: np.float32) -> Array:
    """Return the coordinate, among ``before`` old positions, of each of ``after`` new ones."""
    new, half = np.arange(after, dtype=np.float32), np.float32(0.5)
    kind = node.get("coordinate_transformation_mode", "half_pixel")
    if kind == "align_corners":
        return new * np.float32(before - 1) / np.float32(max(after - 1, 1))
    if kind == "asymmetric" or (kind == "pytorch_half_pixel" and after == 1):
        return new / scale
    return (new + half) / scale - half


def _resize_axis(node: Operator, x: Tensor, axis: int, positions: Array, mode: str) -> Tensor:
    last = x.shape[axis] - 1

    def at(index: Array) -> Tensor:
        return x.index_select(axis, torch.tensor(index.clip(0, last).astype(np.int64), device=x.device))

    if mode == "nearest":
        return at(ROUNDING[node.get("nearest_mode", "round_prefer_floor")](positions))
    positions = positions.clip(0, last)
    low = np.floor(positions)
    share = torch.tensor(positions - low, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.dim() - 1 - axis % x.dim()))
    return torch.lerp(at(low), at(low + 1), share)


ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda positions: np.ceil(positions - np.float32(0.5)),
    "round_prefer_ceil": lambda positions: np.floor(positions + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool, "AveragePool": _average_pool,
    "GlobalAveragePool": lambda node, x: x.mean(list(range(2, x.dim())), True),
    "GlobalMaxPool": lambda node, x: x.amax(list(range(2, x.dim())), True),
    "Resize": _resize,
}  # fmt: skip
KNOWN = {"Resize": (1, 2, 3)}
CHECKS: dict[str, Check] = {"MaxPool": Operator.only_first_output, "AveragePool": _check_average_pool, "Resize": _check_resize}
