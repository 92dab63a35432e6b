"""Small networks, each of which does mostly one kind of work: their steps tell the costs of the kinds apart."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from edgefl.models.base import Architecture


@dataclass(frozen=True)
class Probe(Architecture):
    """A network that is measured at one batch size."""

    make: Callable[[], nn.Module] = nn.Identity
    batch_size: int = 8

    def __post_init__(self) -> None:
        """Accept a name that is not registered."""

    def build(self, width: float = 1.0) -> nn.Module:
        """Return the network; it has one width."""
        return self.make()

    @property
    def vocabulary(self) -> int:
        """0: inputs are float32."""
        return 0

    @property
    def labels(self) -> int:
        """1: a sample has one label."""
        return 1


class _Scaled(nn.Module):
    """Multiplies each feature by a weight, so that a gradient passes through the layers before it."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class _Copied(nn.Module):
    """Copies features: into another order, and beside each other."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2).contiguous().transpose(1, 2)
        first, second = torch.cat([y, x], 1).chunk(2, 1)
        return first + second


class _Attention(nn.Module):
    """Attention of four heads between positions (samples, positions, features)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.projections = nn.Linear(features, 3 * features)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.projections(x).unflatten(2, (12, -1)).transpose(1, 2).chunk(3, 1)
        weights = (query @ key.transpose(2, 3)).softmax(3)
        return (weights @ value).transpose(1, 2).flatten(2)


class _Recurrent(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(x)[0]
        return outputs


class _Mean(nn.Module):
    """The mean over positions and pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def _stack(features: int, layer: Callable[[], nn.Module], count: int, flat: bool = False) -> nn.Module:
    return nn.Sequential(*(layer() for _ in range(count)), *([] if flat else [_Mean()]), nn.Linear(features, 10))


def _between(channels: int, layer: Callable[[], nn.Module], count: int) -> nn.Module:
    # The gradient of a convolution lies in memory as that of other layers of a network does.
    body = [_Scaled(1, channels, 1, 1), *(layer() for _ in range(count)), nn.Conv2d(channels, 8, 1)]
    return nn.Sequential(*body, _Mean(), nn.Linear(8, 10))


def _images(name: str, channels: int, side: int, layer: Callable[[], nn.Module], count: int = 3, batch_size: int = 8) -> Probe:
    make = partial(_between, channels, layer, count)
    return Probe(name, (channels, side, side), 10, make=make, batch_size=batch_size)


def _convolution(channels: int, kernel: int | tuple[int, int], groups: int = 1) -> Callable[[], nn.Module]:
    return partial(nn.Conv2d, channels, channels, kernel, padding="same", groups=groups)


def _pair(channels: int) -> nn.Module:
    return nn.Sequential(*(_convolution(channels, kernel)() for kernel in ((3, 1), (1, 3))))


def _activations() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Hardswish(), nn.GELU(), nn.Sigmoid())


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8))


def probes() -> tuple[Probe, ...]:
    """Return the networks."""
    return (
        _images("3x3 convolutions, 64 channels", 64, 14, _convolution(64, 3)),
        _images("3x3 convolutions, 16 channels", 16, 32, _convolution(16, 3)),
        _images("3x3 convolutions, 256 channels", 256, 4, _convolution(256, 3)),
        _images("5x5 convolutions", 32, 14, _convolution(32, 5)),
        _images("1x1 convolutions, 32 channels", 32, 32, _convolution(32, 1)),
        _images("1x1 convolutions, 256 channels", 256, 7, _convolution(256, 1)),
        _images("depthwise convolutions, 64 channels", 64, 28, _convolution(64, 3, 64)),
        _images("depthwise convolutions, 256 channels", 256, 7, _convolution(256, 3, 256)),
        _images("grouped convolutions", 64, 14, _convolution(64, 3, 4)),
        _images("3x1 and 1x3 convolutions", 32, 16, partial(_pair, 32)),
        _images("batch normalisation", 64, 28, partial(nn.BatchNorm2d, 64), batch_size=16),
        _images("group normalisation", 64, 14, partial(nn.GroupNorm, 8, 64)),
        _images("activations", 64, 14, _activations),
        _images("large activations", 64, 56, _activations, 1, 16),
        _images("pooling", 64, 28, partial(nn.MaxPool2d, 3, 1, 1)),
        _images("copies", 64, 28, _Copied),
        Probe(
            "large products", (1024,), 10, make=partial(_stack, 1024, partial(nn.Linear, 1024, 1024), 2, flat=True), batch_size=64
        ),
        Probe("small products", (128,), 10, make=partial(_stack, 128, partial(nn.Linear, 128, 128), 8, flat=True)),
        Probe("attention", (64, 128), 10, make=partial(_stack, 128, partial(_Attention, 128), 2)),
        Probe("layer normalisation", (64, 256), 10, make=partial(_stack, 256, partial(nn.LayerNorm, 256), 4)),
        Probe("recurrent layers", (32, 64), 10, make=partial(_stack, 128, partial(_Recurrent, 64, 128), 1)),
        Probe("many small layers", (8,), 10, make=partial(_stack, 8, _tiny, 20, flat=True), batch_size=2),
        Probe(
            "large weights", (2048,), 10, make=partial(_stack, 2048, partial(nn.Linear, 2048, 2048), 1, flat=True), batch_size=1
        ),
    )
