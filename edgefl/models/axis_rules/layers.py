"""Rules of the operations that layers are made of: convolutions, products, normalizations, pooling, attention."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from edgefl.models.axes import Axis, NestedAxis, freeze, unify
from edgefl.models.axis_rules.table import Axes, Of, fresh, rule
from edgefl.util.tensors import tensors_in


@rule("convolution")
def _convolution(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    x, weight = of(args[0]), of(args[1])
    transposed, groups = args[6], args[8]
    channels_in, channels_out = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
    inputs = x[1]
    for axis in weight[2:]:
        freeze(axis)
    if groups > 1:
        if inputs.size == groups:  # depthwise: a channel is a group
            each = weight[1] if transposed else Axis(weight[0].size // groups)
            freeze(each)
            channels_out = NestedAxis((inputs, each)) if each.size > 1 else inputs
            unify(weight[0], inputs if transposed else channels_out)
        else:
            number = Axis(groups, frozen=True)
            first, second = Axis(weight[0].size // groups), weight[1]
            unify(weight[0], NestedAxis((number, first)))
            inside, outside = (first, second) if transposed else (second, first)
            unify(inputs, NestedAxis((number, inside)))
            channels_out = NestedAxis((number, outside))
    else:
        unify(inputs, channels_in)
    if args[2] is not None:
        unify(of(args[2])[0], channels_out)
    positions = zip(x[2:], weight[2:], *(_each(args[i], len(x) - 2) for i in (3, 4)), fresh(out)[2:], strict=True)
    # A kernel of one entry leaves a position where it is: after a transposition it may be a channel.
    stay = [old if (kernel.size, stride, padding) == (1, 1, 0) else new for old, kernel, stride, padding, new in positions]
    return [x[0], channels_out, *stay]


def _each(value: Sequence[int], dims: int) -> Sequence[int]:
    return value if len(value) == dims else list(value) * dims


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
    axes = _product(of, args[1:], out)
    for place, axis in enumerate(reversed(of(args[0])), 1):
        if axis.size > 1:
            unify(axis, axes[-place])
    return axes


@rule("mv")
def _times_vector(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    matrix, vector = of(args[0]), of(args[1])
    unify(matrix[1], vector[0])
    return matrix[:1]


@rule("dot", "vdot")
def _inner_product(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    unify(of(args[0])[0], of(args[1])[0])
    return []


@rule("_weight_norm_interface")
def _scaled_weight(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    """Rows of a direction, each scaled to a length; a narrow network's rows have the same lengths."""
    direction, length = of(args[0]), of(args[1])
    dim = args[2] if len(args) > 2 else 0
    unify(direction[dim], length[dim])
    return [direction, length]


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
        unify(x[1], NestedAxis((Axis(groups, frozen=True), Axis(x[1].size // groups))) if groups > 1 else x[1])
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


@rule("embedding")
def _embedded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    weight = of(args[0])
    freeze(weight[0])
    return [*of(args[1]), weight[1]]


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
    after = [[*axes[: len(axes) - positions], *fresh(o)[len(axes) - positions :]] for o in outputs]
    return after[0] if isinstance(out, Tensor) else after


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
    axes = [*query[:-1], value[-1]]
    return [axes, *(fresh(o) if isinstance(o, Tensor) else None for o in out[1:])]
