"""Samples of a map at computed places that ONNX's operator lacks: 3-d, cubic or reflected ones."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_CUBIC_A = -0.75
"""The coefficient of torch's cubic kernel."""


@dataclass(frozen=True)
class Axis:
    """One axis of the map.

    Attributes:
        size: entries along the axis.
        padding: torch's number of the padding mode.
        aligned: whether −1 and 1 are the centres of the first and the last entry, not their outer edges.
    """

    size: int
    padding: int
    aligned: bool

    def place(self, coordinate: Tensor) -> Tensor:
        """Return the place, in entries, of a coordinate in [−1, 1]."""
        if self.aligned:
            return (coordinate + 1) / 2 * (self.size - 1)
        return ((coordinate + 1) * self.size - 1) / 2

    def padded(self, place: Tensor) -> Tensor:
        """Return the place inside the map that stands for ``place``."""
        if self.padding == _REFLECTION:
            place = self._reflected(place)
        if self.padding == _ZEROS:
            return place
        # As in torch, the gradient on the border itself is 0.
        return torch.where(place <= 0, 0, torch.where(place >= self.size - 1, self.size - 1, place))

    def _reflected(self, place: Tensor) -> Tensor:
        low, span = (0.0, float(self.size - 1)) if self.aligned else (-0.5, float(self.size))
        if span == 0:
            return torch.zeros_like(place)
        away = place - low
        away = torch.where(away < 0, -away, away)
        flips = torch.floor(away / span)
        rest = away - flips * span
        return torch.where(flips - 2 * torch.floor(flips / 2) == 0, rest, span - rest) + low

    def neighbours(self, coordinate: Tensor, mode: int) -> list[tuple[Tensor, Tensor]]:
        """Return index, as a real number, and weight of each entry that counts for the sample at ``coordinate``."""
        place = self.place(coordinate)
        place = place if mode == _CUBIC else self.padded(place)
        if mode == _NEAREST:
            return [self._entry(torch.round(place), torch.ones_like(place))]
        low = torch.floor(place)
        share = place - low
        if mode == _LINEAR:
            return [self._entry(low, 1 - share), self._entry(low + 1, share)]
        ends = (_far(share + 1), _near(share), _near(1 - share), _far(2 - share))
        return [self._entry(self.padded(low + step), weight) for step, weight in enumerate(ends, -1)]

    def _entry(self, index: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        inside = (index >= 0) & (index <= self.size - 1)
        return torch.where(inside, index, 0), torch.where(inside, weight, 0)


def _near(x: Tensor) -> Tensor:
    """Return the cubic kernel for distances up to 1."""
    return ((_CUBIC_A + 2) * x - (_CUBIC_A + 3)) * x * x + 1


def _far(x: Tensor) -> Tensor:
    """Return the cubic kernel for distances between 1 and 2."""
    return ((_CUBIC_A * x - 5 * _CUBIC_A) * x + 8 * _CUBIC_A) * x - 4 * _CUBIC_A


def _sampled(input: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Any:
    """Return the weighted sum of the neighbours of each place; ``grid`` (batch, *places, axes) has the last axis of the map first."""
    sizes = input.shape[2:]
    if not all(isinstance(size, int) for size in (*sizes, *input.shape[1:2])):
        return NotImplemented
    flat = input.flatten(2)
    places = grid.flatten(1, -2).unsqueeze(1)
    coordinates = [places[..., axis] for axis in reversed(range(len(sizes)))]
    axes = [
        Axis(size, padding, aligned).neighbours(coordinate, mode) for size, coordinate in zip(sizes, coordinates, strict=True)
    ]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    total: Any = 0
    for corner in itertools.product(*axes):
        index: Any = sum(at * stride for (at, _), stride in zip(corner, strides, strict=True))
        weight = math.prod(share for _, share in corner)
        found = flat.gather(2, index.to(torch.int64).expand(-1, input.shape[1], -1))
        total = total + found * weight
    return total.reshape(*input.shape[:2], *grid.shape[1:-1])


def _sampled_map(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor | None:
    """Compute ``torch.nn.functional.grid_sample`` for what has no gradient rule."""
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    if mode not in modes or padding_mode not in paddings or input.dim() not in (4, 5) or (mode == "bicubic" and input.dim() == 5):
        return None
    if input.dim() == 4 and mode != "bicubic" and padding_mode != "reflection":
        return None
    found = _sampled(input, grid, modes.index(mode), paddings.index(padding_mode), bool(align_corners))
    return None if found is NotImplemented else found


GRIDS: dict[Any, Callable[..., Tensor | None]] = {torch.nn.functional.grid_sample: _sampled_map}
"""Function of torch → the function here."""
