"""Layers of sequences: LSTM, GRU and RNN, attention with scores of all pairs or as a recurrent state, rotary positions."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Array, Check, Choices, Operator, Rule

Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]


def _recurrent(
    node: Operator, cell: Cell, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, initial: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Run ``cell`` over x (steps, batch, inputs) in each direction; return Y (steps, directions, batch, hidden) and last states.

    ``cell`` maps (product of a step's inputs with W (batch, gates·hidden), states (batch, hidden), R, R's bias) to new states.
    """
    by_batch = node.get("layout", 0)
    if by_batch:
        x, initial = x.transpose(0, 1), [None if h is None else h.transpose(0, 1) for h in initial]
    outputs, lasts = [], []
    for d in range(w.shape[0]):
        backwards = d == 1 or node.get("direction", "forward") == "reverse"
        bias_w, bias_r = (None, None) if b is None else b[d].chunk(2)
        gates = F.linear(x.flip(0) if backwards else x, w[d], bias_w)
        states = tuple(x.new_zeros(x.shape[1], r.shape[-1]) if h is None else h[d] for h in initial)
        steps = []
        for gate in gates.unbind(0):
            states = cell(gate, states, r[d], bias_r)
            steps.append(states[0])
        hidden = torch.stack(steps)
        outputs.append(hidden.flip(0) if backwards else hidden)
        lasts.append(states)
    y, final = torch.stack(outputs, 1), [torch.stack(states) for states in zip(*lasts, strict=True)]
    if by_batch:
        y, final = y.permute(2, 0, 1, 3), [h.transpose(0, 1) for h in final]
    return (y, *final)


def _activations(node: Operator) -> tuple[str, ...]:
    """Return the activations of one direction in lower case; refuse the node if they have no rule or differ between directions."""
    usual, *others = _ACTIVATIONS[node.op]
    names = tuple(name.lower() for name in node.get("activations", [])) or usual
    if names[: len(usual)] * (len(names) // len(usual)) != names:
        node.refuse(f"activations {', '.join(names)}: directions that differ have no rule")
    if names[: len(usual)] not in (usual, *others):
        expected = " or ".join(", ".join(known) for known in (usual, *others))
        node.refuse(f"activations {', '.join(names)} have no rule, expected {expected}")
    return names[: len(usual)]


def _rule(states: int, cell_of: Callable[[Operator], Cell]) -> Rule:
    def rule(
        node: Operator, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Array | None = None,
        *initial: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        steps = x.shape[node.get("layout", 0)]
        if lengths is not None and (lengths != steps).any():
            node.refuse(f"sequence_lens {lengths.tolist()}, expected all {steps}: shorter sequences have no rule")
        return _recurrent(node, cell_of(node), x, w, r, b, (*initial, None, None)[:states])

    return rule


def _lstm_cell(gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    i, o, f, new = (gate + F.linear(states[0], r, bias)).chunk(4, -1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_cell(late_reset: bool, gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    (h,), size = states, r.shape[-1]
    first, last = (slice(0, 2 * size), slice(2 * size, None))
    bias_first, bias_last = (None, None) if bias is None else (bias[first], bias[last])
    z, reset = torch.sigmoid(gate[:, first] + F.linear(h, r[first], bias_first)).chunk(2, -1)
    memory = reset * F.linear(h, r[last], bias_last) if late_reset else F.linear(reset * h, r[last], bias_last)
    return ((1 - z) * torch.tanh(gate[:, last] + memory) + z * h,)


def _rnn_cell(node: Operator) -> Cell:
    activation = {"tanh": torch.tanh, "relu": torch.relu}[_activations(node)[0]]
    return lambda gate, states, r, bias: (activation(gate + F.linear(states[0], r, bias)),)


def _check(node: Operator) -> None:
    if node.op == "LSTM" and 7 in node.present:
        node.refuse("peepholes have no rule")
    _activations(node)
    if node.get("clip") is not None or node.get("input_forget", 0):
        node.refuse("clip and input_forget have no rule")


_ACTIVATIONS = {"LSTM": (("sigmoid", "tanh", "tanh"),), "GRU": (("sigmoid", "tanh"),), "RNN": (("tanh",), ("relu",))}


_COMMON = "activation_alpha activation_beta activations clip direction hidden_size layout"


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
    "LSTM": _rule(2, lambda node: _lstm_cell),
    "GRU": _rule(1, lambda node: functools.partial(_gru_cell, bool(node.get("linear_before_reset", 0)))),
    "RNN": _rule(1, _rnn_cell),
    "Attention": _attention, "LinearAttention": _linear_attention, "CausalConvWithState": _causal_convolution,
    "RotaryEmbedding": _rotated,
}  # fmt: skip
ATTRIBUTES = {
    "LSTM": f"{_COMMON} input_forget", "GRU": f"{_COMMON} linear_before_reset", "RNN": _COMMON,
    "Attention": "is_causal kv_num_heads left_window_size q_num_heads qk_matmul_output_mode right_window_size scale softcap"
    " softmax_precision",
    "LinearAttention": "chunk_size kv_num_heads q_num_heads scale update_rule", "CausalConvWithState": "activation",
    "RotaryEmbedding": "interleaved num_heads rotary_embedding_dim",
}  # fmt: skip
CHOICES: dict[str, Choices] = {
    **{name: {"direction": ("forward", "reverse", "bidirectional")} for name in _ACTIVATIONS},
    "Attention": {"qk_matmul_output_mode": (0, 1, 2, 3), "softmax_precision": tuple(DTYPES)},
    "LinearAttention": {"update_rule": ("linear", "gated", "delta", "gated_delta")},
    "CausalConvWithState": {"activation": ("none", "silu", "swish")},
}
CHECKS: dict[str, Check] = dict.fromkeys(_ACTIVATIONS, _check)
KNOWN = dict.fromkeys(_ACTIVATIONS, (4,))
WEIGHTS = dict.fromkeys(_ACTIVATIONS, (1, 2, 3))
UNTRAINED = {"RotaryEmbedding": (1, 2)}
