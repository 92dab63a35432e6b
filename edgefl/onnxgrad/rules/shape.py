"""Operators that move values by their place, or return a shape."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, numbers, sides


def _reshape(node: Operator, x: Tensor, shape: Array) -> Tensor:
    sizes = numbers(shape)
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _slice(
    node: Operator, x: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Tensor:
    begin, end = numbers(starts), numbers(ends)
    where = range(len(begin)) if axes is None else numbers(axes)
    for axis, start, stop, step in zip(where, begin, end, [1] * len(begin) if steps is None else numbers(steps), strict=True):
        chosen = range(x.shape[axis])[start:stop:step]
        if step > 0:
            x = x[(*[slice(None)] * (axis % x.dim()), slice(chosen.start, max(chosen.stop, chosen.start), step))]
        else:
            x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


def _split(node: Operator, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", 0)
    return torch.split(x, -(-x.shape[axis] // len(node.wanted)) if sizes is None else numbers(sizes), axis)


def _pad(node: Operator, x: Tensor, pads: Array, value: Array | None = None, axes: Array | None = None) -> Tensor:
    given, mode = numbers(pads), node.get("mode", "constant")
    where = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in numbers(axes)]
    ends = {axis: (given[i], given[i + len(where)]) for i, axis in enumerate(where)}
    if mode == "constant":
        low, high = zip(*(ends.get(axis, (0, 0)) for axis in range(x.dim())), strict=True)
        return F.pad(x, sides([*low, *high]), value=0.0 if value is None else value.item())
    for axis, amounts in ends.items():
        positions = np.pad(np.arange(x.shape[axis]), amounts, mode=mode)
        x = x.index_select(axis, torch.tensor(positions, device=x.device))
    return x


def _unsqueeze(node: Operator, x: Tensor, axes: Array) -> Tensor:
    rank = x.dim() + axes.size
    for axis in sorted(axis % rank for axis in numbers(axes)):
        x = x.unsqueeze(axis)
    return x


def _depth_to_space(node: Operator, x: Tensor) -> Tensor:
    size = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(batch, channels // size**2, height * size, width * size)


def _space_to_depth(node: Operator, x: Tensor) -> Tensor:
    size = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_unshuffle(x, size)
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(batch, channels * size**2, height // size, width // size)


def _center_crop_pad(node: Operator, x: Tensor, shape: Array) -> Tensor:
    axes = [axis % x.dim() for axis in node.get("axes", range(x.dim()))]
    low, high = [0] * x.dim(), [0] * x.dim()
    for axis, size in zip(axes, numbers(shape), strict=True):
        more = size - x.shape[axis]
        low[axis] = more // 2 if more > 0 else -(-more // 2)
        high[axis] = more - low[axis]
    return F.pad(x, sides([*low, *high]))


RULES: dict[str, Rule] = {
    "Reshape": _reshape, "Slice": _slice, "Split": _split, "Pad": _pad,
    "Concat": lambda node, *parts: torch.cat(parts, node.get("axis")),
    "Flatten": lambda node, x: x.reshape(math.prod(x.shape[: node.get("axis", 1)]), math.prod(x.shape[node.get("axis", 1) :])),
    "Transpose": lambda node, x: x.permute(node.get("perm", list(reversed(range(x.dim()))))),
    "Expand": lambda node, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(numbers(shape)))),
    "Tile": lambda node, x, repeats: x.repeat(numbers(repeats)), "Unsqueeze": _unsqueeze,
    "Squeeze": lambda node, x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(numbers(axes))),
    "Shape": lambda node, x: np.array(x.shape[node.get("start", 0) : node.get("end")], dtype=np.int64),
    "Size": lambda node, x: np.array(x.numel(), dtype=np.int64),
    "Trilu": lambda node, x, k=None: (torch.triu if node.get("upper", 1) else torch.tril)(x, 0 if k is None else int(k.item())),
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "CenterCropPad": _center_crop_pad,
}  # fmt: skip
ATTRIBUTES = {
    "Reshape": "allowzero", "Split": "axis num_outputs", "Pad": "mode", "Concat": "axis", "Flatten": "axis", "Transpose": "perm",
    "Shape": "end start", "Trilu": "upper", "DepthToSpace": "blocksize mode", "SpaceToDepth": "blocksize mode",
    "CenterCropPad": "axes",
}  # fmt: skip
KNOWN = {
    "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Pad": (1, 2, 3), "Expand": (1,), "Tile": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "Trilu": (1,), "CenterCropPad": (1,),
}  # fmt: skip
CHOICES: dict[str, Choices] = {
    "Pad": {"mode": ("constant", "edge", "reflect", "wrap")},
    **{name: {"mode": ("DCR", "CRD")} for name in ("DepthToSpace", "SpaceToDepth")},
}
