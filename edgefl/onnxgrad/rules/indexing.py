"""Reading and writing at indices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule


def _from_start(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index).long()


def _gather(node: Operator, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0) % x.dim()
    index = _from_start(index, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return F.embedding(index, x)
    return x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_elements(node: Operator, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    return torch.gather(x, axis, _from_start(index, x.shape[axis]))


def _scatter_elements(node: Operator, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    return torch.scatter(x, axis, _from_start(index, x.shape[axis]), updates)


def _scatter_nd(node: Operator, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    return torch.index_put(x, index.unbind(-1), updates, accumulate=node.get("reduction", "none") == "add")


def _check_reduction(*known: str) -> Check:
    def check(node: Operator) -> None:
        reduction = node.get("reduction", "none")
        if reduction not in known:
            node.refuse(f"reduction {reduction!r}, expected {' or '.join(map(repr, known))}")

    return check


RULES: dict[str, Rule] = {
    "Gather": _gather, "GatherElements": _gather_elements, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
}  # fmt: skip
CHECKS: dict[str, Check] = {"ScatterElements": _check_reduction("none"), "ScatterND": _check_reduction("none", "add")}
