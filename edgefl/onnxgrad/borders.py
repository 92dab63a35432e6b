"""Functions of torch whose derivative at a border, such as a bound, a tie or 0, differs from that of their usual form in ONNX.

Each function here computes an operator of torch, in operators whose gradient rules give torch's own derivative there, or in an operator of
:mod:`edgefl.onnxgrad.gradients.own`. They replace the operators in a traced graph, before torch's exporter sees them. Attention with a mask
is one of them: a query that may see no key, such as one of a sample that is padding only, gets 0.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.detached import held, onnx_node


def attended(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the attention weights of ``scores`` (…, queries, keys), and 1 for each query that may see a key, else 0.

    Args:
        scores: products of queries and keys.
        mask: bool, True where a query may see a key, or numbers that are added, −∞ where it may not; None: every query sees all keys.

    The second tensor, (…, queries, 1), is to be multiplied with the result; None without a mask. The weights themselves are finite: a
    row of −∞ would have NaN as its softmax, and so would all gradients.
    """
    if mask is None:
        return scores.softmax(-1), None
    lowest = torch.finfo(scores.dtype).min
    if mask.dtype == torch.bool:
        seen, masked = mask, scores.masked_fill(~mask, lowest)
    else:
        seen, masked = mask > -math.inf, scores + mask.clamp(min=lowest)
    return masked.softmax(-1), seen.any(-1, keepdim=True).to(scores.dtype)


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute ``torch.nn.functional.scaled_dot_product_attention`` with a mask; without one, the exporter has a form of its own."""
    if attn_mask is None or dropout_p or query.dim() != 4:
        return NotImplemented
    if enable_gqa:
        key, value = (repeated(x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)  # torch scales queries and keys alike
    weights, seen = attended((query * root) @ (key.transpose(-2, -1) * root), attn_mask)
    found = weights @ value
    return found if seen is None else found * seen


def repeated(x: Tensor, times: int) -> Tensor:
    """Return (…, heads, steps, channels) with every head ``times`` times in a row."""
    return x.unsqueeze(-3).expand(*x.shape[:-2], times, *x.shape[-2:]).flatten(-4, -3)


aten = torch.ops.aten


def _own(kind: str, *inputs: Tensor, shape: Any = None, **attributes: Any) -> Tensor:
    """Return the result of an operator of :mod:`edgefl.onnxgrad.gradients.own`, by default of the first input's shape."""
    return onnx_node(f"edgefl::{kind}", inputs, inputs[0].shape if shape is None else shape, **attributes)


