"""Attention with a mask. A query that may see no key, such as one of a sample that is padding only, gets 0, as in torch."""

import math

import torch
from torch import Tensor


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
