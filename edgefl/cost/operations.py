"""A tensor operation: the layer that it belongs to, forward and backward, and its kinds of work, from which a clock computes seconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from edgefl.cost.macs import OpWork, aten
from edgefl.cost.memory import bytes_of
from edgefl.records.work import NO_WORK, Work
from edgefl.util.tensors import tensors_in

NETWORK = "(network)"
INPUT = "(input)"
LOSS = "(loss)"
OPTIMIZER = "(optimizer)"
_LEAF = 2**63  # autograd numbers the nodes that accumulate a parameter's gradient from the top


class LayerTracker:
    """Follows a network's modules while they run: :meth:`current` names the one that an operation is part of.

    In the forward pass it is the innermost named module; work in the outermost ``forward`` itself is :data:`NETWORK`, outside of it
    :data:`LOSS`. Autograd numbers the nodes of its graph in the order of the forward pass; a node of the backward pass belongs to
    the module that ran when its number was given out.
    """

    def __init__(self, network: nn.Module) -> None:
        self._names = {module: name or NETWORK for name, module in network.named_modules()}
        self._of_parameter = {id(p): name.rpartition(".")[0] or NETWORK for name, p in network.named_parameters()}
        self._stack: list[str] = []
        self._starts: list[int] = [0]
        self._layers: list[str] = [LOSS]
        self.outside = LOSS

    def __enter__(self) -> LayerTracker:
        enter, leave = self._enter, self._leave
        self._handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if module in self._names:
            self._stack.append(self._names[module])
            self._change()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module in self._names and self._stack:
            self._stack.pop()
            self._change()

    def _change(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._layers.append(self._stack[-1] if self._stack else LOSS)

    def current(self) -> str:
        """Return the layer that runs now."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return self.outside
        number = node._sequence_nr()
        if number >= _LEAF:
            parameter = getattr(node, "variable", None)
            return self._of_parameter.get(id(parameter), LOSS) if isinstance(parameter, Tensor) else LOSS
        return self._layers[bisect_right(self._starts, number) - 1]


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
