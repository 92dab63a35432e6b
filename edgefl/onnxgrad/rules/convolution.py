"""Convolutions and their transposes, and the sliding windows that pools have too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Operator, Rule, sides


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
    """Return whether torch can pad so: as much at the end as at the beginning, and nothing negative."""
    half = len(pads) // 2
    return list(pads[:half]) == list(pads[half:]) and min(pads, default=0) >= 0


def by_rank(node: Operator, functions: dict[int, Callable[..., Tensor]], rank: int) -> Callable[..., Tensor]:
    """Return the function for a number of spatial axes, or refuse the node."""
    if rank not in functions:
        node.refuse(f"{rank} spatial axes, expected {', '.join(map(str, functions))}")
    return functions[rank]


def _conv(node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = weight.dim() - 2
    strides, dilations, pads = window(node, x, weight.shape[2:])
    if not symmetric(pads):
        x, pads = F.pad(x, sides(pads)), [0] * n
    return by_rank(node, CONV, n)(x, weight, bias, strides, pads[:n], dilations, node.get("group", 1))


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
    convolve = by_rank(node, CONV_TRANSPOSE, n)
    if symmetric(pads):
        return convolve(x, weight, bias, strides, pads[:n], extra, group, dilations)
    y = F.pad(convolve(x, weight, None, strides, 0, extra, group, dilations), sides([-p for p in pads]))
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

RULES: dict[str, Rule] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
