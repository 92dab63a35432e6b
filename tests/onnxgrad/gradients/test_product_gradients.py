"""Gradients of products of matrices, and of the loss of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_case import Case, check, draw
from torch import Tensor


def product(a: tuple[int, ...], b: tuple[int, ...], batch: tuple[str, ...] = ("x",)) -> Case:
    return Case("MatMul", {"x": draw(*a), "b": draw(*b, seed=1)}, torch.matmul, batch=batch)


def gemm(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None = None, **attributes: Any) -> Case:
    def forward(a: Tensor, b: Tensor, c: Any = 0.0) -> Tensor:
        a, b = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
        return attributes.get("alpha", 1.0) * a @ b + attributes.get("beta", 1.0) * c

    inputs = {"x": draw(*a), "b": draw(*b)} | ({"c": draw(*c)} if c is not None else {})
    return Case("Gemm", inputs, forward, attributes, batch=() if attributes.get("transA") else ("x",))


def einsum(equation: str, *shapes: tuple[int, ...]) -> Case:
    inputs = {f"x{i}": draw(*shape, seed=i) for i, shape in enumerate(shapes)}
    return Case("Einsum", inputs, lambda *t: torch.einsum(equation, *t), {"equation": equation}, batch=())


LABELS = np.array([2, 0, 3])
WEIGHTS = np.array([0.5, 2.0, 1.0, 3.0])


def entropy(**attributes: Any) -> Case:
    reduction = attributes.get("reduction", "mean")

    def forward(x: Tensor) -> Tensor:
        return F.cross_entropy(x, torch.tensor(LABELS[: len(x)]), reduction=reduction)

    inputs = {"x": draw(3, 4), "y": LABELS}
    return Case("SoftmaxCrossEntropyLoss", inputs, forward, attributes, batch=("x", "y"))


def entropies(kind: str = "SoftmaxCrossEntropyLoss", weighted: bool = False, **attributes: Any) -> Case:
    """Of the entries of a sequence; some labels are ignored."""
    labels = np.array([[2, 0, -100, 1, 3], [1, 1, 0, 2, -100], [3, -100, -100, 0, 0]])
    options = {"ignore_index": attributes.get("ignore_index", -100), "reduction": attributes.get("reduction", "mean")}
    own = F.nll_loss if kind == "NegativeLogLikelihoodLoss" else F.cross_entropy
    if options["ignore_index"] >= 0:
        labels = np.abs(labels) % 5

    def forward(x: Tensor, *weights: Tensor) -> Tensor:
        return own(x, torch.tensor(labels[: len(x)]), torch.tensor(WEIGHTS) if weighted else None, **options)

    inputs = {"x": draw(3, 4, 5), "y": labels, **({"w": WEIGHTS} if weighted else {})}
    attributes.setdefault("ignore_index", -100)
    return Case(kind, inputs, forward, attributes, batch=("x", "y"), constants=("w",))


CASES = [
    product((3, 4), (4, 2)),
    product((3, 2, 4), (4, 5)),
    product((3, 2, 4), (3, 4, 2), ("x", "b")),
    product((3, 2, 5, 4), (3, 2, 4, 2), ("x", "b")),
    product((3, 2, 5, 4), (2, 4, 2)),
    product((3, 2, 5, 4), (1, 4, 2)),
    product((2, 4), (3, 4, 5), ()),
    product((4,), (4,), ()),
    product((3, 4), (4,)),
    product((3, 2, 4), (4,)),
    product((4,), (4, 3), ()),
    product((4,), (2, 4, 3), ()),
    product((1,), (1,), ()),
    gemm((3, 4), (4, 2)),
    gemm((3, 4), (2, 4), (2,), transB=1),
    gemm((4, 3), (4, 2), (3, 1), transA=1, alpha=0.5),
    gemm((4, 3), (2, 4), (1, 2), transA=1, transB=1, beta=-2.0),
    gemm((3, 4), (4, 2), (), alpha=0.25, beta=0.5),
    einsum("ij,jk->ik", (2, 3), (3, 4)),
    einsum("ij,jk", (2, 3), (3, 4)),
    einsum("ba,ca", (2, 3), (4, 3)),
    einsum("...i,ij->...j", (2, 5, 3), (3, 4)),
    einsum("...ij, ...jk", (2, 5, 3), (2, 3, 4)),
    einsum("i...,...->i...", (2, 5, 3), (5, 3)),
    einsum("bij,bkj->bik", (2, 3, 4), (2, 2, 4)),
    einsum("ij,k->i", (2, 3), (4,)),
    einsum("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)),
    entropy(),
    entropy(reduction="sum"),
    entropy(reduction="none"),
    entropy(ignore_index=-100),
    entropies(),
    entropies(ignore_index=0),
    entropies(weighted=True),
    *(entropies(weighted=True, reduction=reduction) for reduction in ("sum", "none")),
    entropies("NegativeLogLikelihoodLoss"),
    entropies("NegativeLogLikelihoodLoss", weighted=True, reduction="none"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_product(case: Case) -> None:
    check(case)
