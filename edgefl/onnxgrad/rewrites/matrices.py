"""Linear algebra and statistics of torch whose own form checks values, without that check.

A graph cannot stop. For a singular matrix it gives infinity or NaN, and a step that is not finite is noticed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _inverse(A: Tensor) -> Tensor:
    return torch.linalg.inv_ex(A).inverse


def _solution(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    return torch.linalg.solve_ex(A, B, left=left).result


def _lu_factor(A: Tensor, *, pivot: bool = True) -> Any:
    found = torch.linalg.lu_factor_ex(A, pivot=pivot)
    types: Any = torch.return_types
    return types.linalg_lu_factor((found.LU, found.pivots))


def _tensor_inverse(A: Tensor, ind: int = 2) -> Tensor:
    rows, columns = A.shape[ind:], A.shape[:ind]
    return _inverse(A.reshape(math.prod(columns), math.prod(rows))).reshape(*rows, *columns)


def _tensor_solution(A: Tensor, B: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    last = [axis % A.dim() for axis in dims or ()]
    moved = A.permute(*(axis for axis in range(A.dim()) if axis not in last), *last)
    sizes = moved.shape[B.dim() :]
    return _solution(moved.reshape(B.numel(), math.prod(sizes)), B.reshape(-1)).reshape(sizes)


def _least_squares(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Compute the solution by the pseudo-inverse, and the residuals; the rank and the singular values are left out."""
    vector = A.dim() - B.dim() == 1
    sides = B.unsqueeze(-1) if vector else B
    share = max(A.shape[-2:]) * torch.finfo(A.dtype).eps if rcond is None else rcond
    found = torch.linalg.pinv(A, rtol=share) @ sides
    rows, columns = A.shape[-2:]
    left = (A @ found - sides).square().sum(-2) if rows > columns else A.new_empty(0)
    rank, values = A.new_empty(0, dtype=torch.int64), A.new_empty(0)
    types: Any = torch.return_types
    return types.linalg_lstsq((found.squeeze(-1) if vector else found, left, rank, values))


def _covariance(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Compute the covariances of rows, whose observations have counts ``fweights`` and weights ``aweights``."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    weights = _product(fweights, aweights, rows.dtype)
    if weights is None:
        count: Any = rows.shape[1]
        means = rows.sum(1, keepdim=True) / count
    else:
        count = weights.sum()
        means = (rows * weights).sum(1, keepdim=True) / count
    if weights is not None and aweights is not None and correction:
        squares = _product(fweights, aweights * aweights, rows.dtype)
        free = count - correction * squares.sum() / count  # type: ignore[union-attr]  # aweights are given
    else:
        free = count - correction
    apart = rows - means
    sums = apart @ (apart if weights is None else apart * weights).T
    least = free.clamp(min=0) if isinstance(free, Tensor) else max(free, 0)
    return (sums / least).squeeze()


def _product(counts: Tensor | None, weights: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    given = [value.to(dtype) for value in (counts, weights) if value is not None]
    return given[0] * given[1] if len(given) == 2 else given[0] if given else None


def _correlation(input: Tensor) -> Tensor:
    """Compute the covariances over both standard deviations."""
    found = _covariance(input)
    if found.dim() == 0:
        return found / found
    spread = torch.diagonal(found).sqrt()
    return (found / spread.reshape(-1, 1) / spread.reshape(1, -1)).clip(-1, 1)


MATRICES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.linalg.inv, torch.inverse, Tensor.inverse), _inverse),
    torch.linalg.solve: _solution,
    torch.linalg.lstsq: _least_squares,
    torch.linalg.cholesky: lambda A, *, upper=False: torch.linalg.cholesky_ex(A, upper=upper).L,
    torch.linalg.lu_factor: _lu_factor,
    # A negative power is that of the inverse; torch's own form has the others.
    **dict.fromkeys(
        (torch.linalg.matrix_power, torch.matrix_power, Tensor.matrix_power),
        lambda A, n: torch.linalg.matrix_power(_inverse(A), -n) if n < 0 else None,
    ),
    torch.linalg.tensorinv: _tensor_inverse,
    torch.linalg.tensorsolve: _tensor_solution,
    **dict.fromkeys((torch.cov, Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef), _correlation),
}
"""Function of torch → the function here."""
