"""Multiply-accumulates of tensor operations, in three tables: counted, ignored for a written reason, and unsupported.

A MAC is one multiplication and one addition of a convolution or matrix product. The operations are those that torch dispatches, so a
layer counts as often as it runs, and a backward pass counts the gradients that it really computes: none for the first layer's input.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _convolution(args: tuple[Any, ...], out: Tensor) -> int:
    x, weight, transposed = args[0], args[1], args[6]
    # Each output value sums over the kernel and its input channels; a transposed one is counted from its input.
    values = x if transposed else out
    return values.numel() * math.prod(weight.shape[1:])


def _convolution_backward(args: tuple[Any, ...], out: tuple[Tensor | None, ...]) -> int:
    gradient, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    values = x if transposed else gradient
    # The input's and the weight's gradient each revisit every product of the forward pass once.
    return (int(mask[0]) + int(mask[1])) * values.numel() * math.prod(weight.shape[1:])


def _product(first: int) -> Callable[[tuple[Any, ...], Tensor], int]:
    """Count a matrix product: each output value sums over the last dimension of argument ``first``."""
    return lambda args, out: out.numel() * int(args[first].shape[-1])


COUNTED: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _product(0),
    aten.bmm.default: _product(0),
    aten.mv.default: _product(0),
    aten.addmm.default: _product(1),
    aten.baddbmm.default: _product(1),
}

REASON_MOVES = "moves, creates or reinterprets values"
REASON_REDUCES = "sums or compares values, no product of two tensors"
REASON_NORMALISES = "element-wise and reductions: a few operations a value, counted apart from MACs"
REASON_LOOKS_UP = "reads rows or positions"
REASON_BOOKKEEPING = "asks for a device or marks a profile"

IGNORED: dict[Any, str] = {
    **dict.fromkeys(
        [aten.clone, aten.copy_, aten._to_copy, aten.empty, aten.empty_like, aten.zeros, aten.zeros_like, aten.ones, aten.new_zeros,
         aten.ones_like, aten.full, aten.full_like, aten.fill_, aten.zero_, aten.cat, aten.stack, aten.constant_pad_nd, aten._unsafe_view,
         aten.new_empty, aten.new_empty_strided, aten.empty_strided, aten.select_backward, aten.slice_backward, aten.scalar_tensor,
         aten.lift_fresh, aten.arange, aten.resize_, aten.set_],
        REASON_MOVES,
    ),
    **dict.fromkeys(
        [aten.sum, aten.mean, aten.amax, aten.amin, aten.max, aten.argmax, aten.var, aten.var_mean, aten._adaptive_avg_pool2d,
         aten._adaptive_avg_pool2d_backward, aten.avg_pool2d, aten.avg_pool2d_backward, aten.max_pool2d_with_indices,
         aten.max_pool2d_with_indices_backward, aten._local_scalar_dense],
        REASON_REDUCES,
    ),
    **dict.fromkeys(
        [aten.native_group_norm, aten.native_group_norm_backward, aten.native_batch_norm, aten.native_batch_norm_backward,
         aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training, aten.native_layer_norm,
         aten.native_layer_norm_backward, aten._softmax, aten._softmax_backward_data, aten._log_softmax,
         aten._log_softmax_backward_data, aten.nll_loss_forward, aten.nll_loss_backward],
        REASON_NORMALISES,
    ),
    **dict.fromkeys([aten.index, aten.index_select, aten.gather, aten.embedding, aten.embedding_dense_backward], REASON_LOOKS_UP),
    **dict.fromkeys(
        [torch.ops.prim.device, torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit],
        REASON_BOOKKEEPING,
    ),
}  # fmt: skip


def count(operation: Any, args: tuple[Any, ...], out: Any) -> int | None:
    """Return the MACs of one dispatched operation, 0 for an ignored one, None for one that is in no table."""
    if operation in COUNTED:
        return COUNTED[operation](args, out)
    pointwise = torch.Tag.pointwise in operation.tags
    known = pointwise or operation.is_view or operation.overloadpacket in IGNORED
    return 0 if known else None


class MacCounter:
    """Sums MACs by phase and remembers operations that no table knows."""

    def __init__(self) -> None:
        self.phase = "forward"
        self.macs: Counter[str] = Counter()
        self.uncounted: set[str] = set()

    def add(self, operation: Any, args: tuple[Any, ...], out: Any) -> None:
        """Count one dispatched operation under the current phase."""
        macs = count(operation, args, out)
        if macs is None:
            self.uncounted.add(str(operation.overloadpacket))
        else:
            self.macs[self.phase] += macs
