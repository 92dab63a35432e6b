"""Activations, softmax and dropout."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, simple


def _clip(node: Operator, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, *(None if bound is None else bound.item() for bound in (low, high)))


def _dropout(node: Operator, x: Tensor, ratio: Array | None = None, training: Array | None = None) -> tuple[Tensor, ...]:
    share = 0.5 if ratio is None else float(ratio.item())
    if training is not None and bool(training.item()) and share and not node.training:
        node.refuse(
            "training_mode drops at random in every call; export the network in evaluation mode, edgefl drops in training"
        )
    if not node.wants(1):
        return (F.dropout(x, share, node.training),)
    kept = F.dropout(torch.ones_like(x), share, node.training)
    return x * kept, kept != 0


def _hardmax(node: Operator, x: Tensor) -> Tensor:
    axis = node.get("axis", -1)
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def _shrink(node: Operator, x: Tensor) -> Tensor:
    bias, bound = node.get("bias", 0.0), node.get("lambd", 0.5)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, torch.zeros_like(x)))


RULES: dict[str, Rule] = {
    "Relu": simple(torch.relu), "Tanh": simple(torch.tanh), "Sigmoid": simple(torch.sigmoid), "Softplus": simple(F.softplus),
    "Mish": simple(F.mish), "HardSwish": simple(F.hardswish), "Softsign": simple(F.softsign), "Clip": _clip,
    "HardSigmoid": lambda node, x: (node.get("alpha", 0.2) * x + node.get("beta", 0.5)).clamp(0, 1),
    "Selu": lambda node, x: node.get("gamma", 1.0507009873554805) * F.elu(x, node.get("alpha", 1.6732632423543772)),
    "Swish": lambda node, x: F.silu(x) if node.get("alpha", 1.0) == 1 else x * torch.sigmoid(node.get("alpha") * x),
    "SwiGLU": lambda node, gate, x: gate * torch.sigmoid(node.get("alpha", 1.0) * gate) * x,
    "Gelu": lambda node, x: F.gelu(x, approximate=node.get("approximate", "none")),
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)), "Celu": lambda node, x: F.celu(x, node.get("alpha", 1.0)),
    "PRelu": lambda node, x, slope: torch.where(x >= 0, x, slope * x), "Shrink": _shrink,
    "ThresholdedRelu": lambda node, x: F.threshold(x, node.get("alpha", 1.0), 0.0),
    "Softmax": lambda node, x: x.softmax(node.get("axis", -1)), "Hardmax": _hardmax, "Dropout": _dropout,
    "LogSoftmax": lambda node, x: x.log_softmax(node.get("axis", -1)),
}  # fmt: skip
ATTRIBUTES = {
    "HardSigmoid": "alpha beta", "Selu": "alpha gamma", "Swish": "alpha", "SwiGLU": "alpha", "Gelu": "approximate",
    "LeakyRelu": "alpha", "Elu": "alpha", "Celu": "alpha", "Shrink": "bias lambd", "ThresholdedRelu": "alpha",
    "Softmax": "axis", "Hardmax": "axis", "LogSoftmax": "axis", "Dropout": "seed",
}  # fmt: skip
CHOICES: dict[str, Choices] = {"Gelu": {"approximate": ("none", "tanh")}}
KNOWN = {"Clip": (1, 2), "Dropout": (1, 2)}
