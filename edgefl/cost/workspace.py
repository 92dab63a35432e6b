"""Memory that a kernel keeps from its forward for its backward pass, which fake tensors do not have: oneDNN's of an LSTM."""

from __future__ import annotations

from typing import Any

import torch

_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_PAGE, _LINE, _ALIAS = 4096, 64, 256


def with_workspace(operation: Any, args: tuple[Any, ...], out: Any) -> Any:
    """Return the result of ``operation`` with a workspace of its real size where a fake kernel left it empty."""
    if operation is not _LSTM or not args[15] or out[3].numel():
        return out
    steps, samples, inputs = args[0].shape
    size = lstm_workspace_bytes(steps, samples, inputs, args[10], args[0].element_size())
    return (*out[:3], torch.empty(size, dtype=torch.uint8, device=args[0].device))


def lstm_workspace_bytes(steps: int, samples: int, inputs: int, hidden: int, element_bytes: int = 4) -> int:
    """Return what oneDNN keeps of one direction of one LSTM layer: seven areas, each a whole number of pages.

    Gates and hidden states of every step; input, hidden and cell states before and after each, with their gradients. Rows are padded
    to cache lines (rnn_utils.cpp of oneDNN 3, ``set_offsets``).

    >>> lstm_workspace_bytes(80, 32, 8, 256), lstm_workspace_bytes(1, 1, 1, 1)
    (40972288, 28672)
    """

    def row(values: int) -> int:
        padded = -(-values * element_bytes // _LINE) * _LINE // element_bytes
        return padded + _LINE // element_bytes if padded % _ALIAS == 0 else padded

    gates = steps * samples * row(4 * hidden) * element_bytes
    states = steps * samples * row(hidden) * element_bytes
    around = 2 * (steps + 1) * samples * row(max(inputs, hidden)) * element_bytes
    cells = 2 * (steps + 1) * samples * hidden * 4  # float32 whatever the rest is
    return sum(-(-area // _PAGE) * _PAGE for area in (gates, states, around, around, around, cells, cells))
