"""Resize: each new value is a weighted sum of old ones along every axis, with weights that depend on positions only."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Choices, Operator, Rule


def _resize(
    node: Operator, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Tensor:
    axes = [axis % x.dim() for axis in node.get("axes", range(x.dim()))]
    before = [x.shape[axis] for axis in axes]
    if scales is not None and scales.size:
        factors = [np.float32(scale) for scale in scales]
        after = [math.floor(size * scale) for size, scale in zip(before, scales, strict=True)]
    else:
        after, factors = _sizes(node, before, [int(size) for size in sizes])  # type: ignore[union-attr]
    crop = node.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    for i, axis in enumerate(axes):
        part = (float(roi[i]), float(roi[i + len(axes)])) if crop and roi is not None else (0.0, 1.0)
        if after[i] != before[i] or factors[i] != 1 or part != (0.0, 1.0):
            x = _along(node, x, axis, after[i], factors[i], part)
    return x


def _sizes(node: Operator, before: list[int], wanted: list[int]) -> tuple[list[int], list[np.float32]]:
    """Return the new sizes, and by which factors the old ones grow."""
    policy, factors = (
        node.get("keep_aspect_ratio_policy", "stretch"),
        [new / old for new, old in zip(wanted, before, strict=True)],
    )
    if policy == "stretch":
        return wanted, [np.float32(factor) for factor in factors]
    scale = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(scale * old + 0.5) for old in before], [np.float32(scale)] * len(before)


def _along(node: Operator, x: Tensor, axis: int, after: int, scale: np.float32, part: tuple[float, float]) -> Tensor:
    before, mode = x.shape[axis], node.get("mode", "nearest")
    positions = _coordinates(node, before, after, scale, part)
    outside = (positions < 0) | (positions > before - 1) if part != (0.0, 1.0) else np.zeros(after, bool)
    if mode == "nearest":
        y = _read(x, axis, ROUNDING[node.get("nearest_mode", "round_prefer_floor")](positions))
    elif mode == "linear" and not node.get("antialias", 0) and not node.get("exclude_outside", 0):
        positions = positions.clip(0, before - 1)
        low = np.floor(positions)
        y = torch.lerp(_read(x, axis, low), _read(x, axis, low + 1), _weights(x, axis, positions - low))
    else:
        places, weights = _taps(node, positions, before, min(float(scale), 1.0) if node.get("antialias", 0) else 1.0)
        products = (_read(x, axis, places[tap]) * _weights(x, axis, weights[tap]) for tap in range(len(places)))
        y = sum(products, start=torch.zeros((), dtype=x.dtype, device=x.device))
    if outside.any():
        y = torch.where(_weights(x, axis, outside).bool(), node.get("extrapolation_value", 0.0), y)
    return y


def _read(x: Tensor, axis: int, index: Array) -> Tensor:
    return x.index_select(axis, torch.tensor(index.clip(0, x.shape[axis] - 1).astype(np.int64), device=x.device))


def _weights(x: Tensor, axis: int, values: Array) -> Tensor:
    return torch.tensor(values, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.dim() - 1 - axis))


def _taps(node: Operator, positions: Array, before: int, stretch: float) -> tuple[Array, Array]:
    """Return the old positions that each new value reads, and their weights: (taps, new values)."""
    kernel, reach = (_cubic, 2) if node.get("mode") == "cubic" else (_triangle, 1)
    width = math.ceil(reach / stretch)
    places = np.floor(positions) + np.arange(1 - width, width + 1)[:, None]
    weights = kernel((places - positions) * stretch, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        weights = np.where((places < 0) | (places >= before), 0.0, weights)
    return places, weights / weights.sum(0)


def _triangle(distance: Array, _: float) -> Array:
    return (1 - np.abs(distance)).clip(0)


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _coordinates(node: Operator, before: int, after: int, scale: np.float32, part: tuple[float, float]) -> Array:
    """Return the coordinate, among ``before`` old positions, of each of ``after`` new ones."""
    new, half = np.arange(after, dtype=np.float32), np.float32(0.5)
    kind = node.get("coordinate_transformation_mode", "half_pixel")
    if kind == "align_corners" and abs(before * scale - after) > 1e-3:
        node.refuse(f"align_corners with a scale of {scale} for size {before}, whose product must be whole: runtimes differ")
    if kind == "align_corners":
        return new * np.float32(before - 1) / np.float32(max(after - 1, 1))
    if kind == "tf_crop_and_resize":
        start, end = (np.float32(edge * (before - 1)) for edge in part)
        return start + new * (end - start) / np.float32(after - 1) if after > 1 else (start + end).reshape(1) * half
    if kind == "asymmetric" or (kind == "pytorch_half_pixel" and after == 1):
        return new / scale
    shift = np.float32(before / 2 * (1 - after / (before * scale))) if kind == "half_pixel_symmetric" else np.float32(0)
    return shift + (new + half) / scale - half


def _check(node: Operator) -> None:
    if node.get("mode", "nearest") == "nearest" and node.get("antialias", 0):
        node.refuse("antialias of mode 'nearest' is not defined")


ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda positions: np.ceil(positions - np.float32(0.5)),
    "round_prefer_ceil": lambda positions: np.floor(positions + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
RULES: dict[str, Rule] = {"Resize": _resize}
ATTRIBUTES = {
    "Resize": "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy"
    " mode nearest_mode"
}
KNOWN = {"Resize": (1, 2, 3)}
CHOICES: dict[str, Choices] = {
    "Resize": {
        "mode": ("nearest", "linear", "cubic"),
        "coordinate_transformation_mode": (
            "align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_crop_and_resize"
        ),
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
        "nearest_mode": tuple(ROUNDING),
    }
}  # fmt: skip
CHECKS: dict[str, Check] = {"Resize": _check}
