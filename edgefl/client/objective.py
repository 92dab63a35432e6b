"""The contract of a local objective, which combines with any method: a pull to the weights that arrived, a correction of the gradient.

An objective adds terms to a method's own loss, over the parameters that travel. By default they are μ/2·‖w − w₀‖² + ⟨s, w⟩, where w₀ are
the weights at the start of the round. Adding an objective is adding a file in ``edgefl/client/objectives/`` with a class decorated
``@objective("name", needs=("received_weights",))``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgefl.registry import objectives

CONTROL = "control:"
"""Prefix of control variates in payloads."""
MEMORY = "memory:"
"""Prefix of what an objective stores on a client."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """An objective.

    Attributes:
        strength: μ or α.
        adds: whether it adds anything to a method's loss.
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
        return objectives.name_of(type(self))

    # What an objective defines.

    def terms(self, weight: Tensor, start: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
        """Yield the scalars that one parameter w adds to the loss; ``start`` is its w₀, ``shift`` its s if the client stores something."""
        yield self.strength / 2 * (weight - start).square().sum()
        if shift is not None:
            yield (shift * weight).sum()

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return what a client stores for a parameter after ``steps`` steps at rate ``lr``; ``moved`` is w − w₀."""
        raise NotImplementedError(f"objective {self.name} remembers nothing")

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return what the server stores of a tensor (float64), given the sum of w − w₀ or of control variates over a round's clients."""
        raise NotImplementedError(f"objective {self.name} remembers nothing")

    def corrected(self, aggregated: Tensor, stored: Tensor) -> Tensor | None:
        """Return the server's new tensor (float64) given the aggregate and what the server stores; None: the aggregate."""
        return None

    # The client's half.

    def control_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the control variates that travel with tensors of ``shapes``.

        >>> objective_named("scaffold").control_shapes({"fc.weight": (10, 4)})
        {'control:fc.weight': (10, 4)}
        """
        return {CONTROL + name: shape for name, shape in shapes.items()} if self.controls else {}

    def first_memory(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return what a client stores before its first round: zeros."""
        return {MEMORY + name: torch.zeros(shape) for name, shape in shapes.items()} if self.remembers else {}

    def attach(self, module: nn.Module, names: Mapping[str, object], memory: Tensors, control: Tensors) -> None:
        """Put w₀ and s of the parameters ``names`` into ``module``, as buffers that are held and counted but not sent."""
        for name, parameter in module.named_parameters() if self.adds else ():
            if name not in names:
                continue
            module.register_buffer(_buffer("start", name), parameter.detach().clone(), persistent=False)
            if self.remembers:
                kept = memory.get(MEMORY + name, torch.zeros_like(parameter))
                shift = control[CONTROL + name] - kept if self.controls and control else -kept
                module.register_buffer(_buffer("shift", name), shift, persistent=False)

    def term(self, module: nn.Module) -> Tensor | float:
        """Return the sum of :meth:`terms` over the parameters that were attached."""
        buffers = dict(module.named_buffers(recurse=False))
        starts = ((name, weight, buffers.get(_buffer("start", name))) for name, weight in module.named_parameters())
        found = (self.terms(w, start, buffers.get(_buffer("shift", name))) for name, w, start in starts if start is not None)
        return sum(chain.from_iterable(found), 0.0)

    def finish(
        self, module: nn.Module, memory: Tensors, control: Tensors, steps: int, lr: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what goes up besides the weights, and what the client stores, after ``steps`` steps at rate ``lr``."""
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
    """Return buffer → name outside of the network, of what :meth:`Objective.attach` puts there for the parameters ``names``.

    >>> anchors(["fc.weight"])
    {'start/fc/weight': 'start.fc.weight', 'shift/fc/weight': 'shift.fc.weight'}
    """
    return {_buffer(kind, name): f"{kind}.{name}" for name in names for kind in ("start", "shift")}


def _buffer(kind: str, name: str) -> str:
    return f"{kind}/{name.replace('.', '/')}"
