"""Arithmetic, comparisons and logic, number by number, and changes of type."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx
import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Check, Operator, Rule, simple


def _chain(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Make a rule that combines any number of inputs from left to right."""
    return lambda node, *inputs: functools.reduce(function, inputs)


def _div(node: Operator, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(node: Operator, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


def _cast(node: Operator, x: Tensor) -> Tensor:
    return x.to(DTYPES[node.get("to")])


def _check_cast(node: Operator) -> None:
    if node.get("to") not in DTYPES:
        node.refuse(f"type {onnx.TensorProto.DataType.Name(node.get('to'))} has no rule")


RULES: dict[str, Rule] = {
    "Add": simple(torch.add), "Sub": simple(torch.sub), "Mul": simple(torch.mul), "Div": _div, "Mod": _mod,
    "Pow": lambda node, x, power: torch.pow(x, power).to(x.dtype),
    "Sqrt": simple(torch.sqrt), "Exp": simple(torch.exp), "Log": simple(torch.log), "Neg": simple(torch.neg),
    "Abs": simple(torch.abs), "Reciprocal": simple(torch.reciprocal), "Sign": simple(torch.sign), "Sin": simple(torch.sin),
    "Cos": simple(torch.cos), "Erf": simple(torch.erf), "Floor": simple(torch.floor), "Ceil": simple(torch.ceil),
    "Round": simple(torch.round), "Max": _chain(torch.maximum), "Min": _chain(torch.minimum), "Sum": _chain(torch.add),
    "Equal": simple(torch.eq), "Less": simple(torch.lt), "LessOrEqual": simple(torch.le), "Greater": simple(torch.gt),
    "GreaterOrEqual": simple(torch.ge), "Not": simple(torch.logical_not), "And": simple(torch.logical_and),
    "Or": simple(torch.logical_or), "Xor": simple(torch.logical_xor), "Where": simple(torch.where),
    "Identity": lambda node, x: x, "Cast": _cast, "CastLike": lambda node, x, like: x.to(like.dtype),
}  # fmt: skip
CHECKS: dict[str, Check] = {"Cast": _check_cast}
