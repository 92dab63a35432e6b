"""Arithmetic, comparisons, logic, bits and changes of type, one value at a time."""

import functools
from collections.abc import Callable

import onnx
import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Check, Choices, Operator, Rule, simple


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


def _functions(names: str) -> dict[str, Rule]:
    """Return the rules of operators of which torch has a function of the same name."""
    return {name: simple(getattr(torch, name.lower())) for name in names.split()}


RULES: dict[str, Rule] = {
    **_functions(
        "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Mul Neg Reciprocal Round Sign Sin Sinh Sqrt Sub"
        " Tan Where"
    ),
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
}  # fmt: skip
ATTRIBUTES = {
    "Mod": "fmod", "IsInf": "detect_negative detect_positive", "BitShift": "direction", "BitCast": "to",
    "Cast": "round_mode saturate to", "CastLike": "round_mode saturate",  # the first two concern types without a rule
}  # fmt: skip
CHOICES: dict[str, Choices] = {"BitShift": {"direction": ("LEFT", "RIGHT")}}
CHECKS: dict[str, Check] = {"Cast": _check_cast, "BitCast": _check_cast}
