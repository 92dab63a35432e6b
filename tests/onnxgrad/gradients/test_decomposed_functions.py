"""Functions of torch in other operators: running extremes, sums and products at indices, signs, statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_case import Of, check_network
from gradient_case import draw
from torch import Tensor

TIES = torch.tensor([1.0, 1.0, -2.0, 1.0, 3.0, 3.0, -0.0])
TO = torch.tensor([3, 0, 6, 3, 3, 5, 1])


def extremes(x: Tensor) -> Tensor:
    """Return running extremes, also of equal entries, of which torch takes the last."""
    tied = TIES + 0 * x
    lacking = torch.where(x > 0.3, x, torch.full_like(x, float("nan")))
    low, high = torch.aminmax(x, dim=3)
    parts = [torch.cummax(x, 3).values, torch.cummin(x, 1).values, torch.cummax(tied, 3).values, torch.cummin(tied, 3)[0]]
    return torch.cat([*parts, low.unsqueeze(3) * x, high.unsqueeze(3) * x, torch.fmax(lacking, -x), torch.fmin(x, lacking)], 1)


def reduced(x: Tensor) -> Tensor:
    kinds = [(kind, own) for kind in ("mean", "prod", "amax", "amin") for own in (True, False)]
    return torch.cat([(2 * x).index_reduce(3, TO, x, kind, include_self=own) for kind, own in kinds], 1)


def products_with_zeros(x: Tensor) -> Tensor:
    mask = (TIES > 0).to(x.dtype)  # two zeros in a place have no slope, one has that of the others' product
    return torch.cat([x.index_reduce(3, TO, x * mask, "prod"), torch.cumprod(x * mask, 3), (x * mask).cumprod(2)], 1)


def accumulated(x: Tensor) -> Tensor:
    rows, columns = torch.tensor([0, 3, 0, 0]), torch.tensor([[1], [-1]])
    y = x.movedim(0, 3)  # (4, 4, 7, n)
    parts = [y.index_put((rows,), y.flip(0), True), y.index_put((rows, columns), y[:2].flip(1), accumulate=True)]
    return torch.cat(parts).movedim(3, 0)


def signs(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    parts = [torch.copysign(x, TIES), torch.copysign(x, -0.0), torch.copysign(TIES * x, x), mantissa, exponent.to(x.dtype) * x]
    return torch.cat(parts, 1)


def statistics(x: Tensor) -> Tensor:
    rows, counts, weights = (
        x.mean((0, 1)),
        torch.tensor([1, 2, 0, 3, 1, 1, 1]),
        torch.tensor([0.5, 1.0, 2.0, 0.25, 1.0, 1.0, 3.0]),
    )
    found = torch.cov(rows) + torch.cov(rows, correction=0, aweights=weights) + torch.cov(rows, fweights=counts, aweights=weights)
    pairs = torch.combinations(rows[0], 2).prod(1).sum()
    return x * (found + torch.corrcoef(rows)).sum() + pairs + torch.linalg.vander(x[..., :3], N=4).sum()


def segments(x: Tensor) -> Tensor:
    rows = x.movedim(3, 0)
    lengths = torch.tensor([2, 0, 4, 1])
    kinds = ("sum", "mean", "prod")
    found = [torch.segment_reduce(rows, kind, lengths=lengths, axis=0, initial=1.0) for kind in kinds]
    return torch.cat(found).movedim(0, 3)


def others(x: Tensor) -> Tensor:
    medians = torch.nanmedian(torch.where(x > 0, x, torch.full_like(x, float("nan"))), 3, keepdim=True).values
    written = torch.diagonal_scatter(x, x[..., 1, :4], 1, 2, 3)
    shares = torch.divide(x, (x > 0).sum(1, keepdim=True) + 1) * torch.nan_to_num(medians, 2.0)
    return torch.cat([written, shares, torch.linalg.householder_product(x.mT, x[..., 0, :4]).mT], 1)


# index_reduce and segment_reduce are beta, torch says.
pytestmark = pytest.mark.filterwarnings("ignore:index_reduce", "ignore:segment_reduce")
FUNCTIONS = [extremes, reduced, products_with_zeros, accumulated, signs, statistics, segments, others]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: Any) -> None:
    check_network(Of(function), draw(3, 2, 4, 7).astype(np.float32))
