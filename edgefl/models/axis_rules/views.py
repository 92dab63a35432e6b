"""Rules of the operations that move, merge, split, join and repeat entries."""

import math
from typing import Any

import torch
from torch import Tensor

from edgefl.models.axes import Axis, Joined, NestedAxis, freeze, unify
from edgefl.models.axis_rules.table import Axes, Of, dims, fresh, rule


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
    axes: Axes = []
    sizes = list(out.shape)
    while sizes:
        size = sizes.pop(0)
        if size == 1:
            axes.append(Axis(1))
            continue
        before, after = [waiting.pop(0)], [size]
        while (have := math.prod(axis.size for axis in before)) != (wanted := math.prod(after)):
            if have < wanted:
                before.append(waiting.pop(0))
            else:
                after.append(sizes.pop(0))
        if len(after) == 1:
            axes.append(before[0] if len(before) == 1 else NestedAxis(before))
            continue
        made = [Axis(size) for size in after]
        several = [axis for axis in made if axis.size > 1]
        whole = before[0] if len(before) == 1 else NestedAxis(before)
        unify(whole, several[0] if len(several) == 1 else NestedAxis(several))
        axes += made
    return axes


@rule("expand")
def _expanded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    wide = fresh(out)
    for place, axis in enumerate(reversed(axes), 1):
        if axis.size == wide[-place].size:
            wide[-place] = axis
    return wide


@rule("repeat")
def _repeated(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = [*[Axis(1)] * (out.dim() - args[0].dim()), *of(args[0])]
    return [
        axis if times == 1 else NestedAxis((Axis(times, frozen=True), axis)) for times, axis in zip(args[1], axes, strict=True)
    ]


@rule("cat", "concat")
def _joined(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    parts = [of(tensor) for tensor in args[0] if tensor.dim() == out.dim()]
    dim = (args[1] if len(args) > 1 else 0) % out.dim()
    axes = []
    for place in range(out.dim()):
        along = [part[place] for part in parts]
        if place == dim:
            axes.append(Joined(along) if len(along) > 1 else along[0])
            continue
        for axis in along[1:]:
            if axis.size > 1:
                unify(along[0], axis)
        axes.append(along[0])
    return axes


@rule("stack")
def _stacked(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    parts = [of(tensor) for tensor in args[0]]
    for part in parts[1:]:
        for axis, other in zip(part, parts[0], strict=True):
            unify(axis, other)
    axes = list(parts[0])
    axes.insert((args[1] if len(args) > 1 else 0) % out.dim(), Axis(len(parts), frozen=True))
    return axes


@rule("split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "tensor_split")
def _split(of: Of, args: tuple[Any, ...], out: Any) -> Any:
    axes = of(args[0])
    dim = (args[2] if len(args) > 2 else 0) % len(axes)
    pieces = [Axis(tensor.shape[dim]) for tensor in out]
    unify(axes[dim], Joined(pieces) if len(pieces) > 1 else pieces[0])
    return [[*axes[:dim], piece, *axes[dim + 1 :]] for piece in pieces]


@rule("glu")
def _gated(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    """The second half gates the first."""
    axes = of(args[0])
    dim = (args[1] if len(args) > 1 else -1) % len(axes)
    half, gates = Axis(out.shape[dim]), Axis(out.shape[dim])
    unify(axes[dim], Joined((half, gates)))
    unify(half, gates)
    return [*axes[:dim], half, *axes[dim + 1 :]]


@rule("pixel_shuffle")
def _to_pixels(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes, channels = of(args[0]), Axis(out.shape[-3])
    unify(axes[-3], NestedAxis((channels, Axis(args[1] ** 2, frozen=True))))
    return [*axes[:-3], channels, *fresh(out)[-2:]]


@rule("pixel_unshuffle")
def _from_pixels(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return [*axes[:-3], NestedAxis((axes[-3], Axis(args[1] ** 2, frozen=True))), *fresh(out)[-2:]]


@rule("channel_shuffle")
def _shuffled(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes, groups = of(args[0]), Axis(args[1], frozen=True)
    inner = Axis(out.shape[1] // args[1])
    unify(axes[1], NestedAxis((groups, inner)))
    return [axes[0], NestedAxis((inner, groups)), *axes[2:]]


@rule("index_select")
def _chosen(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, {args[1] % len(axes)}, out)


@rule("index")
def _indexed(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes | None:
    """Axes with an index stay whole; the axes of the indices, whole too, stand in their place, or first if an axis is between them."""
    axes, indices = of(args[0]), args[1]
    places = [place for place, index in enumerate(indices) if index is not None]
    if any(indices[place].dtype in (torch.bool, torch.uint8) for place in places):
        return None
    for place in places:
        freeze(axes[place])
    others = [axis for place, axis in enumerate(axes) if place not in places]
    start = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    return [*others[:start], *fresh(out)[start : start + out.dim() - len(others)], *others[start:]]


@rule("slice")
def _slice(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    dim = (args[1] if len(args) > 1 else 0) % len(axes)
    axis, size = axes[dim], out.shape[dim]
    start = args[2] if len(args) > 2 and args[2] is not None else 0
    start = min(max(start + axis.size if start < 0 else start, 0), axis.size)
    if size == axis.size:
        return axes
    step = args[4] if len(args) > 4 else 1
    if step > 1 and size * step == axis.size:  # every second of pairs, as of sines and cosines
        piece = Axis(size)
        unify(axis, NestedAxis((piece, Axis(step, frozen=True))))
    elif step > 1:
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


PADDING = ("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")


@rule(*PADDING)
def _padded(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes, pairs = of(args[0]), [args[1][i : i + 2] for i in range(0, len(args[1]), 2)]
    return _whole_along(axes, {len(axes) - 1 - i for i, pair in enumerate(pairs) if any(pair)}, out)


@rule("flip")
def _flipped(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, dims(args[1], len(axes)), out)


@rule("roll")
def _rolled(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, dims(args[2] if len(args) > 2 else None, len(axes)), out)


@rule("cumsum", "cumprod")
def _summed_up(of: Of, args: tuple[Any, ...], out: Tensor) -> Axes:
    axes = of(args[0])
    return _whole_along(axes, dims(args[1], len(axes)), out)


def _whole_along(axes: Axes, touched: set[int], out: Tensor) -> Axes:
    """Keep the axes at the places ``touched`` whole; in the output they are new ones."""
    for place in touched:
        freeze(axes[place])
    return [Axis(out.shape[p], frozen=True) if p in touched else axis for p, axis in enumerate(axes)]
