"""Activations, Softmax and Dropout."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Operator, Rule, simple


def _hard_sigmoid(node: Operator, x: Tensor) -> Tensor:
    return (node.get("alpha", 0.2) * x + node.get("beta", 0.5)).clamp(0, 1)


def _selu(node: Operator, x: Tensor) -> Tensor:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return gamma * F.elu(x, alpha)


def _swish(node: Operator, x: Tensor) -> Tensor:
    alpha = node.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


def _clip(node: Operator, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, *(None if bound is None else bound.item() for bound in (low, high)))


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Rule:
    return lambda node, x: function(x, node.get("axis", -1))


def _dropout(node: Operator, x: Tensor, ratio: Array | None = None, training: Array | None = None) -> Tensor:
    return F.dropout(x, 0.5 if ratio is None else float(ratio.item()), node.training)


RULES: dict[str, Rule] = {
    "Relu": simple(torch.relu), "Tanh": simple(torch.tanh), "Sigmoid": simple(torch.sigmoid), "Softplus": simple(F.softplus),
    "Mish": simple(F.mish), "HardSwish": simple(F.hardswish), "Softsign": simple(F.softsign),
    "HardSigmoid": _hard_sigmoid, "Selu": _selu, "Swish": _swish, "Clip": _clip,
    "Gelu": lambda node, x: F.gelu(x, approximate=node.get("approximate", "none")),
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)),
    "PRelu": lambda node, x, slope: torch.where(x >= 0, x, slope * x),
    "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax), "Dropout": _dropout,
}  # fmt: skip
KNOWN = {"Clip": (1, 2), "Dropout": (1, 2)}
CHECKS: dict[str, Check] = {"Dropout": Operator.only_first_output}
