"""Linear algebra of torch by a few functions that are composites: factorizations, triangular systems, singular values, exponentials."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgefl.onnxgrad.errors import EdgeflError
from edgefl.onnxgrad.stand_ins import CHOLESKY, CHOLESKY_SOLVE, DET, EIGH, LU, PINV, QR, SVD, TRIANGULAR

aten = torch.ops.aten


def _info(a: Tensor) -> Tensor:
    """Return torch's report that a factorization succeeded."""
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


def triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solve AX = B, or XA = B if not ``left``, for batches that are broadcast."""
    if not left:
        return triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TRIANGULAR(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]), upper, unitriangular)


def _triangular_solve(
    self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    a = A.mT if transpose else A
    return triangular(a, self, upper=upper != transpose, unitriangular=unitriangular), A.clone()


def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    return CHOLESKY(self.mT).mT if upper else CHOLESKY(self)


def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    lower = input2.mT if upper else input2
    batch = torch.broadcast_shapes(self.shape[:-2], lower.shape[:-2])
    return CHOLESKY_SOLVE(self.expand(*batch, *self.shape[-2:]), lower.expand(*batch, *lower.shape[-2:]))


def _rows(value: Tensor, order: Tensor) -> Tensor:
    """Return the rows of a matrix in another order."""
    return value.gather(-2, order.unsqueeze(-1).expand(value.shape))


def _solved(packed: Tensor, order: Tensor, b: Tensor) -> Tensor:
    """Solve AX = B with the factors of A."""
    return triangular(packed, triangular(packed, _rows(b, order), upper=False, unitriangular=True), upper=True)


def _solve(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    b = B.unsqueeze(-1) if vector else B
    a, b = (A, b) if left or vector else (A.mT, b.mT)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    packed, places, order = LU(a)
    wide = order.expand(*batch, order.shape[-1])
    x = _solved(packed, wide, b.expand(*batch, *b.shape[-2:]))
    x = x.squeeze(-1) if vector else x if left else x.mT
    return x, packed, (places + 1).to(torch.int32), _info(A)


def _inverse(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    packed, _, order = LU(A)
    return _solved(packed, order, torch.eye(A.shape[-1], dtype=A.dtype).expand_as(A)), _info(A)


def _sign(places: Tensor, dtype: torch.dtype) -> Tensor:
    """Return −1 for an odd number of swaps, else 1."""
    swaps = (places != torch.arange(places.shape[-1])).to(dtype).sum(-1)
    return 1 - 2 * torch.fmod(swaps, 2)


def _slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    packed, places, _ = LU(A)
    diagonal = torch.where(torch.eye(A.shape[-1]) > 0, packed, torch.zeros_like(packed)).sum(-1)
    signs = _sign(places, A.dtype) * diagonal.sign().prod(-1)
    return signs, diagonal.abs().log().sum(-1), packed, (places + 1).to(torch.int32)


def _lu_factor(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    _check_pivot(pivot)
    packed, places, _ = LU(A)
    return packed, (places + 1).to(torch.int32), _info(A)


def _check_pivot(pivot: bool) -> None:
    if not pivot:
        raise EdgeflError("an LU factorization without pivots has no ONNX form; set pivot=True")


def _lower_and_upper(packed: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = packed.shape[-2:]
    least = min(rows, columns)
    lower = packed[..., :, :least].tril(-1) + torch.eye(rows, least, dtype=packed.dtype)
    return lower, packed[..., :least, :].triu()


def _permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the P with A = PLU."""
    return (torch.arange(order.shape[-1]).unsqueeze(-1) == order.unsqueeze(-2)).to(dtype)


def _lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    _check_pivot(pivot)
    packed, _, order = LU(A)
    return _permutation(order, A.dtype), *_lower_and_upper(packed)


def _order_of(pivots: Tensor, rows: int) -> Tensor:
    """Return the order of rows after the swaps of each with its pivot, which counts from 1."""
    own = torch.arange(rows)
    order = own.expand(*pivots.shape[:-1], rows)
    for step in range(pivots.shape[-1]):
        other = pivots[..., step : step + 1].to(torch.int64) - 1
        places = torch.where(own == step, other, torch.where(own == other, torch.full_like(own, step), own))
        order = order.gather(-1, places)
    return order


def _lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    none = LU_data.new_empty(0)
    order = _order_of(LU_pivots, LU_data.shape[-2])
    factors = _lower_and_upper(LU_data) if unpack_data else (none, none)
    return (_permutation(order, LU_data.dtype) if unpack_pivots else none), *factors


def _lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    batch = torch.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    order = _order_of(pivots, LU.shape[-2]).expand(*batch, LU.shape[-2])
    b = B.expand(*batch, *B.shape[-2:])
    if not adjoint:
        return _solved(LU, order, b)
    found = triangular(LU.mT, triangular(LU.mT, b, upper=False), upper=True, unitriangular=True)
    return _rows(found, order.argsort(-1))


