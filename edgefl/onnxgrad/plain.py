"""Operations of torch without an ONNX form, replaced in a traced graph by operations that have one."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""Target, positional arguments and keyword arguments."""
Replace = Callable[[], Call]
"""Inserts nodes before a node, and returns the node's new call."""


def replace(node: fx.Node, by: Replace) -> None:
    """Replace the call of a node, in place."""
    with node.graph.inserting_before(node):
        node.target, node.args, node.kwargs = by()


def plain(node: fx.Node) -> Replace | None:
    """Return the replacement of ``node`` by operations with a form; None if :data:`_PLAIN` has none, or none for these arguments."""
    known = _PLAIN.get(node.target)
    return None if known is None else known(node)


def _before(node: fx.Node, target: Any, *args: Any, value: Any) -> fx.Node:
    other = node.graph.call_function(target, args)
    other.meta = {**node.meta, "val": value}
    return other


def normalised(node: fx.Node) -> Replace | None:
    """Replace BatchNorm, in evaluation, or in training if it keeps no running statistics."""
    x, weight, bias, mean, variance, training, momentum, eps = node.args[:8]
    if training and mean is not None:
        return None
    target, args = aten._native_batch_norm_legit_no_training.default, [x, weight, bias, mean, variance, momentum, eps]
    if training:
        target, args = aten._native_batch_norm_legit.no_stats, [x, weight, bias, True, momentum, eps]
    value, empty = node.meta["val"], node.meta["val"].new_empty(0)
    return lambda: (operator.getitem, (_before(node, target, *args, value=(value, empty, empty)), 0), {})


def _identity(node: fx.Node) -> Replace | None:
    """Replace eye by a comparison of rows and columns."""
    size, value = node.args[0], node.meta["val"]
    if not isinstance(size, int):
        return None

    def replace() -> Call:
        columns = _before(node, aten.arange.default, size, value=value.new_empty(size, dtype=torch.int64))
        rows = _before(node, aten.unsqueeze.default, columns, 1, value=value.new_empty(size, 1, dtype=torch.int64))
        same = _before(node, aten.eq.Tensor, rows, columns, value=value.new_empty(size, size, dtype=torch.bool))
        return aten._to_copy.default, (same,), {"dtype": value.dtype}

    return replace


def _cast(node: fx.Node) -> Replace:
    """Replace a change of type; a tensor that has the type already is itself."""
    x, dtype = node.args[0], node.meta["val"].dtype
    if isinstance(x, fx.Node) and x.meta["val"].dtype == dtype:
        return lambda: (aten.alias.default, (x,), {})
    return lambda: (aten._to_copy.default, (x,), {"dtype": dtype})


def _averaged(node: fx.Node) -> Replace | None:
    """Replace adaptive pooling to one value per channel by a mean."""
    x, sizes = node.args[:2]
    if not isinstance(sizes, (list, tuple)) or set(sizes) != {1}:
        return None
    return lambda: (aten.mean.dim, (x, list(range(-len(sizes), 0)), True), {})


_NAMES = {
    **{"__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "absolute": "abs", "clip": "clamp"},
    **{"arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh"},
    **{"divide": "div", "true_divide": "div", "multiply": "mul", "subtract": "sub"},
    **{"fix": "trunc", "negative": "neg", "positive": "alias"},
    **{"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne"},
}
OTHER_NAMES: dict[Any, Any] = {
    getattr(getattr(aten, name), overload): getattr(getattr(aten, other), overload)
    for name, other in _NAMES.items()
    for overload in getattr(aten, name).overloads()
    if overload in getattr(aten, other).overloads() and not getattr(getattr(aten, name), overload)._schema.is_mutable
}
"""Operator → the same operator under the name by which the exporter knows it, and converts arguments of other types."""
_PLAIN: dict[Any, Callable[[fx.Node], Replace | None]] = {
    aten.numpy_T.default: lambda node: (lambda: (aten.t.default, node.args, {})) if node.meta["val"].dim() == 2 else None,
    aten.square.default: lambda node: lambda: (aten.pow.Tensor_Scalar, (node.args[0], 2), {}),
    aten.batch_norm.default: normalised,
    aten.eye.default: _identity,
    **dict.fromkeys((aten.to.dtype, aten.to.device, aten.to.other, aten.to.dtype_layout), _cast),
    **dict.fromkeys(
        (aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default), _averaged
    ),
    **dict.fromkeys(OTHER_NAMES, lambda node: lambda: (OTHER_NAMES[node.target], node.args, node.kwargs)),
}
