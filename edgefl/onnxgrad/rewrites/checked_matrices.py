"""Linear algebra that stops with an error for singular matrices, without that check; used while a module is traced.

A graph cannot stop. It gives infinity or NaN there, and a step that is not finite is noticed. The functions have torch's arguments.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _inverse(A: Tensor) -> Tensor:
    found: Tensor = torch.linalg.inv_ex(A).inverse
    return found


def _solution(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    found: Tensor = torch.linalg.solve_ex(A, B, left=left).result
    return found


def _cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    found: Tensor = torch.linalg.cholesky_ex(A, upper=upper).L
    return found


def _lu_factor(A: Tensor, *, pivot: bool = True) -> Any:
    found = torch.linalg.lu_factor_ex(A, pivot=pivot)
    types: Any = torch.return_types
    return types.linalg_lu_factor((found.LU, found.pivots))


def _power(A: Tensor, n: int) -> Tensor | None:
    """Return a negative power as that of the inverse; torch's own form has the others."""
    return torch.linalg.matrix_power(_inverse(A), -n) if n < 0 else None


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


CHECKED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.linalg.inv, torch.inverse, Tensor.inverse), _inverse),
    torch.linalg.solve: _solution,
    torch.linalg.lstsq: _least_squares,
    torch.linalg.cholesky: _cholesky,
    torch.linalg.lu_factor: _lu_factor,
    **dict.fromkeys((torch.linalg.matrix_power, torch.matrix_power, Tensor.matrix_power), _power),
    torch.linalg.tensorinv: _tensor_inverse,
    torch.linalg.tensorsolve: _tensor_solution,
}
"""Function of torch → the function here, which returns None for arguments with which torch's own is exported as it is."""
