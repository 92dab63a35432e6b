"""Operations that write over a value, such as ``relu_``, replaced in a traced graph by those that return a new one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from edgefl.onnxgrad.plain import Replace

aten = torch.ops.aten
_COMPOSITE = "CompositeImplicitAutograd"
_NEW = {
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.linear.default, aten.matmul.default),
    *(aten.batch_norm.default, aten.group_norm.default, aten.layer_norm.default),
}
"""Operators that torch composes of others, and that return new values. Others of that kind may return their input, such as dropout."""


def functional(node: fx.Node, has_form: Callable[[Any], bool]) -> Replace | None:
    """Return the replacement of an operation that writes over its first argument: its readers after ``node`` get the new value.

    None: the operation is of another kind or has no form, or the value may be seen under another name, as a view.
    """
    target, value = node.target, node.args[0] if node.args else None
    if not isinstance(target, OpOverload) or not isinstance(value, fx.Node) or not target._schema.is_mutable:
        return None
    space, name = target._schema.name.split("::")
    other = getattr(getattr(getattr(torch.ops, space), name.removesuffix("_"), None), target._overloadname, None)
    if not name.endswith("_") or other is None or not has_form(other) or not _is_own(value) or not _is_of_one_type(node, value):
        return None
    if not all(_returns_new(user) or user.op == "output" for user in value.users if user < node):
        return None

    def replace() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        for user in [user for user in value.users if node < user]:
            user.replace_input_with(value, node)
        return other, node.args, node.kwargs

    return replace


def _is_own(value: fx.Node) -> bool:
    """Whether the graph computed ``value``, and it is no view of another value."""
    target, first = value.target, value.args[0] if value.args else None
    if value.op != "call_function":
        return False
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        return isinstance(first, fx.Node) and _is_own(first)
    return _returns_new(value)


def _returns_new(node: fx.Node) -> bool:
    """Whether the results of ``node`` share no memory with its arguments."""
    target = node.target
    if getattr(target, "__name__", "") == "getitem" and isinstance(node.args[0], fx.Node):  # of an operator with several results
        return _returns_new(node.args[0])
    if not isinstance(target, OpOverload):
        return not isinstance(node.meta.get("val"), torch.Tensor)  # a size, or arithmetic of sizes
    if any(result.alias_info is not None for result in target._schema.returns):
        return False
    return target in _NEW or not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), _COMPOSITE)


def _is_of_one_type(node: fx.Node, value: fx.Node) -> bool:
    """Whether no argument has another type than ``value``, which keeps its own where a new value would have a wider one."""
    types = {arg.meta["val"].dtype for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)}
    return types == {value.meta["val"].dtype}
