"""LSTM, GRU and RNN, step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Operator, Rule

Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]


def _recurrent(
    node: Operator, cell: Cell, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, initial: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Run ``cell`` over x (steps, batch, inputs) in each direction; return Y (steps, directions, batch, hidden) and last states.

    ``cell`` takes a step's inputs after W (batch, gates·hidden), the states (batch, hidden), R and R's bias, and returns new states.
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


def _check_steps(node: Operator, x: Tensor, lengths: Array | None) -> None:
    steps = x.shape[node.get("layout", 0)]
    if lengths is not None and (lengths != steps).any():
        node.refuse(f"sequence_lens {lengths.tolist()}, expected all {steps}: shorter sequences have no rule")


def _activations(node: Operator, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the activations of one direction, lower case."""
    names = tuple(name.lower() for name in node.get("activations", [])) or default
    if names[: len(default)] * (len(names) // len(default)) != names:
        node.refuse(f"activations {', '.join(names)}: directions that differ have no rule")
    return names[: len(default)]


def _lstm(
    node: Operator, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Array | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peepholes: None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _check_steps(node, x, lengths)
    return _recurrent(node, _lstm_cell, x, w, r, b, (h, c))


def _lstm_cell(gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    i, o, f, new = (gate + F.linear(states[0], r, bias)).chunk(4, -1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(
    node: Operator,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Array | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    _check_steps(node, x, lengths)
    return _recurrent(node, functools.partial(_gru_cell, bool(node.get("linear_before_reset", 0))), x, w, r, b, (h,))


def _gru_cell(late_reset: bool, gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    (h,), size = states, r.shape[-1]
    first, last = (slice(0, 2 * size), slice(2 * size, None))
    bias_first, bias_last = (None, None) if bias is None else (bias[first], bias[last])
    z, reset = torch.sigmoid(gate[:, first] + F.linear(h, r[first], bias_first)).chunk(2, -1)
    memory = reset * F.linear(h, r[last], bias_last) if late_reset else F.linear(reset * h, r[last], bias_last)
    return ((1 - z) * torch.tanh(gate[:, last] + memory) + z * h,)


def _rnn(
    node: Operator,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Array | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    _check_steps(node, x, lengths)
    activation = RNN_ACTIVATIONS[_activations(node, ("tanh",))[0]]
    return _recurrent(node, lambda gate, s, rd, bias: (activation(gate + F.linear(s[0], rd, bias)),), x, w, r, b, (h,))


def _check_lstm(node: Operator) -> None:
    if 7 in node.present or _activations(node, ("sigmoid", "tanh", "tanh")) != ("sigmoid", "tanh", "tanh"):
        node.refuse("peepholes and activations other than sigmoid, tanh, tanh have no rule")
    _check_gates(node)


def _check_gru(node: Operator) -> None:
    if _activations(node, ("sigmoid", "tanh")) != ("sigmoid", "tanh"):
        node.refuse("activations other than sigmoid, tanh have no rule")
    _check_gates(node)


def _check_rnn(node: Operator) -> None:
    if _activations(node, ("tanh",))[0] not in RNN_ACTIVATIONS:
        node.refuse("activations other than tanh and relu have no rule")
    _check_gates(node)


def _check_gates(node: Operator) -> None:
    if node.get("clip") is not None or node.get("input_forget", 0):
        node.refuse("clip and input_forget have no rule")


RNN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}

RULES: dict[str, Rule] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
KNOWN = dict.fromkeys(RULES, (4,))
CHECKS: dict[str, Check] = {"LSTM": _check_lstm, "GRU": _check_gru, "RNN": _check_rnn}
