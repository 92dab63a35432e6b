"""Operations of torch without an ONNX form, replaced one by one by what torch's own decompositions compute."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from edgefl.onnxgrad.plain import Call, Replace

aten = torch.ops.aten

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
