"""Factorizations of small matrices, and what torch computes by them: values and gradients, for batches, singular matrices too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_case import Of, check_network
from gradient_case import Array, Case, check, draw
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import Stepper, training_step


def matrix(kind: str, inputs: dict[str, Array], function: Any, outputs: int = 1, **attributes: Any) -> Case:
    options: dict[str, Any] = {"exact": False, "tolerance": 1e-6, "outputs": outputs}
    return Case(kind, inputs, function, {"domain": "edgefl", **attributes}, **options)


def definite(*shape: int) -> Array:
    a = draw(*shape)
    return a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])


def regular(*shape: int) -> Array:
    return draw(*shape) + 3 * np.eye(shape[-1])


def triangular(upper: int, unit: int) -> Case:
    def solved(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(a, b, upper=bool(upper), unitriangular=bool(unit))

    inputs = {"x": regular(2, 3, 3), "b": draw(2, 3, 2)}
    return Case(
        *("TriangularSolve", inputs, solved, {"domain": "edgefl", "upper": upper, "unit": unit}),
        batch=("x", "b"), exact=False, tolerance=1e-6,
    )  # fmt: skip


SYMMETRIC = draw(2, 4, 4) + np.swapaxes(draw(2, 4, 4), -1, -2)
LACKING = np.array([[[1.0, 2.0, -1.0], [2.0, 4.0, 1.0], [-1.0, -2.0, 3.0]]])  # singular: two columns are parallel
UNREAD = torch.zeros(1, dtype=torch.int64)
"""Stands for a result whose sign is free: integers count for nothing in the loss."""

CASES = [
    matrix("Cholesky", {"x": definite(2, 4, 4)}, torch.linalg.cholesky),
    *(triangular(upper, unit) for upper in (0, 1) for unit in (0, 1)),
    Case(
        "CholeskySolve", {"b": draw(3, 2), "low": regular(3, 3)}, torch.cholesky_solve, {"domain": "edgefl"},
        batch=(), exact=False, tolerance=1e-6,
    ),
    *(matrix("LU", {"x": draw(*shape)}, lambda x: torch.linalg.lu_factor(x)[0], 3) for shape in ((2, 3, 3), (2, 3, 5), (2, 4, 2))),
    Case("Det", {"x": draw(2, 3, 3)}, torch.linalg.det),
    Case("Det", {"x": LACKING}, torch.linalg.det, exact=False),  # torch's gradient is 0
    *(matrix("QR", {"x": draw(*shape)}, lambda x: tuple(torch.linalg.qr(x)), 2) for shape in ((2, 3, 3), (2, 4, 2), (2, 2, 1))),
    matrix("Eigh", {"x": SYMMETRIC}, lambda x: torch.linalg.eigh(x)[0], 2),
    *(matrix("SVD", {"x": draw(*shape)}, lambda x: (UNREAD, torch.linalg.svdvals(x)), 3) for shape in ((2, 3, 3), (2, 2, 5))),
    Case(
        "PInv", {"x": draw(2, 4, 3), "least": np.zeros((2, 1)), "share": np.full((2, 1), 1e-6)},
        lambda x, *bounds: torch.linalg.pinv(x), {"domain": "edgefl", "symmetric": 0}, constants=("least", "share"),
        batch=("x", "least", "share"), exact=False, tolerance=1e-6,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    check(case)


def in_equations(x: Tensor) -> Tensor:
    a = x[..., :3] + 4 * torch.eye(3)
    low = torch.linalg.cholesky(a @ a.mT)
    packed, pivots = torch.linalg.lu_factor(a)
    parts = [
        *(torch.linalg.inv(a), torch.linalg.solve(a, x), torch.linalg.solve(a, x[..., 0]).unsqueeze(-1)),
        *(torch.linalg.solve(a, a.flip(-1), left=False), torch.linalg.lu_solve(packed, pivots, x), *torch.linalg.lu(x)[1:]),
        *(torch.cholesky_solve(x, low), torch.cholesky_inverse(low.mT, upper=True), torch.linalg.matrix_power(a, -2)),
        *(torch.linalg.lu_solve(packed, pivots, x, adjoint=True), torch.linalg.pinv(x), torch.linalg.lstsq(a, x).solution),
    ]
    numbers = [torch.linalg.det(a), torch.logdet(a @ a.mT), *torch.linalg.slogdet(a.flip(-1)), torch.linalg.cond(a)]
    return torch.cat([part.flatten(2) for part in (*parts, *(number.unsqueeze(-1) for number in numbers))], 2)


def spectral(x: Tensor) -> Tensor:
    """Return functions that do not depend on the signs of vectors."""
    values, vectors = torch.linalg.eigh(x[..., :3] + x[..., :3].mT)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    q, r = torch.linalg.qr(x)
    parts = [
        *(values.unsqueeze(-1), vectors**2, (u * s.exp().unsqueeze(-2)) @ vh, q, r, torch.linalg.qr(x.mT).R),
        *(torch.linalg.matrix_norm(x, kind).unsqueeze(-1).unsqueeze(-1) for kind in ("nuc", "fro")),
    ]
    return torch.cat([part.flatten(2) for part in parts], 2)


@pytest.mark.parametrize("function", [in_equations, spectral])
def test_functions_of_torch(function: Any) -> None:
    check_network(Of(function), draw(3, 2, 3, 4).astype(np.float32))


class Large(nn.Module):
    """The inverse of a matrix that is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(40))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the inverse."""
        return x @ torch.linalg.inv(self.weight)


def test_large_matrices_are_refused() -> None:
    with pytest.raises(EdgeflError, match=r"\(LU\): 40 x 40 is too large to be written in ONNX operators, at most 32"):
        training_step(Large(), lambda own, x: own(x).sum(1).mean(), {"x": torch.zeros(2, 40)})


class Nuclear(nn.Module):
    """A nuclear norm times the mean of the input."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(rows, columns))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x.mean() * torch.linalg.matrix_norm(self.weight, "nuc")


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3)])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_gradient_of_a_nuclear_norm_of_lower_rank_is_the_least_one(shape: tuple[int, int], rank: int) -> None:
    """The product of the vectors of singular values that are not 0, of all the gradients that convexity allows."""
    values = (draw(shape[0], rank) @ draw(rank, shape[1])).astype(np.float32)
    step = training_step(Nuclear(*shape), lambda own, x: own(x), {"x": torch.ones(2, 1)})
    role = step.roles.tensors["weight"]
    stepper = Stepper(step, {role: values.copy()}, 1.0)
    u, s, vh = np.linalg.svd(values.astype(np.float64))
    assert stepper.step(np.ones((3, 1), np.float32)) == pytest.approx(s.sum(), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(values - stepper.tensors()[role], u[:, :rank] @ vh[:rank], atol=1e-5)
