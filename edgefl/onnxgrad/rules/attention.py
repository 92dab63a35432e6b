"""Attention, with scores of all pairs or as a recurrent state, and rotary positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Choices, Operator, Rule


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (batch, heads, steps, size) of (batch, steps, heads·size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attention(
    node: Operator, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute scaled dot-product attention of tensors (batch, heads, steps, size) or (batch, steps, heads·size).

    A query without an allowed key gets 0, as in ONNX.
    """
    flat = q.dim() == 3
    if flat:
        heads = node.get("q_num_heads"), node.get("kv_num_heads"), node.get("kv_num_heads")
        q, k, v = (_split_heads(t, n) for t, n in zip((q, k, v), heads, strict=True))
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    keys, values = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) if t.shape[1] != q.shape[1] else t for t in (k, v))
    scores = q @ keys.transpose(-1, -2) * node.get("scale", q.shape[-1] ** -0.5)
    told = [scores]
    if cap := node.get("softcap", 0.0):
        scores = cap * torch.tanh(scores / cap)
    told.append(scores)
    allowed = _allowed(node, scores, past_k, lengths)
    if mask is not None:
        mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]), value=False if mask.dtype == torch.bool else -math.inf)
        if mask.dtype != torch.bool:
            scores = scores + mask
            allowed = (mask != -math.inf) if allowed is None else allowed & (mask != -math.inf)
        else:
            allowed = mask if allowed is None else allowed & mask
    shares = _softmax(node, scores, allowed)
    told += [scores if allowed is None else scores.masked_fill(~allowed, -math.inf), shares]
    y = shares @ values
    return y.transpose(1, 2).flatten(2) if flat else y, k, v, told[node.get("qk_matmul_output_mode", 0)]


def _allowed(node: Operator, scores: Tensor, past: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """Return which keys each query may read by position (…, queries, keys); None if all."""
    queries, keys = scores.shape[-2:]
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    rows, columns = torch.arange(queries, device=scores.device)[:, None], torch.arange(keys, device=scores.device)
    ahead = columns - rows - (past.shape[2] if past is not None else 0)
    if lengths is not None:
        ahead = columns - rows - (lengths - queries).reshape(-1, 1, 1, 1)
    tests = [] if lengths is None else [columns < lengths.reshape(-1, 1, 1, 1)]
    tests += [] if left < 0 else [ahead >= -left]
    tests += [] if right < 0 else [ahead <= right]
    return None if not tests else tests[0] if len(tests) == 1 else torch.stack(torch.broadcast_tensors(*tests)).all(0)


def _softmax(node: Operator, scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Return each query's shares of the keys; 0 where no key is allowed, with a gradient of 0."""
    precise = DTYPES.get(node.get("softmax_precision"), scores.dtype)
    if allowed is None:
        return scores.to(precise).softmax(-1).to(scores.dtype)
    reads = allowed.any(-1, keepdim=True)
    shares = scores.to(precise).masked_fill(~allowed & reads, -math.inf).masked_fill(~reads, 0.0).softmax(-1)
    return shares.to(scores.dtype).masked_fill(~reads, 0.0)


def _linear_attention(
    node: Operator, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention by a state (batch, heads, key size, value size) that each step decays, corrects, writes and reads."""
    heads, kind = node.get("kv_num_heads"), node.get("update_rule", "gated_delta")
    q, k, v = (_split_heads(t, n) for t, n in ((q, node.get("q_num_heads")), (k, heads), (v, heads)))
    if state is None:
        state = q.new_zeros(q.shape[0], heads, k.shape[-1], v.shape[-1])
    scale = node.get("scale", 0.0) or k.shape[-1] ** -0.5
    forget = None if decay is None else _split_heads(decay, heads).exp()
    rates = None if beta is None else beta.transpose(1, 2).unsqueeze(-1)
    outputs = []
    for step in range(q.shape[2]):
        key, value = k[:, :, step], v[:, :, step]
        if forget is not None:
            state = state * forget[:, :, step].unsqueeze(-1)
        if rates is not None:
            value = rates[:, :, step] * (value - (key.unsqueeze(-2) @ state).squeeze(-2))
        state = state + key.unsqueeze(-1) * value.unsqueeze(-2)
        read = state.repeat_interleave(q.shape[1] // heads, 1) if q.shape[1] != heads else state
        outputs.append(scale * (q[:, :, step].unsqueeze(-2) @ read).squeeze(-2))
    if (forget is None) == kind.startswith("gated") or (rates is None) == kind.endswith("delta"):
        node.refuse(f"update_rule {kind!r} does not fit its inputs decay and beta")
    return torch.stack(outputs, 1).flatten(2), state


def _causal_convolution(
    node: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None, past: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a convolution of each channel (batch, channels, steps) with the values before it."""
    before = weight.shape[2] - 1
    padded = F.pad(x, (before, 0)) if past is None else torch.cat([past, x], 2)
    y = F.conv1d(padded, weight, bias, groups=x.shape[1])
    return y if node.get("activation", "none") == "none" else F.silu(y), padded[:, :, padded.shape[2] - before :]


def _rotated(node: Operator, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotate pairs of values of (batch, heads, steps, size) or (batch, steps, heads·size) by angles of their positions."""
    flat = x.dim() == 3
    if flat:
        x = _split_heads(x, node.get("num_heads"))
    if positions is not None:
        cos, sin = (F.embedding(positions, t) for t in (cos, sin))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    size = node.get("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    pairs = bool(node.get("interleaved", 0))
    a, b = (turned[..., 0::2], turned[..., 1::2]) if pairs else turned.chunk(2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    turned = torch.stack([real, imaginary], -1).flatten(-2) if pairs else torch.cat([real, imaginary], -1)
    y = torch.cat([turned, rest], -1) if rest.shape[-1] else turned
    return y.transpose(1, 2).flatten(2) if flat else y


RULES: dict[str, Rule] = {
    "Attention": _attention, "LinearAttention": _linear_attention, "CausalConvWithState": _causal_convolution,
    "RotaryEmbedding": _rotated,
}  # fmt: skip
ATTRIBUTES = {
    "Attention": "is_causal kv_num_heads left_window_size q_num_heads qk_matmul_output_mode right_window_size scale softcap"
    " softmax_precision",
    "LinearAttention": "chunk_size kv_num_heads q_num_heads scale update_rule",
    "CausalConvWithState": "activation",
    "RotaryEmbedding": "interleaved num_heads rotary_embedding_dim",
}
UNTRAINED = {"RotaryEmbedding": (1, 2)}
CHOICES: dict[str, Choices] = {
    "Attention": {"qk_matmul_output_mode": (0, 1, 2, 3), "softmax_precision": tuple(DTYPES)},
    "LinearAttention": {"update_rule": ("linear", "gated", "delta", "gated_delta")},
    "CausalConvWithState": {"activation": ("none", "silu", "swish")},
}
