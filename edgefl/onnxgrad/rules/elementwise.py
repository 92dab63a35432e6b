"""Operators of one value at a time: arithmetic, comparisons, logic, bits, types and activations; softmax and dropout."""

import functools
from collections.abc import Callable

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Array, Check, Choices, Operator, Rule, simple


def _chain(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Return a rule that combines any number of inputs from left to right."""
    return lambda node, *inputs: functools.reduce(function, inputs)


def _check_cast(node: Operator) -> None:
    if node.get("to") not in DTYPES:
        node.refuse(f"type {onnx.TensorProto.DataType.Name(node.get('to'))} has no rule")


def _shift(node: Operator, x: Tensor, by: Tensor) -> Tensor:
    """Shift bits; past the width of the type, all of them are 0, or the sign to the right."""
    bits = torch.iinfo(x.dtype).bits
    fits, left = (by >= 0) & (by < bits), node.get("direction") == "LEFT"
    amount = torch.where(fits, by, torch.zeros_like(by))
    shifted = torch.bitwise_left_shift(x, amount) if left else torch.bitwise_right_shift(x, amount)
    past = torch.zeros_like(shifted) if left or not x.dtype.is_signed else torch.where(x < 0, -1, 0).to(x.dtype)
    return torch.where(fits, shifted, past)


def _is_infinite(node: Operator, x: Tensor) -> Tensor:
    above, below = (bool(node.get(f"detect_{side}", 1)) for side in ("positive", "negative"))
    if above == below:
        return torch.isinf(x) if above else torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if above else torch.isneginf(x)


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


def _shrink(node: Operator, x: Tensor) -> Tensor:
    bias, bound = node.get("bias", 0.0), node.get("lambd", 0.5)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, torch.zeros_like(x)))


_OF_TORCH = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Mul Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh"
    " Sqrt Sub Tan Tanh Where"
)
"""Operators of which torch has a function of the same name."""
RULES: dict[str, Rule] = {
    **{name: simple(getattr(torch, name.lower())) for name in _OF_TORCH.split()},
    "Div": lambda node, a, b: torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Mod": lambda node, a, b: torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b),
    "Pow": lambda node, x, power: torch.pow(x, power).to(x.dtype),
    "Max": _chain(torch.maximum), "Min": _chain(torch.minimum), "Sum": _chain(torch.add),
    "Mean": lambda node, *inputs: functools.reduce(torch.add, inputs) / len(inputs),
    "Equal": simple(torch.eq), "Less": simple(torch.lt), "LessOrEqual": simple(torch.le), "Greater": simple(torch.gt),
    "GreaterOrEqual": simple(torch.ge), "IsInf": _is_infinite, "Not": simple(torch.logical_not), "And": simple(torch.logical_and),
    "Or": simple(torch.logical_or), "Xor": simple(torch.logical_xor),
    "BitwiseAnd": simple(torch.bitwise_and), "BitwiseOr": simple(torch.bitwise_or), "BitwiseXor": simple(torch.bitwise_xor),
    "BitwiseNot": simple(torch.bitwise_not), "BitShift": _shift,
    "Identity": lambda node, x: x, "Cast": lambda node, x: x.to(DTYPES[node.get("to")]),
    "CastLike": lambda node, x, like: x.to(like.dtype), "BitCast": lambda node, x: x.view(DTYPES[node.get("to")]),
    "Softplus": simple(F.softplus), "Mish": simple(F.mish), "HardSwish": simple(F.hardswish), "Softsign": simple(F.softsign),
    "HardSigmoid": lambda node, x: (node.get("alpha", 0.2) * x + node.get("beta", 0.5)).clamp(0, 1),
    "Selu": lambda node, x: node.get("gamma", 1.0507009873554805) * F.elu(x, node.get("alpha", 1.6732632423543772)),
    "Swish": lambda node, x: F.silu(x) if node.get("alpha", 1.0) == 1 else x * torch.sigmoid(node.get("alpha") * x),
    "SwiGLU": lambda node, gate, x: gate * torch.sigmoid(node.get("alpha", 1.0) * gate) * x,
    "Gelu": lambda node, x: F.gelu(x, approximate=node.get("approximate", "none")),
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)), "Celu": lambda node, x: F.celu(x, node.get("alpha", 1.0)),
    "PRelu": lambda node, x, slope: torch.where(x >= 0, x, slope * x), "Shrink": _shrink, "Clip": _clip, "Dropout": _dropout,
    "ThresholdedRelu": lambda node, x: F.threshold(x, node.get("alpha", 1.0), 0.0),
    "Softmax": lambda node, x: x.softmax(node.get("axis", -1)), "LogSoftmax": lambda node, x: x.log_softmax(node.get("axis", -1)),
    "Hardmax": lambda node, x: torch.zeros_like(x).scatter(node.get("axis", -1), x.argmax(node.get("axis", -1), keepdim=True), 1.0),
}  # fmt: skip
ATTRIBUTES = {
    "Mod": "fmod", "IsInf": "detect_negative detect_positive", "BitShift": "direction", "BitCast": "to",
    "Cast": "round_mode saturate to", "CastLike": "round_mode saturate",  # the first two concern types without a rule
    "HardSigmoid": "alpha beta", "Selu": "alpha gamma", "Swish": "alpha", "SwiGLU": "alpha", "Gelu": "approximate",
    "LeakyRelu": "alpha", "Elu": "alpha", "Celu": "alpha", "Shrink": "bias lambd", "ThresholdedRelu": "alpha",
    "Softmax": "axis", "Hardmax": "axis", "LogSoftmax": "axis", "Dropout": "seed",
}  # fmt: skip
CHOICES: dict[str, Choices] = {"BitShift": {"direction": ("LEFT", "RIGHT")}, "Gelu": {"approximate": ("none", "tanh")}}
CHECKS: dict[str, Check] = {"Cast": _check_cast, "BitCast": _check_cast}
KNOWN = {"Clip": (1, 2), "Dropout": (1, 2)}
