"""Convolutions, and the windows that they and pools slide over maps (batch, channels, …)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Choices, Operator, Rule, sides


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


def check_kernel(node: Operator, weight: Tensor) -> None:
    """Refuse a node whose attribute kernel_shape is not the size of its kernels."""
    if list(node.get("kernel_shape", weight.shape[2:])) != list(weight.shape[2:]):
        node.refuse(f"kernel_shape {node.get('kernel_shape')}, but its weights have {list(weight.shape[2:])}")


def convolve(node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a convolution of x (batch, channels, …) with the node's strides, pads, dilations and groups."""
    check_kernel(node, weight)
    n = weight.dim() - 2
    strides, dilations, pads = window(node, x, weight.shape[2:])
    if not symmetric(pads):
        x, pads = F.pad(x, sides(pads)), [0] * n
    return by_rank(node, "conv", n)(x, weight, bias, strides, pads[:n], dilations, node.get("group", 1))


def _conv_transpose(node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    check_kernel(node, weight)
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


def _deformed(
    node: Operator, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Compute a convolution of 2-D maps whose kernel reads, at each place, positions moved by ``offset``."""
    check_kernel(node, weight)
    (batch, channels, height, width), (kh, kw) = x.shape, weight.shape[2:]
    strides, dilations, pads = window(node, x, (kh, kw))
    rows, columns = offset.shape[2:]
    groups, shares = node.get("group", 1), node.get("offset_group", 1)
    moved = offset.reshape(batch, shares, kh * kw, 2, rows, columns)

    def places(axis: int, count: int, kernel: Tensor) -> Tensor:
        first = torch.arange(count, device=x.device) * strides[axis] - pads[axis]
        start = first.reshape((-1, 1) if axis == 0 else (1, -1))
        return moved[:, :, :, axis] + start + (kernel * dilations[axis]).reshape(-1, 1, 1)

    taps = torch.arange(kh * kw, device=x.device)
    y, z = places(0, rows, taps // kw), places(1, columns, taps % kw)
    grid = torch.stack([(2 * z + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    grid = grid.reshape(batch * shares, kh * kw * rows, columns, 2)
    read = F.grid_sample(x.reshape(batch * shares, channels // shares, height, width), grid, align_corners=False)
    read = read.reshape(batch, shares, channels // shares, kh * kw, rows, columns)
    if mask is not None:
        read = read * mask.reshape(batch, shares, 1, kh * kw, rows, columns)
    read = read.reshape(batch, groups, channels // groups * kh * kw, rows * columns)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    result = (kernels @ read).reshape(batch, weight.shape[0], rows, columns)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


RULES: dict[str, Rule] = {"Conv": convolve, "ConvTranspose": _conv_transpose, "DeformConv": _deformed}
ATTRIBUTES = {
    "Conv": "auto_pad dilations group kernel_shape pads strides",
    "ConvTranspose": "auto_pad dilations group kernel_shape output_padding output_shape pads strides",
    "DeformConv": "dilations group kernel_shape offset_group pads strides",
}
WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3)}
PADDING: Choices = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
CHOICES: dict[str, Choices] = {"Conv": PADDING, "ConvTranspose": PADDING}
