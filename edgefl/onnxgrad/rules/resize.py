"""Resize: by the nearest values or linearly, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Operator, Rule


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
    """Return where each of ``after`` new positions lies among the ``before`` old ones."""
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

RULES: dict[str, Rule] = {"Resize": _resize}
KNOWN = {"Resize": (1, 2, 3)}
CHECKS: dict[str, Check] = {"Resize": _check_resize}
