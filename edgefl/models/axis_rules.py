"""What each operation says about the axes of its inputs and outputs; an operation without a rule keeps all of them whole."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.models.axes import Axis, Joined, Nested, freeze, unify

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
    found: Axes = [Axis(1) for _ in out.shape]
    for tensor in tensors_in(args):
        for place, axis in enumerate(reversed(of(tensor)), 1):
            if axis.size > 1 and place <= len(found):
                if found[-place].size == 1:
                    found[-place] = axis
                else:
                    unify(found[-place], axis)
    return found


rule(
    "clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh", "native_dropout_", "_softmax", "_log_softmax", "copy_",
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "_prelu_kernel", "_safe_softmax", "dropout",
    "hardswish", "hardswish_", "mish", "mish_", "relu6", "threshold", "celu", "selu", "rrelu", "bernoulli", "bernoulli_",
)(pointwise)  # fmt: skip


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested sequences of arguments."""
    if isinstance(values, Tensor):
        return [values]
    return [t for value in values for t in tensors_in(value)] if isinstance(values, (list, tuple)) else []


def _dims(value: Any, rank: int) -> set[int]:
    """Return dimensions as numbers from 0; None or none given means all."""
    if value is None or value == []:
        return set(range(rank))
    return {dim % rank for dim in (value if isinstance(value, Sequence) else (value,))}


CONSTANTS = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")


