"""Operations of a traced graph, replaced one by one.

:func:`functional` replaces those that write over a value, such as ``relu_``, :func:`inlined` those without an ONNX form by what torch's own
decompositions compute, and :func:`with_borders` those whose derivative at a border differs from that of their usual form in ONNX.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from edgefl.onnxgrad.borders import BORDERS, exact_sigmoid
from edgefl.onnxgrad.plain import Call, Replace, replace

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


Table = Mapping[Any, Callable[..., Any]]
"""Operator → the function that computes it from others."""


def inlined(node: fx.Node, table: Table, stays: Callable[[fx.Node], bool]) -> Replace | None:
    """Return the replacement of ``node`` by the operations of its decomposition in ``table``, traced for its shapes alone.

    None: there is none, or it contains an operation that does not stay, or a constant.
    """
    decomposition = table.get(node.target)
    inputs = node.all_input_nodes
    shapes = tree_leaves([other.meta.get("val") for other in (node, *inputs)])
    if decomposition is None or not all(isinstance(value, Tensor) for value in shapes):  # such as a size
        return None

    def computed(*values: Tensor) -> Any:
        named = dict(zip(inputs, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), named.__getitem__)
        return decomposition(*args, **kwargs)

    values = [arg.meta["val"] for arg in inputs]
    mode = detect_fake_mode(values)
    if mode is None:
        return None
    try:
        with mode:
            graph = make_fx(computed, decomposition_table=table)(*values).graph
    except Exception:  # noqa: BLE001 - what torch refuses here, its own way of decomposing refuses too, in words
        return None
    graph.eliminate_dead_code()
    *steps, output = (other for other in graph.nodes if other.op != "placeholder")
    result = output.args[0]
    apart = [user for user in node.users if isinstance(result, (list, tuple)) and user.target is operator.getitem]
    if not all(other.op == "call_function" and stays(other) for other in steps):
        return None
    if not isinstance(result, fx.Node) and len(apart) < len(node.users):
        return None

    def replace() -> Call:
        copies = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
        for other in steps[:-1] if result in steps else steps:  # the operation itself becomes the last one
            copies[other] = node.graph.node_copy(other, copies.__getitem__)
            copies[other].meta = {**node.meta, **other.meta}
        for user in apart:
            user.target, user.args = aten.alias.default, (copies[result[user.args[1]]],)
        if result in steps:
            args, kwargs = fx.node.map_arg((result.args, dict(result.kwargs)), copies.__getitem__)
            return result.target, args, kwargs
        if apart:  # the operation itself has no reader any more
            node.meta["val"] = values[0]
        return aten.alias.default, (inputs[0] if apart else copies[result],), {}

    return replace


_ENLARGE = {"log", "log2", "log10", "logit", "div", "divide", "true_divide", "pow", "reciprocal", "rsqrt", "sqrt", "xlogy"}
"""Operators, by name, that turn the rounding of a small value into a large difference."""
_ENLARGE |= {"binary_cross_entropy", "special_xlog1py", "special_entr"}
_ABSORB = {"matmul", "mm", "addmm", "bmm", "linear", "conv1d", "conv2d", "conv3d", "convolution", "embedding", "mean", "sum"}
"""Operators, by name, behind which the rounding of a small value does not matter."""


def with_borders(graph: fx.Graph) -> None:
    """Replace, in place, the operators of :data:`edgefl.onnxgrad.borders.BORDERS`, and sigmoids that must be exact near 0."""
    for node in list(graph.nodes):
        if (by := functional(node, BORDERS.__contains__)) is not None:
            replace(node, by)
        table = BORDERS
        if node.target in (aten.sigmoid.default, aten.special_expit.default) and _enlarged(node):
            table = {node.target: exact_sigmoid}
        if node.target in table and (by := inlined(node, table, lambda _: True)) is not None:
            replace(node, by)


def _enlarged(node: fx.Node) -> bool:
    """Whether a value reaches an operator of :data:`_ENLARGE` through others that keep its relative rounding."""
    seen, waiting = {node}, list(node.users)
    while waiting:
        user = waiting.pop()
        name = _name(user.target)
        if name in _ENLARGE:
            return True
        if user not in seen and name not in _ABSORB:
            seen.add(user)
            waiting += user.users
    return False


def _name(target: Any) -> str:
    return target.name().removeprefix("aten::").partition(".")[0].rstrip("_") if isinstance(target, OpOverload) else ""
