"""Local objectives that combine with any method: a pull to the weights that arrived, and a correction of the gradient.

All three add μ/2·‖w − w₀‖² + ⟨s, w⟩ to a method's own loss, over the parameters that travel; w₀ are the weights at the start of the
round:

============ ======= ============= ====================================================================================
``prox``     μ = μ   s = 0         FedProx (Li et al. 2020, Eq. 2)
``dyn``      μ = α   s = −h        FedDyn (Acar et al. 2021, Algorithm 1): h ← h − α(w − w₀) stays on the client
``scaffold`` μ = 0   s = c − cₖ    SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): c comes down with the weights,
                                   cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stays, and cₖ⁺ − cₖ goes up
============ ======= ============= ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CONTROL = "control:"
"""Prefix of control variates in payloads."""
MEMORY = "memory:"
"""Prefix of what an objective keeps on a client."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """One of the objectives above; ``strength`` is μ of ``prox`` and α of ``dyn``."""

    name: str
    strength: float

    @property
    def controls(self) -> bool:
        """Whether control variates travel with the weights, both ways."""
        return self.name == "scaffold"

    @property
    def remembers(self) -> bool:
        """Whether a client keeps a tensor for every parameter that travels."""
        return self.name in ("dyn", "scaffold")

    def control_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the control variates that travel with tensors of ``shapes``.

        >>> Objective("scaffold", 0.1).control_shapes({"fc.weight": (10, 4)})
        {'control:fc.weight': (10, 4)}
        """
        return {CONTROL + name: shape for name, shape in shapes.items()} if self.controls else {}

    def first_memory(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return what a client remembers before its first round: zeros."""
        return {MEMORY + name: torch.zeros(shape) for name, shape in shapes.items()} if self.remembers else {}

    def attach(self, module: nn.Module, names: Mapping[str, object], memory: Tensors, control: Tensors) -> None:
        """Put w₀ and s of the parameters ``names`` into ``module``, as buffers that are held and counted but not sent."""
        for name, parameter in module.named_parameters() if self.name != "none" else ():
            if name not in names:
                continue
            module.register_buffer(_buffer("start", name), parameter.detach().clone(), persistent=False)
            if self.remembers:
                kept = memory.get(MEMORY + name, torch.zeros_like(parameter))
                shift = control[CONTROL + name] - kept if self.controls and control else -kept
                module.register_buffer(_buffer("shift", name), shift, persistent=False)

    def term(self, module: nn.Module) -> Tensor | float:
        """Return μ/2·‖w − w₀‖² + ⟨s, w⟩ over the parameters that were attached."""
        buffers = dict(module.named_buffers(recurse=False))
        total: Tensor | float = 0.0
        for name, parameter in module.named_parameters():
            start, shift = buffers.get(_buffer("start", name)), buffers.get(_buffer("shift", name))
            if start is not None and not self.controls:
                total = total + self.strength / 2 * (parameter - start).square().sum()
            if shift is not None:
                total = total + (shift * parameter).sum()
        return total

    def finish(
        self, module: nn.Module, memory: Tensors, control: Tensors, steps: int, lr: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what goes up besides the weights, and what the client remembers, after ``steps`` steps at rate ``lr``."""
        if not self.remembers:
            return {}, {}
        buffers, up, keep = dict(module.named_buffers(recurse=False)), {}, {}
        for name, parameter in module.named_parameters():
            start = buffers.get(_buffer("start", name))
            if start is None:
                continue
            moved, before = parameter.detach() - start, memory[MEMORY + name]
            if self.controls:
                after = before - control[CONTROL + name] - moved / (steps * lr)
                up[CONTROL + name] = after - before
            else:
                after = before - self.strength * moved
            keep[MEMORY + name] = after
        return up, keep


def anchors(names: Iterable[str]) -> dict[str, str]:
    """Return buffer → name outside of the network, of what :meth:`Objective.attach` puts there for the parameters ``names``.

    >>> anchors(["fc.weight"])
    {'start/fc/weight': 'start.fc.weight', 'shift/fc/weight': 'shift.fc.weight'}
    """
    return {_buffer(kind, name): f"{kind}.{name}" for name in names for kind in ("start", "shift")}


def _buffer(kind: str, name: str) -> str:
    return f"{kind}/{name.replace('.', '/')}"


PLAIN = Objective("none", 0.0)
"""The method's own loss and nothing else."""
