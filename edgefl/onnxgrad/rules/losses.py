"""Losses that an exported graph contains."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule

_REDUCTIONS = "none", "mean", "sum"
_NEVER = torch.iinfo(torch.int64).min


def _nll(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.nll_loss(
        x, labels.long(), weight, ignore_index=node.get("ignore_index", _NEVER), reduction=node.get("reduction", "mean")
    )


def _cross_entropy(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    shares = x.log_softmax(1)
    return _nll(node, shares, labels, weight), shares


def _check(node: Operator) -> None:
    if (reduction := node.get("reduction", "mean")) not in _REDUCTIONS:
        node.refuse(f"reduction {reduction!r}, expected {', '.join(_REDUCTIONS)}")


RULES: dict[str, Rule] = {"NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _cross_entropy}
ATTRIBUTES = dict.fromkeys(RULES, "ignore_index reduction")
UNTRAINED: dict[str, tuple[int, ...]] = dict.fromkeys(RULES, (2,))
CHECKS: dict[str, Check] = dict.fromkeys(RULES, _check)
