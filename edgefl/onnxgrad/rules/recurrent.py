"""Recurrent layers: LSTM, GRU and RNN."""

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Choices, Operator, Rule

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
    "LSTM": _rule(2, lambda node: _lstm_cell),
    "GRU": _rule(1, lambda node: functools.partial(_gru_cell, bool(node.get("linear_before_reset", 0)))),
    "RNN": _rule(1, _rnn_cell),
}
_COMMON = "activation_alpha activation_beta activations clip direction hidden_size layout"
ATTRIBUTES = {"LSTM": f"{_COMMON} input_forget", "GRU": f"{_COMMON} linear_before_reset", "RNN": _COMMON}
KNOWN = dict.fromkeys(_ACTIVATIONS, (4,))
WEIGHTS = dict.fromkeys(_ACTIVATIONS, (1, 2, 3))
CHOICES: dict[str, Choices] = {name: {"direction": ("forward", "reverse", "bidirectional")} for name in _ACTIVATIONS}
CHECKS: dict[str, Check] = dict.fromkeys(_ACTIVATIONS, _check)
