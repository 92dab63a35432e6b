"""The table of rules, and those of operations that compute entry by entry or reduce."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.models.axes import Axis, unify
from edgefl.util.tensors import tensors_in

Axes = list[Axis]
Of = Callable[[Tensor], Axes]
Rule = Callable[[Of, tuple[Any, ...], Any], Any]
RULES: dict[str, Rule] = {}
"""Name of an operation in ``torch.ops.aten`` → a function of (axes of a tensor, arguments, output) that returns the output's axes."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule of the operations ``names``."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def axes_after(operation: Any, of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """Return the axes of the output of ``operation``, a list of them for each tensor; None if nothing is known about the operation."""
    name = operation.overloadpacket.__name__
    if name in RULES:
        return RULES[name](of, args, out)
    if torch.Tag.pointwise in operation.tags:
        return pointwise(of, args, out)
    return None


def fresh(out: Tensor) -> Axes:
    """Return whole axes of the shape of ``out``."""
    return [Axis(size, frozen=True) for size in out.shape]


def pointwise(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """Every tensor has the output's axes, aligned at the last; an axis of one entry is broadcast."""
    if not isinstance(out, Tensor):
        return None
    axes: Axes = [Axis(1) for _ in out.shape]
    for tensor in tensors_in(args):
        for place, axis in enumerate(reversed(of(tensor)), 1):
            if axis.size > 1 and place <= len(axes):
                if axes[-place].size == 1:
                    axes[-place] = axis
                else:
                    unify(axes[-place], axis)
    return axes


rule(
    "clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh", "native_dropout_", "_softmax", "_log_softmax", "copy_",
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "_prelu_kernel", "_safe_softmax", "dropout",
    "hardswish", "hardswish_", "mish", "mish_", "relu6", "threshold", "celu", "selu", "rrelu", "bernoulli", "bernoulli_",
    "normal_", "uniform_", "exponential_",
)(pointwise)  # fmt: skip


def dims(value: Any, rank: int) -> set[int]:
    """Return dimensions as numbers from 0; None or none given means all."""
    if value is None or value == []:
        return set(range(rank))
    return {dim % rank for dim in (value if isinstance(value, Sequence) else (value,))}


CONSTANTS = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "rand", "randn")


@rule(*CONSTANTS)
def _constant(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    """All entries are alike, or drawn alike, so any share of them will do."""
    return [Axis(size) for size in out.shape]


@rule("log_sigmoid_forward")
def _log_sigmoid(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """The second output is a buffer for the gradient; on some devices it is empty."""
    return [of(args[0]), of(args[0]) if out[0].shape == out[1].shape else fresh(out[1])]


@rule("mean", "sum", "amax", "amin", "var", "std", "prod", "linalg_vector_norm", "logsumexp", "argmax", "argmin")
def reduced(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """The axes over which nothing is summed stay."""
    axes = of(args[0])
    position = 2 if len(args) > 2 and not isinstance(args[1], (list, tuple)) and isinstance(args[2], (list, tuple)) else 1
    over = args[position] if len(args) > position else None
    gone = dims(over if isinstance(over, (int, list, tuple)) else None, len(axes))
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    if all(o.dim() == len(axes) for o in outputs):
        after = [Axis(1) if place in gone else axis for place, axis in enumerate(axes)]
    else:
        after = [axis for place, axis in enumerate(axes) if place not in gone]
    if any([a.size for a in after] != list(o.shape) for o in outputs):
        return None
    return after if isinstance(out, Tensor) else [list(after) for _ in outputs]


@rule("norm")
def _norm(of: Of, args: tuple[Any, ...], out: Tensor) -> Any:
    """The second argument is the exponent."""
    return reduced(of, (args[0], args[2] if len(args) > 2 else None), out)
