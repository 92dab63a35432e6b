"""Reductions over axes, and the index of the largest or smallest value."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Operator, Rule, numbers


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Rule:
    """Make a rule that reduces over axes: all of them when none are named, unless the node says otherwise."""

    def rule(node: Operator, x: Tensor, given: Array | None = None) -> Tensor:
        axes = list(node.get("axes", ())) if given is None else numbers(given)
        if not axes and node.get("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.dim())), bool(node.get("keepdims", 1)))

    return rule


def _arg(function: Callable[..., Tensor]) -> Rule:
    def rule(node: Operator, x: Tensor) -> Tensor:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keep)
        return function(x, dim=axis, keepdim=keep)

    return rule


REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
}  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _reduce(function) for name, function in REDUCTIONS.items()},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
}  # fmt: skip
KNOWN = dict.fromkeys(REDUCTIONS, (1,))
