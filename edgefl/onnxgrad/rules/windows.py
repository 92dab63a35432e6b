"""Windows that slide over maps (batch, channels, …): convolutions, and pools, which return the largest value, mean or norm of each."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, numbers, sides

PADDING: Choices = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
CONV_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"
_POOL = "auto_pad ceil_mode dilations kernel_shape pads strides"


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
    return getattr(F, f"{name}{rank}d")


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
    "Conv": convolve, "ConvTranspose": _conv_transpose, "DeformConv": _deformed,
    "MaxPool": _max_pool, "MaxUnpool": _max_unpool, "AveragePool": _average_pool, "LpPool": _lp_pool,
    "GlobalAveragePool": _whole(lambda node, x, axes: x.mean(axes, True)),
    "GlobalMaxPool": _whole(lambda node, x, axes: x.amax(axes, True)),
    "GlobalLpPool": _whole(lambda node, x, axes: torch.linalg.vector_norm(x, node.get("p", 2), axes, True)),
}  # fmt: skip
ATTRIBUTES = {
    "Conv": CONV_ATTRIBUTES, "ConvTranspose": f"{CONV_ATTRIBUTES} output_padding output_shape",
    "DeformConv": "dilations group kernel_shape offset_group pads strides",
    "MaxPool": f"{_POOL} storage_order", "MaxUnpool": "kernel_shape pads strides",
    "AveragePool": f"{_POOL} count_include_pad", "LpPool": f"{_POOL} p", "GlobalLpPool": "p",
}  # fmt: skip
CHOICES: dict[str, Choices] = dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), PADDING)
KNOWN = {"MaxUnpool": (2,)}
WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3)}
