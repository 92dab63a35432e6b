"""Memory that torch's kernels allocate on a CPU for themselves while they run, besides their results.

A rule for each operation says how many bytes more than before and after are alive at once, from its arguments and results alone. An
operation without a rule needs none, or less than a cache line for each row. The rules are those of torch 2.13 on one thread.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.cost.bilinear import buffer_bytes
from edgefl.cost.conv_workspace import backward_bytes, bytes_of_one, forward_bytes

aten = torch.ops.aten
_PAGE, _LINE, _ALIAS = 4096, 64, 256
_LSTM_HEAD_BYTES = 4664


def workspace_bytes(operation: Any, args: Sequence[Any], out: Any) -> int | None:
    """Return the bytes that ``operation`` takes on a CPU while it runs, besides ``out``; 0 on other devices, None without a rule.

    >>> x, weight = torch.zeros(8, 16, 8, 8), torch.zeros(16, 16, 3, 3)
    >>> plain = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    >>> workspace_bytes(aten.convolution.default, (x, weight, *plain), aten.convolution(x, weight, *plain))
    41984
    """
    rule = _RULES.get(operation)
    if rule is None:
        return None
    first = next((one for one in args if isinstance(one, Tensor)), None)
    return rule(args, out) if first is not None and first.device.type == "cpu" else 0


def _copy(*tensors: Tensor | None) -> int:
    """Bytes of copies of those that are not contiguous."""
    return sum(bytes_of_one(tensor) for tensor in tensors if tensor is not None and not tensor.is_contiguous())


def _batch_norm(args: Sequence[Any], out: Any) -> int:
    x = args[0]
    return int((2 if x.is_contiguous() and x.dim() > 2 else 3) * x.shape[1] * x.element_size())


def _batch_norm_backward(args: Sequence[Any], out: Any) -> int:
    dy, x = args[:2]
    if out[0] is None or any(all(t.is_contiguous(memory_format=order) for t in (dy, x)) for order in _orders(x)):
        return bytes_of_one(x)
    return 0


def _orders(x: Tensor) -> tuple[torch.memory_format, ...]:
    return (torch.contiguous_format, torch.channels_last) if x.dim() == 4 else (torch.contiguous_format,)


def _layer_norm_backward(args: Sequence[Any], out: Any) -> int:
    dy, x, shape = args[:3]
    return _copy(dy, x) + int(2 * math.prod(shape) * x.element_size())


def _group_norm_backward(args: Sequence[Any], out: Any) -> int:
    return int(2 * args[5] * args[6] * args[1].element_size())


def _group_norm(args: Sequence[Any], out: Any) -> int:
    return 0 if args[0].is_contiguous() else int(2 * args[3] * args[4] * args[0].element_size())


def _attention(args: Sequence[Any], out: Any) -> int:
    """Scores and sums of one block of queries (FlashAttentionKernel.cpp of torch)."""
    query, key = args[:2]
    rows, columns = _blocks(query, key)
    return int((rows * columns + 2 * rows + rows * query.shape[-1]) * 4)


def _attention_backward(args: Sequence[Any], out: Any) -> int:
    dy, query, key = args[:3]
    rows, columns = _blocks(query, key)
    return int(2 * rows * columns * 4 + rows * 4) + _copy(dy.transpose(1, 2))


def _blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    length = query.shape[2]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(rows, length), min(512, key.shape[2])


def _embedding_bag(args: Sequence[Any], out: Any) -> int:
    return max(0, 8 * (args[1].numel() + 1) - bytes_of_one(out[0]) // 16)


def _upsampled(args: Sequence[Any], out: Tensor) -> int:
    """Channels are brought last, and back."""
    return bytes_of_one(args[0]) + bytes_of_one(out) if args[0].is_contiguous() and args[0].shape[1] > 3 else 0


def _lstm(args: Sequence[Any], out: Any) -> int:
    steps, samples, inputs = args[0].shape
    hidden, size = args[10], args[0].element_size()
    weights = (inputs + hidden) * _row(4 * hidden, size) * size
    return int(weights + _lstm_scratch(steps, samples, hidden, size) + 4 * hidden * size) + _copy(args[0])


def _lstm_backward(args: Sequence[Any], out: Any) -> int:
    x, outputs, hidden = args[0], args[10], args[15]
    (steps, samples, inputs), size = x.shape, x.element_size()
    gradients = (inputs + hidden) * _row(4 * hidden, size) * size
    weights = sum(4 * hidden * _row(n, size) * size for n in (inputs, hidden) if _row(n, size) != n)
    ends = 2 * samples * hidden * size + 4 * hidden * size
    return int(weights + gradients + ends + _lstm_scratch(steps, samples, hidden, size)) + _copy(outputs)


def _lstm_scratch(steps: int, samples: int, hidden: int, element_bytes: int) -> int:
    areas = steps * samples * _row(4 * hidden, element_bytes), samples * _row(hidden, element_bytes)
    gates, states = (_paged(area * element_bytes) for area in areas)
    return gates + 2 * states + _LSTM_HEAD_BYTES


def kept(operation: Any, args: Sequence[Any], out: Any) -> Any:
    """Return ``out`` with a tensor of its real size if a fake LSTM kernel left it empty: what oneDNN keeps for the backward pass."""
    if operation is not aten.mkldnn_rnn_layer.default or not args[15] or out[3].numel():
        return out
    steps, samples, inputs = args[0].shape
    size = lstm_kept_bytes(steps, samples, inputs, args[10], args[0].element_size())
    return (*out[:3], torch.empty(size, dtype=torch.uint8, device=args[0].device))


def lstm_kept_bytes(steps: int, samples: int, inputs: int, hidden: int, element_bytes: int = 4) -> int:
    """Return what oneDNN keeps of one direction of one LSTM layer: seven areas, each a whole number of pages.

    Gates and hidden states of every step; input, hidden and cell states before and after each, with their gradients. Rows are padded
    to cache lines (rnn_utils.cpp of oneDNN 3, ``set_offsets``).

    >>> lstm_kept_bytes(80, 32, 8, 256), lstm_kept_bytes(1, 1, 1, 1)
    (40972288, 28672)
    """
    gates = steps * samples * _row(4 * hidden, element_bytes) * element_bytes
    states = steps * samples * _row(hidden, element_bytes) * element_bytes
    around = 2 * (steps + 1) * samples * _row(max(inputs, hidden), element_bytes) * element_bytes
    cells = 2 * (steps + 1) * samples * hidden * 4  # float32 whatever the rest is
    return sum(_paged(area) for area in (gates, states, around, around, around, cells, cells))


def _row(values: int, element_bytes: int) -> int:
    padded = -(-values * element_bytes // _LINE) * _LINE // element_bytes
    return padded + _LINE // element_bytes if padded % _ALIAS == 0 else padded


def _paged(area_bytes: int) -> int:
    return -(-area_bytes // _PAGE) * _PAGE


_RULES: dict[Any, Callable[[Sequence[Any], Any], int]] = {
    aten.convolution.default: forward_bytes,
    aten.convolution_backward.default: backward_bytes,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: lambda args, out: _copy(args[0]),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten._safe_softmax.default: lambda args, out: out.numel() + out.numel() // max(1, out.shape[args[1]]),
    aten.embedding.default: lambda args, out: _copy(args[1]),
    aten.embedding_dense_backward.default: lambda args, out: _copy(args[0], args[1]),
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_backward.default: lambda args, out: 4 * bytes_of_one(args[1]) + 8,
    aten.upsample_nearest2d.default: _upsampled,
    aten.upsample_bilinear2d.default: _upsampled,
    aten.im2col.default: lambda args, out: bytes_of_one(args[0]),
    aten.logsumexp.default: lambda args, out: bytes_of_one(args[0]),
    aten.cumsum.default: lambda args, out: bytes_of_one(out) if out.dtype != args[0].dtype else 0,
    aten._trilinear.default: buffer_bytes,
    aten._euclidean_dist.default: lambda args, out: 2 * (bytes_of_one(args[0]) + bytes_of_one(args[1])),
    aten.mkldnn_rnn_layer.default: _lstm,
    aten.mkldnn_rnn_layer_backward.default: _lstm_backward,
}
