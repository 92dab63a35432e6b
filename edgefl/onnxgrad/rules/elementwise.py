"""Arithmetic, comparisons, logic, changes of type, activations and reductions."""

import functools
from collections.abc import Callable

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Array, Check, Operator, Rule, numbers, simple


def _chain(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Return a rule that combines any number of inputs from left to right."""
    return lambda node, *inputs: functools.reduce(function, inputs)


def _check_cast(node: Operator) -> None:
    if node.get("to") not in DTYPES:
        node.refuse(f"type {onnx.TensorProto.DataType.Name(node.get('to'))} has no rule")


def _clip(node: Operator, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, *(None if bound is None else bound.item() for bound in (low, high)))


def _dropout(node: Operator, x: Tensor, ratio: Array | None = None, training: Array | None = None) -> Tensor:
    return F.dropout(x, 0.5 if ratio is None else float(ratio.item()), node.training)


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Rule:
    """Return a rule that reduces over the given axes; without axes over all, or none with ``noop_with_empty_axes``."""

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
    "Add": simple(torch.add), "Sub": simple(torch.sub), "Mul": simple(torch.mul),
    "Div": lambda node, a, b: torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Mod": lambda node, a, b: torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b),
    "Pow": lambda node, x, power: torch.pow(x, power).to(x.dtype),
    "Sqrt": simple(torch.sqrt), "Exp": simple(torch.exp), "Log": simple(torch.log), "Neg": simple(torch.neg),
    "Abs": simple(torch.abs), "Reciprocal": simple(torch.reciprocal), "Sign": simple(torch.sign), "Sin": simple(torch.sin),
    "Cos": simple(torch.cos), "Erf": simple(torch.erf), "Floor": simple(torch.floor), "Ceil": simple(torch.ceil),
    "Round": simple(torch.round), "Max": _chain(torch.maximum), "Min": _chain(torch.minimum), "Sum": _chain(torch.add),
    "Equal": simple(torch.eq), "Less": simple(torch.lt), "LessOrEqual": simple(torch.le), "Greater": simple(torch.gt),
    "GreaterOrEqual": simple(torch.ge), "Not": simple(torch.logical_not), "And": simple(torch.logical_and),
    "Or": simple(torch.logical_or), "Xor": simple(torch.logical_xor), "Where": simple(torch.where),
    "Identity": lambda node, x: x, "Cast": lambda node, x: x.to(DTYPES[node.get("to")]), "CastLike": lambda node, x, like: x.to(like.dtype),
    "Relu": simple(torch.relu), "Tanh": simple(torch.tanh), "Sigmoid": simple(torch.sigmoid), "Softplus": simple(F.softplus),
    "Mish": simple(F.mish), "HardSwish": simple(F.hardswish), "Softsign": simple(F.softsign),
    "HardSigmoid": lambda node, x: (node.get("alpha", 0.2) * x + node.get("beta", 0.5)).clamp(0, 1),
    "Selu": lambda node, x: node.get("gamma", 1.0507009873554805) * F.elu(x, node.get("alpha", 1.6732632423543772)),
    "Swish": lambda node, x: F.silu(x) if node.get("alpha", 1.0) == 1 else x * torch.sigmoid(node.get("alpha") * x), "Clip": _clip,
    "Gelu": lambda node, x: F.gelu(x, approximate=node.get("approximate", "none")),
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)),
    "PRelu": lambda node, x, slope: torch.where(x >= 0, x, slope * x),
    "Softmax": lambda node, x: x.softmax(node.get("axis", -1)), "Dropout": _dropout,
    "LogSoftmax": lambda node, x: x.log_softmax(node.get("axis", -1)),
    **{name: _reduce(function) for name, function in REDUCTIONS.items()},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
}  # fmt: skip
KNOWN = {"Clip": (1, 2), "Dropout": (1, 2), **dict.fromkeys(REDUCTIONS, (1,))}
CHECKS: dict[str, Check] = {"Cast": _check_cast, "Dropout": Operator.only_first_output}
