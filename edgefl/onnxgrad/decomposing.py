"""Operations without an ONNX form replaced where they stand, so that the exporter need not trace the whole graph again for them.

torch.onnx traces every graph anew to decompose such operations: a third to a half of an export's time, though few networks have any besides
those in :data:`_PLAIN`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
Decompose = Callable[[Any, Any], Any]
_DROPPED = {aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten.sym_constrain_range_for_size.default}
"""Checks, which the exporter drops."""


def sparing(decompose: Decompose) -> Decompose:
    """Return ``decompose`` (exported program, registry → program) for graphs that need it; others get the same graph without it."""

    def spared(program: Any, registry: Any) -> Any:
        signature, module = program.graph_signature, program.graph_module
        parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
        if parts != [module] or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            return decompose(program, registry)
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        if not all(_has_form(node, registry) or _plain(node) for node in calls):
            return decompose(program, registry)
        for node in calls:
            if replace := _plain(node):
                with module.graph.inserting_before(node):
                    node.target, node.args = replace()
                node.kwargs = {}
        module.recompile()
        return program

    return spared


def _has_form(node: fx.Node, registry: Any) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return bool(target.__module__ == "_operator")
    return target in _DROPPED or (registry.is_registered(target) and not target._schema.is_mutable)


Replace = Callable[[], tuple[Any, tuple[Any, ...]]]
"""Adds what is to stand before a node, and returns the node's new target and arguments."""


def _plain(node: fx.Node) -> Replace | None:
    """Return what says ``node`` in operations that have a form, None where it is not among :data:`_PLAIN` or not as simple as there."""
    known = _PLAIN.get(node.target)
    return None if known is None else known(node)


def _before(node: fx.Node, target: Any, *args: Any, value: Any) -> fx.Node:
    other = node.graph.call_function(target, args)
    other.meta = {**node.meta, "val": value}
    return other


def _transposed(node: fx.Node) -> Replace | None:
    return (lambda: (aten.t.default, node.args)) if node.meta["val"].dim() == 2 else None


def _squared(node: fx.Node) -> Replace:
    return lambda: (aten.pow.Tensor_Scalar, (node.args[0], 2))


def _flattened(node: fx.Node) -> Replace | None:
    """Flattening is reshaping: each size is a number, or that of a dimension before the first one that is flattened."""
    of, first, *_ = (*node.args, 0)
    sizes = list(node.meta["val"].shape)
    free = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    if not isinstance(first, int) or not all(axis < first for axis in free):
        return None

    def replace() -> tuple[Any, tuple[Any, ...]]:
        whole = [
            _before(node, aten.sym_size.int, of, axis, value=size) if axis in free else size for axis, size in enumerate(sizes)
        ]
        return aten.reshape.default, (of, whole)

    return replace


def _normalised(node: fx.Node) -> Replace | None:
    """BatchNorm by given statistics, as in evaluation, or by the batch's where none are kept."""
    x, weight, bias, mean, variance, training, momentum, eps = node.args[:8]
    if training and mean is not None:
        return None
    target, args = aten._native_batch_norm_legit_no_training.default, [x, weight, bias, mean, variance, momentum, eps]
    if training:
        target, args = aten._native_batch_norm_legit.no_stats, [x, weight, bias, True, momentum, eps]
    value, empty = node.meta["val"], node.meta["val"].new_empty(0)
    return lambda: (operator.getitem, (_before(node, target, *args, value=(value, empty, empty)), 0))


_PLAIN: dict[Any, Callable[[fx.Node], Replace | None]] = {
    aten.numpy_T.default: _transposed,
    aten.square.default: _squared,
    aten.flatten.using_ints: _flattened,
    aten.batch_norm.default: _normalised,
}
