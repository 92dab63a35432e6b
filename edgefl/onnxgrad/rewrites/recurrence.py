"""The LSTM whose outputs are projected, which ONNX's operator lacks, step by step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from edgefl.onnxgrad.errors import EdgeflError


def projected_lstm(
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``torch.lstm`` for states (layers · directions, batch, proj_size) and (layers · directions, batch, hidden_size)."""
    x = x.transpose(0, 1) if first else x
    if not isinstance(x.shape[0], int):
        raise EdgeflError("LSTM with proj_size has an ONNX form for a fixed number of steps; pad the sequences to one length")
    each, ends = len(weights) // (layers * (1 + both)), []
    for layer in range(layers):
        outputs = []
        for direction in range(1 + both):
            place = layer * (1 + both) + direction
            own = weights[place * each : (place + 1) * each]
            found, *end = _direction(x, states[0][place], states[1][place], own, biased, bool(direction))
            outputs.append(found)
            ends.append(end)
        x = torch.cat(outputs, 2)
    hidden, cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return x.transpose(0, 1) if first else x, hidden, cell


def _direction(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: Sequence[Tensor], biased: bool, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (steps, batch, proj_size) of one direction, and its last states."""
    of_input, of_hidden, *biases, projection = weights
    gates = x @ of_input.T
    if biased:
        gates = gates + biases[0] + biases[1]
    outputs: list[Tensor] = []
    for step in sorted(range(x.shape[0]), reverse=backwards):
        enter, forget, candidate, leave = (gates[step] + hidden @ of_hidden.T).chunk(4, 1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        hidden = (torch.sigmoid(leave) * torch.tanh(cell)) @ projection.T
        outputs.append(hidden)
    return torch.stack(outputs[::-1] if backwards else outputs), hidden, cell
