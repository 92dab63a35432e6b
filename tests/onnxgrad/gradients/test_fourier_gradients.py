"""Gradients of discrete Fourier transforms: real and complex signals, half and whole spectra, cut and padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_case import Of, check_network
from gradient_case import Case, check, draw
from torch import Tensor


def transformed(x: Tensor, axis: int, length: int | None, inverse: int, one_sided: int) -> Tensor:
    if one_sided and inverse:
        return torch.fft.irfft(torch.view_as_complex(x), length, axis).unsqueeze(-1)
    if one_sided:
        return torch.view_as_real(torch.fft.rfft(x.squeeze(-1), length, axis))
    signal = torch.view_as_complex(x) if x.shape[-1] == 2 else x.squeeze(-1).to(torch.complex128)
    return torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(signal, length, axis))


def case(x: Any, axis: int, length: int | None = None, inverse: int = 0, one_sided: int = 0) -> Case:
    inputs = {"x": x, "length": None if length is None else np.array(length), "axis": np.array(axis)}
    form = {"inverse": inverse, "onesided": one_sided}
    return Case("DFT", inputs, lambda x: transformed(x, axis, length, inverse, one_sided), form, reference=False)


def signal(parts: int, size: int, axis: int) -> Any:
    """Return values with ``size`` entries along ``axis``, real or complex."""
    return draw(3, *((size, 5) if axis == 1 else (4, size)), parts, seed=size)


CASES = [
    *(case(signal(parts, 6, axis), axis, inverse=inverse) for parts in (1, 2) for axis in (1, 2) for inverse in (0, 1)),
    *(case(signal(2, size, 1), 1, 7, inverse) for size in (5, 8) for inverse in (0, 1)),
    *(case(signal(1, size, axis), axis, 8, one_sided=1) for axis in (1, 2) for size in (6, 8, 9)),
    # Half spectra as torch writes them, with a length that fits: onnxruntime 1.31 cuts, pads and completes them wrongly.
    *(case(signal(2, size, axis), axis, length, 1, 1) for axis in (1, 2) for size, length in ((4, 6), (5, 9))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gradient_is_that_of_torch(case: Case) -> None:
    check(case)


FUNCTIONS = {
    "FNet": lambda x: torch.fft.fft2(x).real,
    "filter": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * torch.linspace(-1, 1, 4)),
    "magnitude": lambda x: torch.fft.rfft(x, norm="ortho", dim=2).abs(),
    "inverse": lambda x: torch.fft.ifft(x).real,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_torch(name: str) -> None:
    check_network(Of(FUNCTIONS[name]), draw(3, 2, 5, 6).astype(np.float32))
