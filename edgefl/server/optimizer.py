"""The contract of a server optimizer: how the server uses the aggregate of a round.

It treats Δ = aggregated − old as a gradient (Reddi et al. 2021, Adaptive Federated Optimization, Algorithm 2). It sees trained tensors;
statistics such as BatchNorm's are those of the aggregate (:mod:`edgefl.server.statistics`). To add one, write a file
in ``edgefl/server/optimizers/`` with a class decorated ``@server_optimizer("name", needs=("server_step",))``.
"""

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from edgefl.methods.state import Tensors
from edgefl.registry import server_optimizers

SLOT = "optimizer:"
"""Prefix of the names of an optimizer's slots among the server's tensors."""


@dataclass(frozen=True)
class ServerOptimizer(abc.ABC):
    """w ← w + η·change(Δ), tensor by tensor.

    Attributes:
        lr: η, the learning rate of the server.
        usual_lr: η if a run does not set it.
        slots: names of the tensors that the optimizer stores for each tensor of the state, such as moments; they start at zero.
    """

    lr: float

    usual_lr: ClassVar[float] = 1.0
    slots: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        """Return the change for Δ, and the slots after this step in the order of :attr:`slots`."""

    def step(self, old: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the new tensors, and the slots by name.

        Integer tensors, and tensors that are new or have a new shape, are those of ``aggregated``.

        >>> old, new = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
        >>> momentum = optimizer_named("avgm")
        >>> tensors, slots = momentum.step(old, new, {})
        >>> momentum.step(tensors, {"w": torch.ones(1)}, slots)[0]["w"]
        tensor([1.9000])
        """
        tensors: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        for name, after in aggregated.items():
            before = old.get(name)
            if before is None or before.shape != after.shape or not after.is_floating_point():
                tensors[name] = after
                continue
            names = [f"{SLOT}{slot}/{name}" for slot in self.slots]
            change, *slots = self.change(after - before, *(memory.get(key, torch.zeros_like(after)) for key in names))
            tensors[name] = before + self.lr * change
            kept |= dict(zip(names, slots, strict=True))
        return tensors, kept


def optimizer_named(name: str, lr: float | None = None) -> ServerOptimizer:
    """Return the server optimizer ``name`` with its usual rate or ``lr``, or raise :class:`UnknownNameError`.

    >>> optimizer_named("adam").lr
    0.01
    """
    kind: type[ServerOptimizer] = server_optimizers.load(name)
    return kind(kind.usual_lr if lr is None else lr)
