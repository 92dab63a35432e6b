"""Gradients of convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from gradient_case import Case, check, draw
from torch import Tensor

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def padded(x: Tensor, pads: tuple[int, ...]) -> Tensor:
    """Begins and ends in ONNX's order."""
    rank = len(pads) // 2
    return F.pad(x, [pads[axis + end * rank] for axis in reversed(range(rank)) for end in (0, 1)])


def conv(x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, to: tuple[int, ...] = (), **attributes: Any) -> Case:
    """``to``: the pads that auto_pad stands for."""
    rank = len(w) - 2
    pads = to or attributes.get("pads", (0,) * 2 * rank)
    options = (attributes.get("strides", 1), 0, attributes.get("dilations", 1), attributes.get("group", 1))

    def forward(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return CONVOLUTIONS[rank](padded(x, pads), w, b, *options)

    inputs = {"x": draw(*x), "w": draw(*w)} | ({"b": draw(w[0])} if bias else {})
    return Case("Conv", inputs, forward, attributes)


def transposed(x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, to: Any = None, **attributes: Any) -> Case:
    """``to``: pads of both sides and what is added behind, where torch needs others than the node's attributes."""
    rank, groups = len(w) - 2, attributes.get("group", 1)
    pads, behind = to or (attributes.get("pads", (0,) * 2 * rank), attributes.get("output_padding", 0))

    def forward(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        whole = TRANSPOSED[rank](x, w, b, attributes.get("strides", 1), 0, behind, groups, attributes.get("dilations", 1))
        return padded(whole, tuple(-pad for pad in pads))

    inputs = {"x": draw(*x), "w": draw(*w)} | ({"b": draw(w[1] * groups)} if bias else {})
    return Case("ConvTranspose", inputs, forward, attributes, reference=not {"auto_pad", "output_shape"} & set(attributes))


CASES = [
    conv((2, 3, 6, 5), (4, 3, 3, 3), pads=(1, 1, 1, 1)),
    conv((2, 3, 6, 5), (4, 3, 3, 2), bias=True),
    conv((2, 2, 7, 6), (3, 2, 3, 2), bias=True, strides=(2, 3), pads=(1, 0, 2, 1)),
    conv((2, 2, 8, 9), (3, 2, 2, 3), strides=(3, 2), pads=(0, 1, 1, 0)),  # the last rows and columns are not reached
    conv((2, 2, 7, 8), (3, 2, 3, 2), dilations=(2, 3), pads=(2, 1, 1, 2)),
    conv((2, 2, 9, 8), (3, 2, 3, 2), dilations=(2, 1), strides=(2, 2), pads=(1, 1, 1, 1)),
    conv((2, 1, 6, 6), (5, 1, 3, 3), bias=True),
    conv((2, 9, 5, 5), (2, 9, 3, 1), pads=(1, 0, 1, 0)),  # few outputs: over the gradient
    conv((2, 9, 5, 6), (2, 9, 2, 3), pads=(1, 0, 0, 2)),
    conv((2, 2, 5, 5), (9, 2, 1, 3), pads=(0, 1, 0, 1)),
    conv((2, 2, 4, 4), (3, 2, 3, 3), pads=(3, 3, 3, 3)),  # more padding than the kernel reaches over
    conv((2, 4, 3, 3), (5, 4, 1, 1), bias=True),
    conv((2, 12, 3, 3), (11, 12, 1, 1)),
    conv((2, 4, 6, 5), (3, 4, 1, 1), strides=(2, 2)),
    conv((2, 4, 5, 5), (3, 4, 1, 1), strides=(2, 2), pads=(1, 1, 1, 1)),
    conv((2, 30, 4, 4), (30, 30, 3, 3), pads=(1, 1, 1, 1)),  # many channels on a small map
    conv((2, 6, 5, 4), (4, 3, 3, 2), group=2, bias=True, pads=(1, 0, 1, 1)),
    conv((2, 18, 4, 4), (4, 9, 2, 2), group=2),
    conv((2, 4, 6, 6), (4, 1, 3, 3), group=4, pads=(1, 1, 1, 1), strides=(2, 2)),
    conv((2, 4, 5, 5), (8, 1, 3, 3), group=4, bias=True, dilations=(2, 2), pads=(2, 2, 2, 2)),
    conv((2, 4, 5, 5), (6, 2, 1, 1), group=2),
    conv((2, 3, 9), (4, 3, 3), bias=True, pads=(1, 2), strides=(2,)),
    conv((2, 8, 7), (2, 8, 3), dilations=(2,)),
    conv((2, 2, 4, 5, 4), (3, 2, 2, 3, 2), bias=True, pads=(1, 0, 0, 0, 1, 1), strides=(1, 2, 1)),
    conv((2, 6, 3, 4, 3), (2, 6, 2, 2, 2), pads=(1, 0, 1, 0, 1, 1)),
    conv((2, 2, 6, 5), (3, 2, 3, 2), (2, 2), auto_pad="VALID", strides=(2, 2)),
    conv((2, 2, 6, 5), (3, 2, 3, 2), to=(0, 0, 1, 1), auto_pad="SAME_UPPER", strides=(2, 2)),
    conv((2, 2, 6, 5), (3, 2, 2, 2), to=(1, 1, 0, 0), auto_pad="SAME_LOWER"),
    transposed((2, 3, 4, 5), (3, 2, 3, 3), bias=True),
    transposed((2, 3, 4, 3), (3, 2, 3, 2), strides=(2, 3), pads=(1, 0, 0, 1)),
    transposed((2, 3, 4, 3), (3, 2, 3, 3), bias=True, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
    transposed((2, 4, 4, 3), (4, 3, 2, 2), group=2, bias=True, dilations=(2, 1), strides=(1, 2)),
    transposed((2, 3, 5), (3, 2, 3), strides=(2,)),
    transposed((2, 2, 2, 3, 2), (2, 3, 2, 2, 2), strides=(2, 1, 2)),
    transposed((2, 3, 4, 4), (3, 2, 3, 3), to=((0, 0, 1, 1), 0), auto_pad="SAME_UPPER", strides=(2, 2)),
    transposed((2, 3, 4, 4), (3, 2, 3, 3), to=((1, 1, 0, 0), 0), auto_pad="SAME_LOWER", strides=(2, 2)),
    transposed((2, 3, 4, 4), (3, 2, 3, 3), to=((1, 1, 0, 0), 0), output_shape=(8, 8), strides=(2, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_convolution(case: Case) -> None:
    check(case)
