"""The memory of a training step, split by what it is for: parameters, gradients, optimizer state, saved values, temporaries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from edgefl.cost.memory import LivenessMeter, bytes_of, held_by


@dataclass(frozen=True)
class MemorySplit:
    """The bytes alive at the peak of a training step; their sum is the peak.

    Parameters (buffers included) and optimizer state are held throughout, as in every step after the first. Gradients are those
    alive at that moment; saved is what the forward pass left for the backward one; temporaries are everything else. ``layer`` ran
    at the peak; ``layers`` maps a layer to its (saved, temporary) bytes then.
    """

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    temporaries: int
    layer: str = ""
    layers: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The peak of the step."""
        return self.parameters + self.gradients + self.optimizer + self.saved + self.temporaries


@dataclass(frozen=True)
class StepMemory:
    """A training step's memory: its peak with everything, and the peak of activations alone, in bytes."""

    split: MemorySplit
    peak_activation_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


def step_memory(meter: LivenessMeter, module: nn.Module, optimizer: torch.optim.Optimizer) -> StepMemory:
    """Return what a metered step of ``module`` held; call it before gradients are cleared."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    state = optimizer_tensors(optimizer)
    of_gradients, of_state = set(meter.numbers(gradients)), set(meter.numbers(state))
    peak, saved = meter.peak(without=of_state), meter.alive_at_marks()
    kinds: Counter[str] = Counter()
    layers: dict[str, tuple[int, int]] = {}
    for number in peak.alive:
        kind = "gradients" if number in of_gradients else "saved" if number in saved else "temporaries"
        size, owner = meter.sizes[number], meter.owners[number]
        kinds[kind] += size
        if kind != "gradients":
            before = layers.get(owner, (0, 0))
            layers[owner] = (before[0] + size, before[1]) if kind == "saved" else (before[0], before[1] + size)
    at_peak = {kind: kinds[kind] for kind in ("gradients", "saved", "temporaries")}
    split = MemorySplit(
        bytes_of(beside(held_by(module), state)), **at_peak, optimizer=bytes_of(state), layer=peak.owner, layers=layers
    )
    return StepMemory(split, meter.peak(of_gradients | of_state).bytes, bytes_of(gradients), bytes_of(state))


def beside(tensors: Iterable[Tensor], state: Iterable[Tensor]) -> list[Tensor]:
    """Return ``tensors`` without those of an optimizer's ``state``: a network may have the momentum that its client hands on."""
    identities = set(map(id, state))
    return [tensor for tensor in tensors if id(tensor) not in identities]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer's state that are as large as a parameter (step counters aside)."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor) and value.dim() > 0]
