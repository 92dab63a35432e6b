"""The kinds of work of one tensor operation. A clock computes seconds from them."""

import math
from typing import Any

import torch
from torch import Tensor

from edgefl.cost.macs import OpWork, aten
from edgefl.cost.memory import bytes_of
from edgefl.records.work import NO_WORK, Work
from edgefl.util.tensors import tensors_in

_NAMES = """
empty empty_like new_empty new_empty_strided empty_strided _unsafe_view _reshape_alias detach_ resize_ set_ as_strided_ t_ transpose_
squeeze_ unsqueeze_ lift_fresh scalar_tensor sym_size sym_stride sym_numel sym_storage_offset is_same_size
"""
_WITHOUT_WORK = {getattr(aten, name) for name in _NAMES.split() if hasattr(aten, name)} | {
    torch.ops.prim.device,
    torch.ops.prim.layout,
}
_NORMALIZATIONS = ("batch_norm", "layer_norm", "group_norm", "rms_norm")
_RECURRENT = (aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default)


def kinds_of(operation: Any, args: tuple[Any, ...], out: Any, work: OpWork, phase: str) -> Work:
    """Return the work of one dispatched operation by kind.

    Args:
        operation: the overload that torch dispatches.
        args: its arguments.
        out: its result.
        work: its MACs and values.
        phase: ``forward``, ``backward`` or ``update``.
    """
    if operation.is_view or operation.overloadpacket in _WITHOUT_WORK or operation.namespace == "profiler":
        return NO_WORK
    moved_bytes = bytes_of(tensors_in(args)) + bytes_of(tensors_in(out))
    if phase == "update":
        return Work(update_bytes=moved_bytes, product_macs=work.macs, operations=1)
    if operation is aten.convolution.default:
        return _convolution(args[1], args[8], work.macs, moved_bytes, "", 1)
    if operation is aten.convolution_backward.default:
        return _convolution(args[2], args[9], work.macs, moved_bytes, "_backward", sum(map(int, args[10][:2])))
    if operation in _RECURRENT:
        return Work(recurrent_macs=work.macs, product_bytes=moved_bytes, operations=1)
    if work.macs:
        return Work(product_macs=work.macs, product_bytes=moved_bytes, operations=1)
    if any(name in str(operation.overloadpacket) for name in _NORMALIZATIONS):
        return Work(normalization_bytes=moved_bytes, operations=1)
    return Work(elementwise_bytes=moved_bytes, operations=1)


def _convolution(weight: Tensor, groups: int, macs: int, moved_bytes: int, direction: str, results: int) -> Work:
    kind = "grouped" if groups > 1 else "pointwise" if math.prod(weight.shape[2:]) == 1 else "convolution"
    counts = {f"{kind}{direction}_macs": macs, "operations": 1, "convolutions": 1, "packed_weights": results * weight.numel()}
    if kind != "grouped":
        counts["product_bytes"] = moved_bytes
    if not direction:
        counts["kernels"] = int(weight.shape[0]) * int(weight.shape[1])
        if kind == "grouped":
            counts["grouped_bytes"] = moved_bytes
    return Work(**counts)
