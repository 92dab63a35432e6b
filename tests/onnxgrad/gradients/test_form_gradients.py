"""Operators and functions of torch that become several operators: a step has torch's gradients, also at ties, zeros and borders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_case import check_network
from torch import Tensor, nn


class OfWeight(nn.Module):
    """A function of a parameter of chosen values, times a number of each sample."""

    def __init__(self, function: Callable[[Tensor], Tensor], values: Tensor) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        """Return (samples, entries of the function's result)."""
        return x[:, :1] * self.function(self.weight).reshape(1, -1)


TIED = torch.tensor([[2.0, -1.0, 2.0, 0.0, 2.0], [0.5, 0.5, -3.0, 4.0, -3.0], [0.0, -0.0, 1.5, 0.0, -2.0]])
APART = torch.tensor([[2.0, -1.0, 3.0, 0.0, 2.5], [0.5, 0.7, -3.0, 4.0, -2.0], [0.1, -0.3, 1.5, 0.2, -2.0]])
UNKNOWN = torch.tensor([1.0, 0.0, torch.nan, 1.0, 0.0])
SQUARE = torch.tensor([[0.4, -1.2, 0.0], [2.0, 0.1, -0.7], [0.3, 0.0, -2.5]])
MAP = torch.sin(torch.arange(90.0) * 1.7).mul(4).round().reshape(2, 5, 9)  # with ties
SAMPLES = torch.tensor([[[0.1, 0.9], [0.5, 0.3]]])
PLACES = torch.tensor([[-1.0, 1.0], [0.0, 0.3], [1.0, -0.2], [-1.4, 1.9], [0.61, -2.7], [3.3, 0.05]])
VOLUME = torch.sin(torch.arange(48.0)).reshape(1, 2, 2, 3, 4)
DEEP = torch.tensor([[-1.0, 1.0, 0.2], [0.0, 0.3, -1.3], [1.7, -0.2, 0.9]])


def sampled(mode: str, padding: str, aligned: bool) -> Callable[[Tensor], Tensor]:
    """Return samples of a map at places inside, on and behind its border, times places that depend on the map, too."""

    def of(x: Tensor) -> Tensor:
        grid = PLACES.to(x.dtype) * (1 + 0 * x.sum()) + torch.where(PLACES.abs() == 1, 0.0, 0.1 * x[0, 0, :2])
        return F.grid_sample(x[:1].unsqueeze(0), grid.reshape(1, 2, 3, 2), mode, padding, aligned)

    return of


def of_volume(mode: str, padding: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.grid_sample(x, (DEEP.to(x.dtype) + 0.1 * x[0, 0, 0, 0, :3]).reshape(1, 1, 1, 3, 3), mode, padding, False)


GOES = torch.tensor([[0, 2, 2, 0], [1, 1, 0, 2]])


def multiplied(own: bool) -> Callable[[Tensor], Tensor]:
    """Return products of entries that go to one place, some of which are 0."""
    return lambda x: (x + 1).scatter_reduce(0, GOES, x[:2, :4], "prod", include_self=own)


def bags(mode: str) -> Callable[[Tensor], Tensor]:
    """Return bags of unequal length, of which one is empty and one has a row of padding."""
    ids, starts = torch.tensor([0, 2, 1, 1, 2]), torch.tensor([0, 2, 2])
    return lambda x: F.embedding_bag(ids, x, starts, mode=mode, padding_idx=2)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "median": (torch.median, TIED),
    "median-axis": (lambda x: x.median(0).values, APART),
    "nanmedian": (lambda x: torch.nanmedian(torch.where(UNKNOWN.isnan(), UNKNOWN.to(x.dtype), x)), TIED),
    "nanmedian-axis": (lambda x: torch.nanmedian(torch.where(UNKNOWN.isnan(), UNKNOWN.to(x.dtype), x), 1).values, APART),
    "mode": (lambda x: torch.mode(x, 1).values, TIED),
    "kth-of-scalar": (lambda x: x.sum().kthvalue(1).values, TIED),
    "stable": (lambda x: torch.sort(x, dim=1, stable=True, descending=True).values, TIED),
    "product": (torch.prod, APART[:2, :3]),
    "product-of-zeros": (lambda x: torch.cat([x.prod(1), x[2, :2].prod().reshape(1), x[:, :1].prod(0)]), TIED),
    "log-sums": (lambda x: torch.logcumsumexp(40 * x, 1) / 40, TIED),
    "exponential": (torch.matrix_exp, SQUARE),
    "exponential-of-zero": (torch.matrix_exp, torch.zeros(2, 3, 3)),
    "reflections": (lambda x: torch.ormqr(x, x[0], x.T.contiguous(), left=True, transpose=True), SQUARE),
    "reflections-right": (lambda x: torch.ormqr(x, x[0], x.T.contiguous(), left=False), SQUARE),
    "products": (multiplied(True), TIED),
    "products-alone": (multiplied(False), TIED),
    **{f"bags-{mode}": (bags(mode), APART) for mode in ("sum", "mean", "max")},
    "spectrum": (lambda x: torch.view_as_real(torch.stft(x, 4, 3, window=TIED[1, :4].to(x.dtype), return_complex=True)), TIED),
    "adaptive-whole": (lambda x: F.adaptive_avg_pool3d(x, (None, None, None)), VOLUME),
    "put": (lambda x: x.put(torch.tensor([0, -1, 7]), x[0, :3] ** 2), TIED),
    "put-added": (lambda x: x.put(torch.tensor([4, -1, 4]), x[0, :3] ** 2, accumulate=True), TIED),
    "pairs": (F.pdist, torch.cat([APART, APART[:1]])),
    "narrow": (lambda x: x.narrow(1, torch.tensor(2), 2), TIED),
    "narrow-from-end": (lambda x: x.narrow(1, torch.tensor(-3), 2), TIED),
    "nothing": (lambda x: torch.cat([x[:, 1:1], x], 1), TIED),
    "replicate-cropped": (lambda x: F.pad(x, (-2, 3, 4, -1), "replicate"), MAP),
    "reflect-cropped": (lambda x: F.pad(x, (-2, 3, 2, -1), "reflect"), MAP),
    "adaptive-places": (lambda x: F.adaptive_max_pool2d(x, (2, 4), return_indices=True)[0], MAP),
    "adaptive-one": (lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True)[0], MAP),
    "fractional": (lambda x: F.fractional_max_pool2d(x, 2, (3, 4), _random_samples=SAMPLES.to(x.dtype)), MAP),
    "mean-of-ceiled": (lambda x: F.avg_pool2d(x, (2, 4), (2, 3), 1, ceil_mode=True, divisor_override=3), MAP),
    "single-map": (lambda x: F.conv_transpose2d(x, x[:, :2, :2].unsqueeze(1), x[0, 0, :1], (2, 1), 1, (1, 0)), MAP),
    "far-padding": (lambda x: F.conv_transpose1d(x, x[0, :, :6].reshape(5, 3, 2), x[0, 0, :3], 2, 1, 3, dilation=4), MAP),
    **{
        f"grid-{mode}-{padding}-{aligned}": (sampled(mode, padding, aligned), MAP / 4)
        for mode, padding in (
            *(("bicubic", padding) for padding in ("zeros", "border", "reflection")),
            *((mode, "reflection") for mode in ("bilinear", "nearest")),
        )
        for aligned in (True, False)
    },
    **{
        f"volume-{mode}-{padding}": (of_volume(mode, padding), VOLUME)
        for mode, padding in (("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border"))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_a_weight(name: str) -> None:
    function, values = CASES[name]
    check_network(OfWeight(function, values.clone()), np.array([[0.5, -1.0], [1.5, 0.25], [-2.0, 1.0]], np.float32))
