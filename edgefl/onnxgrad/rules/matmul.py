"""Matrix products, and attention, which is made of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule, simple


def _gemm(node: Operator, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (m.t() if node.get(key, 0) else m for m, key in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return a @ b if alpha == 1 else alpha * (a @ b)


def _attention(node: Operator, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *cache: None) -> Tensor:
    """Scaled dot-product attention: (batch, heads, steps, size), or (batch, steps, heads·size)."""
    flat = q.dim() == 3
    if flat:
        heads = node.get("q_num_heads"), node.get("kv_num_heads"), node.get("kv_num_heads")
        q, k, v = (t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in zip((q, k, v), heads, strict=True))
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * node.get("scale", q.shape[-1] ** -0.5)
    if node.get("is_causal", 0):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) if flat else y


def _check_attention(node: Operator) -> None:
    node.only_first_output()
    if any(slot > 3 for slot in node.present) or node.get("softcap", 0.0):
        node.refuse("a cache of keys and softcap have no rule")
    if max(node.get("left_window_size", -1), node.get("right_window_size", -1)) >= 0:
        node.refuse("a window of positions has no rule")


RULES: dict[str, Rule] = {
    "MatMul": simple(torch.matmul), "Gemm": _gemm, "Attention": _attention,
    "Einsum": lambda node, *operands: torch.einsum(node.get("equation"), *operands),
}  # fmt: skip
CHECKS: dict[str, Check] = {"Attention": _check_attention}
