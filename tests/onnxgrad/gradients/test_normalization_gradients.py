"""Gradients of normalisation: with given statistics, with the batch's own, by sample, by group and by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from gradient_case import Case, check, draw, positive
from torch import Tensor


def given(*x: int, **attributes: Any) -> Case:
    """Mean and variance are inputs, and have gradients too."""
    c = x[1]
    inputs = {"x": draw(*x), "w": draw(c), "b": draw(c, seed=1), "mean": draw(c, seed=2), "variance": positive(c)}

    def forward(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        column = [-1, *[1] * (x.ndim - 2)]
        normal = (x - mean.view(column)) / (variance.view(column) + attributes.get("epsilon", 1e-5)).sqrt()
        return normal * w.view(column) + b.view(column)

    return Case("BatchNormalization", inputs, forward, attributes)


def training(*x: int, momentum: float = 0.75) -> Case:
    """The batch's own statistics; the running ones are results that count in the loss."""
    c = x[1]
    inputs = {"x": draw(*x), "w": draw(c), "b": draw(c, seed=1), "mean": draw(c, seed=2), "variance": positive(c)}

    def forward(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        axes = [0, *range(2, x.ndim)]
        own, spread = x.mean(axes), x.var(axes, correction=0)
        running = [old * momentum + new * (1 - momentum) for old, new in ((mean, own), (variance, spread))]
        return (F.batch_norm(x, None, None, w, b, True, 0.0, 2**-10), *running)

    attributes = {"training_mode": 1, "momentum": momentum, "epsilon": 2**-10}
    return Case("BatchNormalization", inputs, forward, attributes, outputs=3)


def instance(*x: int) -> Case:
    inputs = {"x": draw(*x), "scale": draw(x[1]), "shift": draw(x[1], seed=1)}
    return Case("InstanceNormalization", inputs, lambda x, w, b: F.instance_norm(x, weight=w, bias=b))


def layer(x: tuple[int, ...], axis: int, bias: bool = True, constants: tuple[str, ...] = ()) -> Case:
    sizes = x[axis:]
    inputs = {"x": draw(*x), "w": np.ones(sizes) if constants else draw(*sizes)} | ({"b": draw(*sizes, seed=1)} if bias else {})
    attributes = {"axis": axis, "epsilon": 2**-12}

    def forward(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, sizes, w, b, 2**-12)

    return Case("LayerNormalization", inputs, forward, attributes, constants=constants)


CASES = [
    given(3, 4, 5, 3),
    given(3, 4, epsilon=2**-7),
    given(2, 3, 4),
    given(2, 3, 2, 3, 2),
    training(3, 4, 5, 3),
    training(3, 4, 2, momentum=0.0),
    training(2, 3, 2, 3, 2, momentum=0.5),
    instance(2, 3, 5, 4),
    instance(2, 3, 7),
    Case(
        "InstanceNormalization",
        {"x": draw(2, 3, 7), "scale": np.ones(3), "shift": np.zeros(3)},
        lambda x, w, b: F.instance_norm(x),
        constants=("scale", "shift"),
    ),
    layer((3, 4, 5), -1),
    layer((3, 4, 5), 1),
    layer((3, 4, 5), 2, bias=False),
    layer((3, 4, 5), -1, bias=False, constants=("w",)),
    layer((2, 6), -1),
    Case("LpNormalization", {"x": draw(3, 4, 2)}, lambda x: F.normalize(x, dim=1), {"axis": 1}),
    # onnx's evaluator forgets the absolute values.
    Case("LpNormalization", {"x": draw(3, 4)}, lambda x: F.normalize(x, p=1.0), {"p": 1}, exact=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_normalization(case: Case) -> None:
    check(case)