@rule(*CONSTANTS)
def _constant(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    """All entries are alike, so any share of them will do."""
    return [Axis(size) for size in out.shape]


@rule("mean", "sum", "amax", "amin", "var", "std", "prod", "linalg_vector_norm", "logsumexp", "argmax", "argmin")
def reduced(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """The axes over which nothing is summed stay."""
    axes = of(args[0])
    position = 2 if len(args) > 2 and not isinstance(args[1], (list, tuple)) and isinstance(args[2], (list, tuple)) else 1
    given = args[position] if len(args) > position else None
    gone = _dims(given if isinstance(given, (int, list, tuple)) else None, len(axes))
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    if all(o.dim() == len(axes) for o in outputs):
        found = [Axis(1) if place in gone else axis for place, axis in enumerate(axes)]
    else:
        found = [axis for place, axis in enumerate(axes) if place not in gone]
    if any([a.size for a in found] != list(o.shape) for o in outputs):
        return None
    return found if isinstance(out, Tensor) else [list(found) for _ in outputs]


@rule("convolution")
def _convolution(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    x, weight = of(args[0]), of(args[1])
    transposed, groups = args[6], args[8]
    channels_in, channels_out = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
    inputs = x[1]
    for axis in weight[2:]:
        freeze(axis)
    if groups > 1:
        each, rows = inputs.size // groups, weight[0].size // groups
        if each == 1 and not transposed:  # depthwise: a channel is a group
            unify(weight[0], Nested((inputs, Axis(rows, frozen=True))) if rows > 1 else inputs)
            channels_out = weight[0]
        else:
            number = Axis(groups, frozen=True)
            first, second = Axis(weight[0].size // groups), weight[1]
            unify(weight[0], Nested((number, first)))
            inside, outside = (first, second) if transposed else (second, first)
            unify(inputs, Nested((number, inside)))
            channels_out = Nested((number, outside))
    else:
        unify(inputs, channels_in)
    if args[2] is not None:
        unify(of(args[2])[0], channels_out)
    return [x[0], channels_out, *fresh(out)[2:]]


@rule("mm", "bmm")
def _product(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    left, right = of(args[0]), of(args[1])
    if left[-1].size > 1:
        unify(left[-1], right[-2])
    if len(left) == 3 and left[0].size > 1:
        unify(left[0], right[0])
    return [*left[:-1], right[-1]]


@rule("addmm", "baddbmm")
def _product_and_sum(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    found = _product(of, args[1:], out)
    for place, axis in enumerate(reversed(of(args[0])), 1):
        if axis.size > 1:
            unify(axis, found[-place])
    return found


@rule("mv")
def _times_vector(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    matrix, vector = of(args[0]), of(args[1])
    unify(matrix[1], vector[0])
    return matrix[:1]


@rule("t", "transpose", "permute", "numpy_T")
def _permuted(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    order = list(range(len(axes)))
    if len(args) == 3:
        order[args[1]], order[args[2]] = order[args[2]], order[args[1]]
    elif len(args) == 2:
        order = [dim % len(axes) for dim in args[1]]
    else:
        order.reverse()
    return [axes[dim] for dim in order]


@rule(
    "unsqueeze", "squeeze", "squeeze_", "unsqueeze_", "view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"
)
def _reshaped(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    """Dimensions are merged and split where the products of their sizes agree, from the first on."""
    waiting = [axis for axis in of(args[0]) if axis.size > 1]
    found: Axes = []
    sizes = list(out.shape)
    while sizes:
        size = sizes.pop(0)
        if size == 1:
            found.append(Axis(1))
            continue
        before, after = [waiting.pop(0)], [size]
        while (have := math.prod(axis.size for axis in before)) != (wanted := math.prod(after)):
            if have < wanted:
                before.append(waiting.pop(0))
            else:
                after.append(sizes.pop(0))
        if len(after) == 1:
            found.append(before[0] if len(before) == 1 else Nested(before))
            continue
        made = [Axis(size) for size in after]
        several = [axis for axis in made if axis.size > 1]
        whole = before[0] if len(before) == 1 else Nested(before)
        unify(whole, several[0] if len(several) == 1 else Nested(several))
        found += made
    return found


@rule("expand")
def _expanded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    found = fresh(out)
    for place, axis in enumerate(reversed(axes), 1):
        if axis.size == found[-place].size:
            found[-place] = axis
    return found


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
    "batch_norm",
    "native_group_norm",
)
def _channel_norm(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    x = of(args[0])
    groups = args[6] if len(args) == 8 and isinstance(args[3], int) else 0
    if groups:
        unify(x[1], Nested((Axis(groups, frozen=True), Axis(x[1].size // groups))) if groups > 1 else x[1])
    for parameter in tensors_in(args[1:5]):
        unify(of(parameter)[0], x[1])
    return [x, *([x[1]] if list(o.shape) == [x[1].size] else fresh(o) for o in out[1:])]


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    x = of(args[0])
    for parameter in tensors_in(args[2:4]):
        for axis, own in zip(reversed(x), reversed(of(parameter)), strict=False):
            unify(own, axis)
    return [
        x,
        *([axis if axis.size == size else Axis(size, True) for axis, size in zip(x, o.shape, strict=False)] for o in out[1:]),
    ]


@rule("cat", "concat")
def _joined(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    parts = [of(tensor) for tensor in args[0] if tensor.dim() == out.dim()]
    dim = (args[1] if len(args) > 1 else 0) % out.dim()
    found = []
    for place in range(out.dim()):
        along = [part[place] for part in parts]
        if place == dim:
            found.append(Joined(along) if len(along) > 1 else along[0])
            continue
        for axis in along[1:]:
            if axis.size > 1:
                unify(along[0], axis)
        found.append(along[0])
    return found


@rule("stack")
def _stacked(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    parts = [of(tensor) for tensor in args[0]]
    for part in parts[1:]:
        for axis, other in zip(part, parts[0], strict=True):
            unify(axis, other)
    found = list(parts[0])
    found.insert((args[1] if len(args) > 1 else 0) % out.dim(), Axis(len(parts), frozen=True))
    return found


@rule("split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "tensor_split")
def _split(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    axes = of(args[0])
    dim = (args[2] if len(args) > 2 else 0) % len(axes)
    pieces = [Axis(tensor.shape[dim]) for tensor in out]
    unify(axes[dim], Joined(pieces) if len(pieces) > 1 else pieces[0])
    return [[*axes[:dim], piece, *axes[dim + 1 :]] for piece in pieces]


@rule("slice")
def _slice(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    dim = (args[1] if len(args) > 1 else 0) % len(axes)
    axis, size = axes[dim], out.shape[dim]
    start = args[2] if len(args) > 2 and args[2] is not None else 0
    start = min(max(start + axis.size if start < 0 else start, 0), axis.size)
    if size == axis.size:
        return axes
    if len(args) > 4 and args[4] != 1:
        freeze(axis)
        piece = Axis(size, frozen=True)
    else:
        sizes = [part for part in (start, size, axis.size - start - size) if part]
        pieces = [Axis(part) for part in sizes]
        unify(axis, Joined(pieces))
        piece = pieces[1 if start else 0]
    return [*axes[:dim], piece, *axes[dim + 1 :]]


@rule("select", "unbind")
def _selected(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    axes = of(args[0])
    dim = (args[1] if len(args) > 1 else 0) % len(axes)
    freeze(axes[dim])
    rest = [*axes[:dim], *axes[dim + 1 :]]
    return rest if isinstance(out, Tensor) else [list(rest) for _ in out]


@rule("embedding")
def _embedded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    weight = of(args[0])
    freeze(weight[0])
    return [*of(args[1]), weight[1]]


PADDING = ("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")


@rule(*PADDING)
def _padded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes, pairs = of(args[0]), [args[1][i : i + 2] for i in range(0, len(args[1]), 2)]
    return _whole_along(axes, {len(axes) - 1 - i for i, pair in enumerate(pairs) if any(pair)}, out)


@rule("flip")
def _flipped(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, _dims(args[1], len(axes)), out)


@rule("roll")
def _rolled(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, _dims(args[2] if len(args) > 2 else None, len(axes)), out)


@rule("cumsum", "cumprod")
def _summed_up(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, _dims(args[1], len(axes)), out)


def _whole_along(axes: Axes, touched: set[int], out: Tensor) -> Axes:
    """Keep the axes at the places ``touched`` whole; in the output they are new ones."""
    for place in touched:
        freeze(axes[place])
    return [Axis(out.shape[p], frozen=True) if p in touched else axis for p, axis in enumerate(axes)]


SPATIAL = (
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


@rule(*SPATIAL)
def _spatial(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """Batch and channels stay; positions are new."""
    axes = of(args[0])
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    positions = {3: 1, 4: 2, 5: 3}.get(len(axes), len(axes))
    found = [[*axes[: len(axes) - positions], *fresh(o)[len(axes) - positions :]] for o in outputs]
    return found[0] if isinstance(out, Tensor) else found


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
)
def _attention(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    query, key, value = (of(tensor) for tensor in args[:3])
    for place in (0, 1):
        if query[place].size > 1:
            unify(query[place], key[place])
            unify(query[place], value[place])
    unify(query[-1], key[-1])
    unify(key[-2], value[-2])
    found = [*query[:-1], value[-1]]
    return [found, *(fresh(o) if isinstance(o, Tensor) else None for o in out[1:])]
