"""A network of the comparison, the batch of which its memory is compared, and its loss."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network and the batch of which its memory is compared.

    Attributes:
        name: unique; the key of the stored measurements.
        build: makes the network.
        shape: of one sample; token ids below ``vocabulary`` if that is not 0, else float32.
        batch_size: samples of a step and of an inference.
        needs: the library that must be installed.
        deployed: makes the network that an inference runs; None: the one that is trained.
        unseen: added when the rules were done, and so held out.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 32, 32)
    batch_size: int = 16
    vocabulary: int = 0
    needs: str = ""
    deployed: Callable[[], nn.Module] | None = None
    unseen: bool = False

    @property
    def held_out(self) -> bool:
        """Whether no rule of the cost model was made with this network: about a third, drawn by a hash of the name, and later ones."""
        return self.unseen or zlib.crc32(self.name.encode()) % 3 == 0

    def inputs(self, batch_size: int) -> Tensor:
        """Return a batch (batch_size, …), the same ones every time."""
        shape, rng = (batch_size, *self.shape), torch.Generator().manual_seed(0)
        if self.vocabulary:
            return torch.randint(self.vocabulary, shape, generator=rng)
        return torch.randn(shape, generator=rng)


def loss_of(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of logits (batch, classes), or the mean square of other outputs."""
    output: Tensor = network(x)
    return nn.functional.cross_entropy(output, y) if output.dim() == 2 else output.square().mean()
