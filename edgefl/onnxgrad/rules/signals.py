"""Signals and maps: resizing, reading at positions that depend on data, Fourier transforms, the sum of overlapping blocks."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Choices, Operator, Rule, numbers
from edgefl.onnxgrad.rules.windows import symmetric


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
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    factors = [new / old for new, old in zip(wanted, before, strict=True)]
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


_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


def _grid_sample(node: Operator, x: Tensor, grid: Tensor) -> Tensor:
    mode = _MODES[node.get("mode", "linear")]
    if x.dim() not in (4, 5) or (mode == "bicubic" and x.dim() == 5):
        node.refuse(f"{x.dim() - 2} spatial axes with mode {mode!r}: torch samples maps of 2 axes, and volumes without cubic")
    return F.grid_sample(x, grid, mode, node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0)))


def _dft(node: Operator, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Tensor:
    """Transform x (…, 1 or 2), whose last axis holds the real and the imaginary part."""
    given = node.get("axis", 1) if node.opset < 20 else -2
    where = (given if axis is None else int(axis.item())) % x.dim()
    size = None if length is None else int(length.item())
    values = x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    inverse, half = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    if inverse and half:
        return torch.fft.irfft(values, size, where).unsqueeze(-1)
    found = torch.fft.ifft(values, size, where) if inverse else torch.fft.fft(values, size, where)
    return torch.view_as_real(found.narrow(where, 0, found.shape[where] // 2 + 1) if half else found)


def _stft(node: Operator, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None) -> Tensor:
    """Transform the frames of x (batch, values, 1 or 2)."""
    size = int(length.item()) if length is not None else x.shape[1] if window is None else window.shape[0]
    frames = x.unfold(1, size, int(step.item())).transpose(2, 3)  # (batch, frames, values, parts)
    frames = frames if window is None else frames * window[:, None]
    values = frames.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(frames.contiguous())
    found = torch.fft.fft(values, dim=2)
    return torch.view_as_real(found[:, :, : size // 2 + 1] if node.get("onesided", 1) else found)


def _col2im(node: Operator, x: Tensor, image: Array, block: Array) -> Tensor:
    sizes, kernel = tuple(numbers(image)), tuple(numbers(block))
    n = len(sizes)
    pads = node.get("pads", [0] * 2 * n)
    if n != 2 or not symmetric(pads):
        node.refuse(f"{n} axes with pads {pads}, expected 2 axes with equal pads")
    return F.fold(x, sizes, kernel, node.get("dilations", [1, 1]), pads[:2], node.get("strides", [1, 1]))


RULES: dict[str, Rule] = {
    "Resize": _resize, "GridSample": _grid_sample, "DFT": _dft, "STFT": _stft, "Col2Im": _col2im,
    "AffineGrid": lambda node, theta, size: F.affine_grid(theta, numbers(size), bool(node.get("align_corners", 0))),
}  # fmt: skip
ATTRIBUTES = {
    "Resize": "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy"
    " mode nearest_mode",
    "GridSample": "align_corners mode padding_mode", "AffineGrid": "align_corners",
    "DFT": "axis inverse onesided", "STFT": "onesided", "Col2Im": "dilations pads strides",
}  # fmt: skip
CHOICES: dict[str, Choices] = {
    "Resize": {
        "mode": ("nearest", "linear", "cubic"),
        "coordinate_transformation_mode": (
            "align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_crop_and_resize"
        ),
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
        "nearest_mode": tuple(ROUNDING),
    },
    "GridSample": {"mode": tuple(_MODES), "padding_mode": ("zeros", "border", "reflection")},
}  # fmt: skip
CHECKS: dict[str, Check] = {"Resize": _check}
KNOWN = {"Resize": (1, 2, 3), "AffineGrid": (1,), "DFT": (1, 2), "STFT": (1, 3), "Col2Im": (1, 2)}
UNTRAINED = {"STFT": (2,)}
