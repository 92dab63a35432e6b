"""Covariances and correlations of torch, whose own form checks values; used while a module is traced."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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


STATISTICS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cov, Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef), _correlation),
}
"""Function of torch → the function here."""
