"""Functions of torch in operations that have an ONNX operator and a gradient rule; used while a module is traced.

Each function here has the arguments of torch's function and computes the same. It returns None for arguments with which torch's own
function is exported as it is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.errors import EdgeflError
from edgefl.onnxgrad.macs import MEANS, WINDOWS
from edgefl.onnxgrad.rewrites.alignment import ALIGNMENT
from edgefl.onnxgrad.rewrites.ceiled_pools import CEILED
from edgefl.onnxgrad.rewrites.checked_matrices import CHECKED
from edgefl.onnxgrad.rewrites.grids import GRIDS
from edgefl.onnxgrad.rewrites.indexed import INDEXED
from edgefl.onnxgrad.rewrites.label_losses import LABEL_LOSSES
from edgefl.onnxgrad.rewrites.layers import LAYERS
from edgefl.onnxgrad.rewrites.losses import LOSSES
from edgefl.onnxgrad.rewrites.scattered import SCATTERED
from edgefl.onnxgrad.rewrites.statistics import STATISTICS

# Operators that stand for torch's product and convolution while a module is traced; they have shapes, and are never computed. Nodes that
# the exporter makes of them have their names, and are no MACs.
torch.library.define(f"edgefl::{MEANS}", "(Tensor x, Tensor shares) -> Tensor")
torch.library.register_fake(f"edgefl::{MEANS}", torch.matmul)
torch.library.define(
    f"edgefl::{WINDOWS}",
    "(Tensor x, Tensor kernels, Tensor? bias, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, SymInt groups) -> Tensor",
)
torch.library.register_fake(f"edgefl::{WINDOWS}", torch.conv2d)
_MEANS, _WINDOWS = getattr(torch.ops.edgefl, MEANS).default, getattr(torch.ops.edgefl, WINDOWS).default
STANDS_FOR = {_MEANS: torch.ops.aten.matmul.default, _WINDOWS: torch.ops.aten.conv2d.default}
"""Operator here → operator of torch. The exporter translates both in the same way."""


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return begin and end of each window of an adaptive pooling from ``size`` entries to ``count``."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _targets(x: Tensor, output_size: Any, axes: int) -> list[tuple[int, int]] | None:
    """Return the size and the target of each of the last ``axes`` of an adaptive pooling; None if a size is free."""
    asked = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    sizes = x.shape[-axes:]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return [(size, int(size if count is None else count)) for size, count in zip(sizes, asked, strict=True)]


def _divides(targets: list[tuple[int, int]]) -> bool:
    return all(size % count == 0 for size, count in targets)


def _adaptive_mean(axes: int) -> Callable[..., Tensor | None]:
    """Return adaptive average pooling as one product with a constant matrix along each axis."""

    def pooled(input: Tensor, output_size: Any) -> Tensor | None:
        targets = _targets(input, output_size, axes)
        if targets is None or _divides(targets):  # torch's own form has a rule
            return None
        for axis, (size, count) in enumerate(targets, input.dim() - axes):
            shares = torch.tensor([[(b <= i < e) / (e - b) for b, e in _windows(size, count)] for i in range(size)])
            input = _MEANS(input.transpose(axis, -1), shares.to(input.dtype)).transpose(axis, -1)
        return input

    return pooled


def _adaptive_max(axes: int) -> Callable[..., Tensor | None]:
    """Return adaptive maximum pooling; the first maximum of a window, by rows, gets the gradient."""
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]

    def pooled(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor | None:
        targets = _targets(input, output_size, axes)
        if targets is None or return_indices:
            return None
        if _divides(targets):
            return pool(input, [size // count for size, count in targets])
        for axis, (size, count) in reversed([*enumerate(targets, input.dim() - axes)]):
            parts = [input.narrow(axis, b, e - b).max(axis, keepdim=True).values for b, e in _windows(size, count)]
            input = torch.cat(parts, axis)
        return input

    return pooled


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _unfolded(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor | None:
    """Compute the entries of each window by a convolution of each channel with kernels of one 1."""
    if input.dim() != 4:
        return None
    rows, columns = _pair(kernel_size)
    one = torch.eye(rows * columns, dtype=input.dtype).reshape(rows * columns, 1, rows, columns)
    channels = input.shape[1]
    found = _WINDOWS(input, one.repeat(channels, 1, 1, 1), None, _pair(stride), _pair(padding), _pair(dilation), channels)
    return found.flatten(2)


def _products(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Compute products of all entries so far, in log₂(n) steps: each doubles the number of factors."""
    size = input.shape[dim]
    if dtype is not None or not isinstance(size, int):
        return None
    step = 1
    while step < size:
        earlier = input.narrow(dim, 0, size - step)
        input = torch.cat([input.narrow(dim, 0, step), input.narrow(dim, step, size - step) * earlier], dim)
        step *= 2
    return input


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor | None:
    """Compute attention of a single head, without an axis for heads, as that of one of several."""
    if query.dim() != 3:
        return None
    mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, *args, **options).squeeze(1)