def _qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    rows, columns = A.shape[-2:]
    if mode == "r" or (mode == "complete" and rows > columns):
        raise EdgeflError(f"linalg.qr with mode={mode!r} has no gradient in torch; set mode='reduced'")
    if columns <= rows:
        return QR(A)
    q, r = QR(A[..., :rows])
    return q, torch.cat([r, q.mT @ A[..., rows:]], -1)


def _eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    values, vectors = EIGH(A if UPLO == "L" else A.mT)
    return values, vectors if compute_v else A.new_empty(0)


def _svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if full_matrices and compute_uv and A.shape[-2] != A.shape[-1]:
        raise EdgeflError("linalg.svd of a rectangular matrix with full_matrices has no ONNX form; set full_matrices=False")
    u, s, vh = SVD(A)
    none = A.new_empty(0)
    return (u, s, vh) if compute_uv else (none, s, none)


def _pinv(self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    least = torch.zeros(()) if atol is None else atol
    default = max(self.shape[-2:]) * torch.finfo(self.dtype).eps
    share = torch.full((), default if atol is None else 0.0) if rtol is None else rtol
    batch = self.shape[:-2]
    bounds = [value.to(self.dtype).expand(batch).unsqueeze(-1) for value in (least, share)]
    return PINV(self, *bounds, hermitian)


_DEGREE, _LARGEST, _SQUARINGS = 8, 0.5, 12
"""Degree of the Taylor series, the norm up to which it is exact in float32, and the doublings of that norm that are computed."""


def _matrix_exp(self: Tensor) -> Any:
    """Return exp(A) as exp(A/2ˢ) to the power of 2ˢ, by s squarings; NaN for a norm of 2048 or more."""
    size = self.shape[-1]
    if not isinstance(size, int):
        return NotImplemented
    if size == 0:
        return self.clone()
    norm = self.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    squarings = torch.ceil(torch.log2(norm.clamp(min=_LARGEST) / _LARGEST))
    small, unit = self * torch.exp2(-squarings), torch.eye(size, dtype=self.dtype)
    found = unit + small / _DEGREE
    for degree in reversed(range(1, _DEGREE)):
        found = unit + small @ found / degree
    for step in range(_SQUARINGS):
        found = torch.where(squarings > step, found @ found, found)
    return torch.where(squarings > _SQUARINGS, math.nan, found)


def _reflected(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Any:
    """Return the product of ``input3`` with the reflections I − τvvᵀ, whose vectors are columns of ``self``, from one side."""
    rows, columns = self.shape[-2:]
    vectors = self.tril(-1) + torch.eye(rows, columns, dtype=self.dtype)
    found = input3
    count = input2.shape[-1]
    for step in range(count) if left == transpose else reversed(range(count)):
        vector, scale = vectors[..., step : step + 1], input2[..., step : step + 1].unsqueeze(-1)
        if left:
            found = found - scale * vector * (vector * found).sum(-2, keepdim=True)
        else:
            row = vector.transpose(-1, -2)
            found = found - scale * (found * row).sum(-1, keepdim=True) * row
    return found


MATRICES: dict[Any, Callable[..., Any]] = {
    aten.linalg_solve_triangular.default: triangular,
    aten.triangular_solve.default: _triangular_solve,
    aten.cholesky.default: _cholesky,
    aten.linalg_cholesky_ex.default: lambda self, *, upper=False, check_errors=False: (_cholesky(self, upper), _info(self)),
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: lambda self, upper=False: _cholesky_solve(
        torch.eye(self.shape[-1], dtype=self.dtype), self, upper
    ),
    aten._linalg_solve_ex.default: _solve,  # noqa: SLF001 - an operator's name
    aten.linalg_inv_ex.default: _inverse,
    aten._linalg_slogdet.default: _slogdet,  # noqa: SLF001 - an operator's name
    aten.linalg_lu_factor_ex.default: _lu_factor,
    aten.linalg_lu.default: _lu,
    aten.lu_unpack.default: _lu_unpack,
    aten.linalg_lu_solve.default: _lu_solve,
    aten.linalg_householder_product.default: lambda input, tau: _reflected(
        input, tau, torch.eye(*input.shape[-2:], dtype=input.dtype).expand_as(input)
    ),
    aten.ormqr.default: _reflected,
    aten.linalg_matrix_exp.default: _matrix_exp,
    aten._linalg_det.default: lambda A: (DET(A), A.new_empty(0), A.new_empty(0)),  # noqa: SLF001 - an operator's name
    aten.linalg_qr.default: _qr,
    aten._linalg_eigh.default: _eigh,  # noqa: SLF001 - an operator's name
    aten._linalg_svd.default: _svd,  # noqa: SLF001 - an operator's name
    aten.linalg_pinv.atol_rtol_tensor: _pinv,
}
"""Operator of torch → what computes it."""
