"""Replaces the operators of a traced graph whose derivative at a border differs from that of their usual form in ONNX."""

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from edgefl.onnxgrad.borders import BORDERS, exact_sigmoid
from edgefl.onnxgrad.in_place import functional
from edgefl.onnxgrad.inlined import inlined
from edgefl.onnxgrad.plain import Replace

aten = torch.ops.aten
_ENLARGE = {"log", "log2", "log10", "logit", "div", "divide", "true_divide", "pow", "reciprocal", "rsqrt", "sqrt", "xlogy"}
"""Operators, by name, that turn the rounding of a small value into a large difference."""
_ENLARGE |= {"binary_cross_entropy", "special_xlog1py", "special_entr"}
_ABSORB = {"matmul", "mm", "addmm", "bmm", "linear", "conv1d", "conv2d", "conv3d", "convolution", "embedding", "mean", "sum"}
"""Operators, by name, behind which the rounding of a small value does not matter."""


def with_borders(graph: fx.Graph) -> None:
    """Replace, in place, the operators of :data:`edgefl.onnxgrad.borders.BORDERS`, and sigmoids that must be exact near 0."""
    for node in list(graph.nodes):
        if (by := functional(node, BORDERS.__contains__)) is not None:
            _replace(node, by)
        table = BORDERS
        if node.target in (aten.sigmoid.default, aten.special_expit.default) and _enlarged(node):
            table = {node.target: exact_sigmoid}
        if node.target in table and (by := inlined(node, table, lambda _: True)) is not None:
            _replace(node, by)


def _replace(node: fx.Node, by: Replace) -> None:
    with node.graph.inserting_before(node):
        node.target, node.args, node.kwargs = by()


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
