"""Gradients of pooling: windows that overlap, reach over the edge or leave some of the map out, and maxima that stand twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_case import Array, Case, check, check_model, draw
from onnx.parser import parse_model
from torch import Tensor

from edgefl.onnxgrad.autodiff import as_model, tape_of

MAXIMA: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEANS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def ties(*shape: int) -> Array:
    """A few whole numbers, so that windows hold their largest more than once."""
    return np.random.default_rng(1).integers(-1, 2, shape).astype(np.float64)


def largest(x: Array, kernel: tuple[int, ...], to: Any = None, **options: Any) -> Case:
    """``to``: the pads that auto_pad stands for; torch pads alike on both sides."""
    rank, pads = len(kernel), to or options.get("pads", (0,) * 2 * len(kernel))
    names = {"strides": "stride", "dilations": "dilation"}
    given = {names[n]: v for n, v in options.items() if n in names} | {"ceil_mode": bool(options.get("ceil_mode", 0))}
    given.setdefault("stride", 1)

    def forward(x: Tensor) -> Tensor:
        wide = F.pad(x, [pads[axis + end * rank] for axis in reversed(range(rank)) for end in (0, 1)], value=-1e9)
        found: Tensor = MAXIMA[rank](wide, kernel, **given)
        return found

    exact, reference = len(np.unique(x)) == x.size, "auto_pad" not in options  # which onnx's evaluator gets wrong
    return Case("MaxPool", {"x": x}, forward, {"kernel_shape": kernel, **options}, reference=reference, exact=exact)


def mean(x: tuple[int, ...], kernel: tuple[int, ...], **options: Any) -> Case:
    rank = len(kernel)

    def forward(x: Tensor) -> Tensor:
        padding = options.get("pads", (0,) * rank)[:rank]
        given = {"ceil_mode": bool(options.get("ceil_mode", 0)), "count_include_pad": bool(options.get("count_include_pad", 0))}
        found: Tensor = MEANS[rank](x, kernel, options.get("strides", 1), padding, **given)
        return found

    return Case("AveragePool", {"x": draw(*x)}, forward, {"kernel_shape": kernel, **options})


def uneven(x: Tensor) -> Tensor:
    """Means over (2, 3) with a row in front and a column behind, which do not count."""
    ones = F.pad(torch.ones_like(x), (0, 1, 1, 0))
    return F.avg_pool2d(F.pad(x, (0, 1, 1, 0)), (2, 3), 2) / F.avg_pool2d(ones, (2, 3), 2)


CASES = [
    largest(draw(2, 3, 6, 4), (2, 2), strides=(2, 2)),
    largest(draw(2, 3, 7, 5), (2, 2), strides=(2, 2)),  # a row and a column are left out
    largest(ties(2, 3, 6, 6), (2, 2), strides=(2, 2)),
    largest(ties(2, 3, 6, 6), (3, 3), strides=(1, 2)),
    largest(draw(2, 2, 6, 5), (3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
    largest(ties(2, 2, 7, 7), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    largest(draw(2, 2, 8, 7), (2, 3), dilations=(3, 2), strides=(1, 2)),
    largest(draw(2, 2, 6, 7), (3, 3), strides=(2, 2), ceil_mode=1),
    largest(draw(2, 2, 5, 7), (2, 2), strides=(2, 2), ceil_mode=1),
    largest(draw(2, 2, 6, 5), (2, 2), strides=(3, 3)),
    largest(draw(2, 2, 5, 5), (2, 2), to=(0, 0, 1, 1), auto_pad="SAME_UPPER"),
    largest(draw(2, 2, 5, 5), (2, 2), to=(1, 1, 0, 0), auto_pad="SAME_LOWER"),
    largest(draw(2, 2, 5, 5), (2, 2), auto_pad="VALID", strides=(2, 2)),
    largest(draw(2, 3, 9), (3,), strides=(3,)),
    largest(ties(2, 3, 9), (3,), strides=(2,), pads=(1, 1)),
    largest(draw(2, 2, 4, 5, 4), (2, 2, 2), strides=(2, 1, 2)),
    largest(draw(2, 2, 4, 4, 4), (2, 2, 2), strides=(2, 2, 2)),
    mean((2, 3, 6, 4), (2, 2), strides=(2, 2)),
    mean((2, 3, 7, 6), (3, 2), strides=(2, 3)),
    mean((2, 2, 6, 5), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    mean((2, 2, 6, 5), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), count_include_pad=1),
    mean((2, 2, 6, 7), (3, 2), strides=(2, 2), ceil_mode=1),
    mean((2, 2, 6, 6), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=1),
    mean((2, 2, 6, 6), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=1, count_include_pad=1),
    Case(
        "AveragePool",
        {"x": draw(2, 2, 5, 6)},
        uneven,
        {"kernel_shape": (2, 3), "strides": (2, 2), "pads": (1, 0, 0, 1)},
    ),
    mean((2, 3, 8), (3,), strides=(2,), pads=(1, 1)),
    mean((2, 2, 4, 4, 5), (2, 2, 3), strides=(2, 1, 2)),
    Case("GlobalAveragePool", {"x": draw(2, 3, 4, 5)}, lambda x: x.mean((2, 3), keepdim=True)),
    Case("GlobalAveragePool", {"x": draw(2, 3, 4)}, lambda x: x.mean(2, keepdim=True)),
    Case("GlobalMaxPool", {"x": draw(2, 3, 4, 5)}, lambda x: x.amax((2, 3), keepdim=True), reference=False),
    Case("GlobalMaxPool", {"x": ties(2, 3, 3, 3)}, lambda x: F.adaptive_max_pool2d(x, 1), reference=False),
    Case(
        "MaxUnpool",
        {"x": draw(1, 2, 2, 2), "indices": np.array([[[[0, 3], [9, 10]], [[21, 18], [28, 31]]]])},
        lambda x: F.max_unpool2d(x, torch.tensor([[[[0, 3], [9, 10]], [[5, 2], [12, 15]]]]), 2),
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        batch=(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pooling(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("order", [0, 1])
def test_indices_stay_what_they_were(order: int) -> None:
    """A node whose indices are read keeps them, row by row or column by column, and has its gradient all the same."""
    x = draw(2, 3, 6, 4)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        y, indices = F.max_pool2d(x, 2, 2, return_indices=True)
        return y, indices

    attributes = {"kernel_shape": (2, 2), "strides": (2, 2), "storage_order": order}
    check(Case("MaxPool", {"x": x}, forward, attributes, outputs=2))


@pytest.mark.parametrize("x", [draw(2, 3, 6, 4), ties(2, 3, 6, 4)], ids=["all-different", "ties"])
def test_relu_comes_after_the_maximum(x: Array) -> None:
    """On the smaller map, with the same result and the same gradient."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (REAL[n,3,6,4] x, REAL[n,3,3,2] k0) => (REAL loss) {
        r = Relu (x)  y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)  p = Mul (y, k0)  loss = ReduceSum <keepdims = 0> (p) }"""
    graphs = [parse_model(text.replace("REAL", real)) for real in ("double", "float")]
    check_model(Case("", {"x": x}, lambda x: F.max_pool2d(x.relu(), 2), exact=len(np.unique(x)) == x.size), *graphs)
    forward = as_model(tape_of(graphs[1]), graphs[1].graph.input, graphs[1].graph.output, "forward")
    assert [node.op_type for node in forward.graph.node] == ["MaxPool", "Relu", "Mul", "ReduceSum"]
