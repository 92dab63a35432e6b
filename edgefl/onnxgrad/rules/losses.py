"""Losses that an exported graph contains."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Choices, Operator, Rule

_NEVER = torch.iinfo(torch.int64).min


def _nll(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.nll_loss(
        x, labels.long(), weight, ignore_index=node.get("ignore_index", _NEVER), reduction=node.get("reduction", "mean")
    )


def _cross_entropy(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    shares = x.log_softmax(1)
    return _nll(node, shares, labels, weight), shares


RULES: dict[str, Rule] = {"NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _cross_entropy}
ATTRIBUTES = dict.fromkeys(RULES, "ignore_index reduction")
UNTRAINED: dict[str, tuple[int, ...]] = dict.fromkeys(RULES, (2,))
CHOICES: dict[str, Choices] = {name: {"reduction": ("none", "mean", "sum")} for name in RULES}
