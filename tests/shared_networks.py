"""Small networks in which one tensor has several names, or whose forward assigns buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Again(nn.Module):
    """One linear layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.again = self.body

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.again(torch.relu(self.body(torch.relu(self.first(x)))))))


class Once(nn.Module):
    """The function of :class:`Again`, whose layer has one name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(torch.relu(self.body(torch.relu(self.first(x)))))))


class TiedHead(nn.Module):
    """A head that shares the embedding's weight. It takes five token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(self.embedding(x))).mean(1))


class SharedNorm(nn.Module):
    """A normalisation that is applied twice, so that its statistics are updated twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.same = self.norm

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.same(torch.relu(self.norm(self.first(x)))))


class TwoContainers(nn.Module):
    """One layer inside two containers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.one, self.two, self.head = nn.Sequential(layer, nn.ReLU()), nn.Sequential(nn.Tanh(), layer), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)))


class TwiceInList(nn.Module):
    """A list of parameters that has one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.weights, self.head = nn.ParameterList([weight, nn.Parameter(torch.randn(8, 8) / 3), weight]), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return self.head(x)


class Assigning(nn.Module):
    """A running mean that forward assigns, not in place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.head(x - self.mean)


class Late(nn.Module):
    """A buffer that is None until forward sets it."""

    offset: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("offset", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.offset is None:
            self.offset = torch.arange(4.0)
        return self.head(x) + self.offset


class Remembering(nn.Module):
    """A running mean that is None until forward sets it."""

    mean: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.mean(0) if self.mean is None else 0.9 * self.mean + 0.1 * x.mean(0)
        return self.head(F.relu(x - self.mean))


def in_sequence() -> nn.Module:
    """Return a sequence that has one layer twice."""
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 4))


def parametrized() -> nn.Module:
    """Return a sequence that has one layer with a computed weight twice."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 4))


SHARED = (Again, TiedHead, SharedNorm, TwoContainers, TwiceInList, in_sequence, parametrized)


def samples(network: nn.Module, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return samples (count, …) that ``network`` takes, and labels (count,) in 0 … 3."""
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=drawn)
    ids = isinstance(network, TiedHead)
    return (torch.randint(10, (count, 5), generator=drawn) if ids else torch.randn(count, 8, generator=drawn)), labels


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return every name → parameter or buffer of ``network``."""
    return {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers(remove_duplicate=False))}