def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Bounds have slope 0; those of clamp have slope 1."""
    return _own("HardTanh", x, low=float(min_val), high=float(max_val))


def _clamped(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """The exporter writes a single bound as a maximum, which shares ties."""
    bounds = {name: float(value) for name, value in (("low", min), ("high", max)) if value is not None}
    return _own("Clamp", x, **bounds) if x.is_floating_point() else NotImplemented


def _clamped_by_tensors(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """A bound gets the gradient only where it replaces the value; of two equal bounds, the lower one gets none."""
    if not x.is_floating_point():
        return NotImplemented
    if min is not None:
        x = torch.where(x < min, min if max is None else torch.where(min < max, min, held(min)), x)
    return x if max is None else torch.where(x > max, max, x)


def _extreme(kind: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return max or min along an axis: the first extreme gets the gradient; amax and amin share it."""

    def found(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if x.dim() == 0 or not x.is_floating_point():
            return NotImplemented
        axis = dim % x.dim()
        sizes = [*x.shape[:axis], *[1] * keepdim, *x.shape[axis + 1 :]]
        place = x.argmax(axis, keepdim) if kind == "FirstMax" else x.argmin(axis, keepdim)
        return _own(kind, x, shape=sizes, axis=axis, keepdims=int(keepdim)), place

    return found


def _greater(x: Tensor, other: Tensor) -> Tensor:
    """Of equal entries the first gets the gradient; those of maximum share it. NaN is left out."""
    return torch.where((x >= other) | other.isnan(), x, other)


def _less(x: Tensor, other: Tensor) -> Tensor:
    return torch.where((x <= other) | other.isnan(), x, other)


def _beside_zero(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``function`` of ``x``, and 0 with slope 0 where that is 0; the slope of the function may be infinite there."""
    empty = x == 0
    return torch.where(empty, torch.zeros_like(x), function(torch.where(empty, torch.ones_like(x), x)))


def _root(square: Tensor) -> Tensor:
    return _beside_zero(square, torch.sqrt)


def _deviation_and_mean(x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, *args, **options)
    return _root(variance), mean


def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """A p-norm has slope 0 by entries that are 0, and where it is 0 itself. The exporter's forms of 0, 1, 2 and ∞ have that already."""
    if ord in (0, 1, 2, math.inf, -math.inf) or dtype is not None or not x.is_floating_point():
        return NotImplemented
    axes = list(range(x.dim())) if dim is None else dim
    powers = _beside_zero(x.abs(), lambda size: size.pow(ord))
    return _beside_zero(powers.sum(axes, keepdim) if x.dim() else powers, lambda total: total.pow(1 / ord))


def exact_sigmoid(x: Tensor) -> Tensor:
    """Compute a sigmoid that is exact near 0, such as one whose log is taken; runtimes round it to 0 below −18."""
    return _own("ExactSigmoid", x)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Logs are at least −100, and the derivative divides by x(1 − x), but at least by 1e-12."""
    each = _own("BinaryCrossEntropy", x, target)
    each = each if weight is None else each * weight
    return each.mean() if reduction == 1 else each.sum() if reduction == 2 else each


def _log_add_exp(x: Tensor, other: Tensor) -> Tensor:
    """Compute log(eˣ + eʸ) from the larger one, so that no power is infinite."""
    apart = torch.where(x == other, torch.zeros_like(x - other), x - other)  # ∞ − ∞ would be NaN
    return torch.maximum(x, other) + F.softplus(-apart.abs())


def _angle(y: Tensor, x: Tensor) -> Tensor:
    """Compute atan2(y, x) from the quotient that is at most 1; the slope is 0 where both are 0."""
    y, x = torch.broadcast_tensors(y, x)
    flat, zero = x.abs() >= y.abs(), torch.zeros_like(x)
    above, below = torch.where(flat, y, x), torch.where(flat, x, y)
    empty = below == 0
    own = torch.where(empty, zero, above) / torch.where(empty, torch.ones_like(x), below)
    turn = torch.where(y < 0, torch.full_like(x, -math.pi), torch.full_like(x, math.pi))
    return torch.where(flat, own.atan() + torch.where(x < 0, turn, zero), turn / 2 - own.atan())


def _sinc(x: Tensor) -> Tensor:
    empty = x == 0
    turn = torch.where(empty, torch.ones_like(x), x) * math.pi
    return torch.where(empty, torch.ones_like(x), turn.sin() / turn)


BORDERS: dict[Any, Callable[..., Any]] = {
    aten.hardtanh.default: _hardtanh,
    aten.relu6.default: lambda x: _hardtanh(x, 0.0, 6.0),
    **dict.fromkeys((aten.clamp.default, aten.clip.default, aten.clamp_min.default), _clamped),
    aten.clamp_max.default: lambda x, max: _clamped(x, None, max),
    **dict.fromkeys((aten.clamp.Tensor, aten.clip.Tensor, aten.clamp_min.Tensor), _clamped_by_tensors),
    aten.clamp_max.Tensor: lambda x, max: _clamped_by_tensors(x, None, max),
    aten.max.dim: _extreme("FirstMax"),
    aten.min.dim: _extreme("FirstMin"),
    aten.fmax.default: _greater,
    aten.fmin.default: _less,
    # Equal values have no slope.
    **dict.fromkeys(
        (aten.std.default, aten.std.dim, aten.std.correction), lambda x, *args, **options: _root(torch.var(x, *args, **options))
    ),
    **dict.fromkeys((aten.std_mean.default, aten.std_mean.dim, aten.std_mean.correction), _deviation_and_mean),
    aten.linalg_vector_norm.default: _norm,
    # The exporter writes the log of a sigmoid, which runtimes round to 0.
    aten.log_sigmoid.default: lambda x: -F.softplus(-x),
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.logaddexp.default: _log_add_exp,
    aten.logaddexp2.default: lambda x, other: _log_add_exp(x * math.log(2), other * math.log(2)) / math.log(2),
    aten.atan2.default: _angle,
    aten.sinc.default: _sinc,
    aten.scaled_dot_product_attention.default: masked_attention,
}
"""Operator of torch → the function here; it returns NotImplemented for arguments with which the operator is exported as it is."""