def _of_bags(rows: Tensor, offsets: Tensor, mode: str, counts: Tensor | None) -> Tensor:
    """Return sum, mean or maximum of the rows from each offset to the next; ``counts`` tells which rows count."""
    places = torch.arange(rows.shape[0])
    ends = torch.cat([offsets[1:], torch.full_like(offsets[:1], rows.shape[0])])
    own = (places >= offsets.unsqueeze(1)) & (places < ends.unsqueeze(1))
    own = own if counts is None else own & counts
    if mode == "max":
        highest = torch.where(own.unsqueeze(-1), rows, -torch.inf).amax(1)
        return torch.where(own.any(1, keepdim=True), highest, 0)
    total = own.to(rows.dtype) @ rows
    return total / own.to(rows.dtype).sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total


def _bags(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Compute an embedding bag as an embedding and the sum, mean or maximum of the rows of each bag."""
    if (
        max_norm is None
        and not scale_grad_by_freq
        and input.dim() == 1
        and offsets is not None
        and include_last_offset in (False, 0)
    ):
        rows = F.embedding(input, weight)
        rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)
        return _of_bags(rows, offsets, mode, None if padding_idx is None else input != padding_idx % weight.shape[0])
    if input.dim() != 2 or max_norm is not None or scale_grad_by_freq:
        raise EdgeflError(
            "embedding_bag has an ONNX form for ids (samples, length) without max_norm and scale_grad_by_freq; pad bags with padding_idx"
        )
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.amax(1) if mode == "max" else rows.mean(1) if mode == "mean" else rows.sum(1)
    own = (input != padding_idx % weight.shape[0]).unsqueeze(-1)
    if mode == "max":
        highest = rows.masked_fill(~own, float("-inf")).amax(1)
        return torch.where(own.any(1), highest, torch.zeros_like(highest))
    total = torch.where(own, rows, torch.zeros_like(rows)).sum(1)
    return total / own.to(rows.dtype).sum(1).clamp(min=1) if mode == "mean" else total


def _distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Compute the distances of all pairs of rows as norms of their differences; of equal largest ones each gets all of the gradient."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p != math.inf:
        return torch.linalg.vector_norm(apart, p, -1)
    size = apart.abs()
    largest = held(size.amax(-1))
    hits = size == largest.unsqueeze(-1)
    return largest + torch.where(hits, size - held(size), torch.zeros_like(size)).sum(-1)


def _of_number(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor | None:
    """Return the extreme of one number, for which the exporter has no form."""
    return input.clone() if input.dim() == 0 else None


REWRITES: dict[Any, Callable[..., Tensor | None]] = {
    **CEILED,
    **ALIGNMENT,
    **CHECKED,
    **GRIDS,
    **LAYERS,
    **LOSSES,
    **INDEXED,
    **LABEL_LOSSES,
    **SCATTERED,
    **STATISTICS,
    torch.adaptive_avg_pool1d: _adaptive_mean(1),
    F.adaptive_avg_pool2d: _adaptive_mean(2),
    F.adaptive_avg_pool3d: _adaptive_mean(3),
    F.adaptive_max_pool1d: _adaptive_max(1),
    F.adaptive_max_pool2d: _adaptive_max(2),
    F.adaptive_max_pool3d: _adaptive_max(3),
    F.unfold: _unfolded,
    **dict.fromkeys((torch.cumprod, Tensor.cumprod), _products),
    F.scaled_dot_product_attention: _attention,
    F.embedding_bag: _bags,
    **dict.fromkeys((torch.amax, Tensor.amax, torch.amin, Tensor.amin), _of_number),
    torch.cdist: _distances,
}
"""Function of torch → the function here."""
