"""Matrix products, attention, normalizations and recurrent layers."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Operator, Rule, simple


def _gemm(node: Operator, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (m.t() if node.get(key, 0) else m for m, key in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return a @ b if alpha == 1 else alpha * (a @ b)


def _attention(node: Operator, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *cache: None) -> Tensor:
    """Compute scaled dot-product attention of tensors (batch, heads, steps, size) or (batch, steps, heads·size)."""
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


def _batch_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    epsilon, momentum = node.get("epsilon", 1e-5), 1 - node.get("momentum", 0.9)
    training = node.training or bool(node.get("training_mode", 0))
    return F.batch_norm(x, mean, var, scale, bias, training, momentum, epsilon)


def _group_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.get("num_groups")
    if node.opset < 21:  # one scale for each group; newer sets have one for each channel
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _layer_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape, epsilon = list(x.shape[node.get("axis", -1) :]), node.get("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        return F.layer_norm(x, shape, scale, bias, epsilon)
    y = F.layer_norm(x, shape, None, None, epsilon) * scale
    return y if bias is None else y + bias


STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}


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


RULES: dict[str, Rule] = {
    "MatMul": simple(torch.matmul), "Gemm": _gemm, "Attention": _attention,
    "Einsum": lambda node, *operands: torch.einsum(node.get("equation"), *operands),
    "BatchNormalization": _batch_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "InstanceNormalization": lambda node, x, scale, bias: F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5)),
    "RMSNormalization": lambda node, x, scale: (
        F.rms_norm(x, list(x.shape[node.get("axis", -1) :]), None, node.get("epsilon", 1e-5)) * scale
    ),
    "LSTM": _rule(2, lambda node: _lstm_cell),
    "GRU": _rule(1, lambda node: functools.partial(_gru_cell, bool(node.get("linear_before_reset", 0)))),
    "RNN": _rule(1, _rnn_cell),
}  # fmt: skip
KNOWN = dict.fromkeys(_ACTIVATIONS, (4,))
CHECKS: dict[str, Check] = {
    "Attention": _check_attention,
    **dict.fromkeys(("BatchNormalization", "LayerNormalization"), Operator.only_first_output),
    **dict.fromkeys(_ACTIVATIONS, _check),
}  # fmt: skip
