"""The contract of a local objective, such as FedProx's pull towards the received weights. Objectives combine with any method.

An objective adds terms to a method's own loss, over the parameters that travel. By default they are μ/2·‖w − w₀‖² + ⟨s, w⟩, with the
weights w₀ at the start of the round. s is the control variate (if there is one) minus what the client stores. To add an objective, add a
file in ``edgefl/client/objectives/`` with a class decorated ``@objective("name", needs=("received_weights",))``, see
:mod:`edgefl.methods.axes`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgefl.methods.state import Tensors
from edgefl.registry import objectives

CONTROL = "control:"
"""Prefix of control variates in payloads."""
MEMORY = "memory:"
"""Prefix of what an objective stores on a client."""


@dataclass(frozen=True)
class Objective:
    """Terms that a client adds to its method's loss, and what client and server store for them.

    Attributes:
        strength: coefficient of the terms: μ or α.
        adds: whether it adds terms at all.
        remembers: whether a client stores a tensor for every parameter that travels.
        controls: whether control variates travel with the weights, both ways.
    """

    strength: float

    adds: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    controls: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The objective's name in the registry."""
        return objectives.name_of(type(self)) or type(self).__name__

    @classmethod
    def needed(cls) -> tuple[str, ...]:
        """Return the methods that a subclass has to define."""
        return ("remembered", "on_server") if cls.remembers else ()

    # Subclasses override these, which deal with one parameter each.

    def terms(self, weight: Tensor, start: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
        """Yield the scalars that a parameter w adds to the loss; ``start`` is w₀, ``shift`` is s (None unless the objective remembers)."""
        yield self.strength / 2 * (weight - start).square().sum()
        if shift is not None:
            yield (shift * weight).sum()

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return what a client stores for a parameter, ``before`` until now, after ``steps`` at rate ``lr``; ``moved`` is w − w₀."""
        raise NotImplementedError(f"objective {self.name} remembers nothing")

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return what the server stores for a tensor (float64); ``total`` sums w − w₀ or control variates, ``clients`` are the run's."""
        raise NotImplementedError(f"objective {self.name} remembers nothing")

    def corrected(self, aggregated: Tensor, stored: Tensor) -> Tensor | None:
        """Return the server's new tensor (float64), given the aggregate and what the server stores; None: the aggregate itself."""
        return None

    # A client calls these.

    def control_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the control variates that travel with tensors of ``shapes``.

        >>> objective_named("scaffold").control_shapes({"fc.weight": (10, 4)})
        {'control:fc.weight': (10, 4)}
        """
        return {CONTROL + name: shape for name, shape in shapes.items()} if self.controls else {}

    def first_memory(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return name → zeros of ``shapes``, which a client stores before its first round."""
        return {MEMORY + name: torch.zeros(shape) for name, shape in shapes.items()} if self.remembers else {}

    def attach(self, module: nn.Module, names: Container[str], memory: Tensors, control: Tensors) -> None:
        """Add w₀ and s of the parameters ``names`` to ``module`` as buffers, which are counted as memory but not sent."""
        for name, parameter in module.named_parameters() if self.adds else ():
            if name not in names:
                continue
            module.register_buffer(_buffer("start", name), parameter.detach().clone(), persistent=False)
            if self.remembers:
                stored = memory.get(MEMORY + name, torch.zeros_like(parameter))
                shift = control[CONTROL + name] - stored if self.controls and control else -stored
                module.register_buffer(_buffer("shift", name), shift, persistent=False)

    def term(self, module: nn.Module) -> Tensor | float:
        """Return the sum of :meth:`terms` over the parameters that :meth:`attach` named, a scalar."""
        buffers = dict(module.named_buffers(recurse=False))
        starts = ((name, weight, buffers.get(_buffer("start", name))) for name, weight in module.named_parameters())
        terms = (self.terms(w, start, buffers.get(_buffer("shift", name))) for name, w, start in starts if start is not None)
        return sum(chain.from_iterable(terms), 0.0)

    def finish(
        self, module: nn.Module, memory: Tensors, control: Tensors, steps: int, lr: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the control variates to send and the tensors to store, each by name, after ``steps`` steps at rate ``lr``."""
        if not self.remembers:
            return {}, {}
        buffers, up, keep = dict(module.named_buffers(recurse=False)), {}, {}
        for name, parameter in module.named_parameters():
            if (start := buffers.get(_buffer("start", name))) is None:
                continue
            before = memory[MEMORY + name]
            after = self.remembered(before, parameter.detach() - start, control.get(CONTROL + name), steps, lr)
            if self.controls:
                up[CONTROL + name] = after - before
            keep[MEMORY + name] = after
        return up, keep


def objective_named(name: str, strength: float = 0.0) -> Objective:
    """Return the objective ``name``, or raise :class:`UnknownNameError`.

    >>> objective_named("prox", 0.1)
    Prox(strength=0.1)
    """
    return objectives.load(name)(strength)


def anchors(names: Iterable[str]) -> dict[str, str]:
    """Return the buffers that :meth:`Objective.attach` adds for the parameters ``names``, each with its name in exported graphs.

    >>> anchors(["fc.weight"])
    {'start/fc/weight': 'start.fc.weight', 'shift/fc/weight': 'shift.fc.weight'}
    """
    return {_buffer(kind, name): f"{kind}.{name}" for name in names for kind in ("start", "shift")}


def _buffer(kind: str, name: str) -> str:
    return f"{kind}/{name.replace('.', '/')}"
