"""The contract of a server optimizer: how the server uses the aggregate of a round.

It treats Δ = aggregated − old as a gradient (Reddi et al. 2021, Adaptive Federated Optimization, Algorithm 2). It sees trained tensors;
statistics such as BatchNorm's are those of the aggregate (:mod:`edgefl.server.statistics`). To add one, write a file
in ``edgefl/server/optimizers/`` with a class decorated ``@server_optimizer("name", needs=("server_step",))``.
"""

import abc
import math
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from edgefl.errors import ConfigError, nearest
from edgefl.methods.state import Tensors
from edgefl.registry import Options, server_optimizers
from edgefl.util.spec import called

SLOT = "optimizer:"
"""Prefix of the names of an optimizer's slots among the server's tensors."""


@dataclass(frozen=True)
class ServerOptimizer(abc.ABC):
    """w ← w + η·change(Δ), tensor by tensor.

    Attributes:
        lr: η, the learning rate of the server.
        usual_lr: η if a run does not set it.
        slots: names of the tensors that the optimizer stores for each tensor of the state, such as moments; they start at :meth:`first`.
    """

    lr: float

    usual_lr: ClassVar[float] = 1.0
    slots: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, options: Options, lr: float | None = None) -> Self:
        """Return the optimizer with ``options`` and its usual rate, or ``lr``; ConfigError for an unknown option or a wrong value."""
        names = [field.name for field in fields(cls) if field.name != "lr"]
        for name, value in options.items():
            if name not in names:
                raise ConfigError(f"{name!r} is no option;{nearest(name, names)} known: {', '.join(names) or 'none'}")
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ConfigError(f"{name}: expected a finite number of at least 0, got {value!r}")
        return cls(cls.usual_lr if lr is None else lr, **options)

    def first(self, slot: str) -> float:
        """Return the value of all entries of ``slot`` before the first round."""
        return 0.0

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
        slots: dict[str, Tensor] = {}
        for name, after in aggregated.items():
            before = old.get(name)
            if before is None or before.shape != after.shape or not after.is_floating_point():
                tensors[name] = after
                continue
            names = {f"{SLOT}{slot}/{name}": self.first(slot) for slot in self.slots}
            stored = (memory.get(key, torch.full_like(after, first)) for key, first in names.items())
            change, *values = self.change(after - before, *stored)
            tensors[name] = before + self.lr * change
            slots |= dict(zip(names, values, strict=True))
        return tensors, slots


def optimizer_named(spec: str, lr: float | None = None) -> ServerOptimizer:
    """Return the server optimizer ``name`` or ``name(option=value, …)`` with its usual rate or ``lr``.

    Raises:
        UnknownNameError: there is no such optimizer.
        ConfigError: it has no such option, or a value is wrong.

    >>> optimizer_named("adam").lr, optimizer_named("adam(beta2=0.5)").beta2
    (0.01, 0.5)
    """
    name, options = called(spec)
    kind: type[ServerOptimizer] = server_optimizers.load(name)
    return kind.of(options, lr)
