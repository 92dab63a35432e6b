"""A segment of a forward pass: its operations, and how they run again when the backward pass asks for their results."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from edgefl.cost.trace import RECOMPUTE


@dataclass(frozen=True, slots=True)
class Ref:  # not a tuple, which torch would look into
    """A tensor by the number of its storage, and its place there."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class RecordedOperation(NamedTuple):
    """An operation as it was dispatched: tensors among its arguments are references. ``makes``: number of a result → its position.

    Some kernels do other work if gradients may be asked for: ``differentiable``.
    """

    run: Any
    arguments: tuple[Any, dict[str, Any]]
    reads: frozenset[int]
    writes: frozenset[int]
    makes: Mapping[int, int]
    random: tuple[torch.Generator, Tensor] | None
    differentiable: bool


class Saved(NamedTuple):
    """The stand-in that autograd holds in place of a tensor of a segment."""

    segment: Segment
    ref: Ref


def unpack(saved: Tensor | Saved) -> Tensor:
    """Return a tensor that autograd saved; its segment runs again if it is part of one."""
    return saved if isinstance(saved, Tensor) else saved.segment.value(saved.ref)


@dataclass
class Segment:
    """A part of the forward pass: its operations, the tensors that it reads from outside, and how often autograd saves each value."""

    operations: list[RecordedOperation] = field(default_factory=list)
    outside: dict[int, Tensor] = field(default_factory=dict)
    saved: Counter[int] = field(default_factory=Counter)
    values: dict[int, Tensor] = field(default_factory=dict)

    def value(self, ref: Ref) -> Tensor:
        """Return a saved tensor. The segment runs again unless it has; what was asked for as often as it was saved is freed."""
        number = ref.number
        if number not in self.values:
            with torch.profiler.record_function(RECOMPUTE):
                self.values = self._run({number, *(n for n, times in self.saved.items() if times > 0)})
        self.saved[number] -= 1
        holder = self.values[number] if self.saved[number] > 0 else self.values.pop(number)
        with torch.no_grad():
            return _placed(holder, ref)

    def _run(self, wanted: set[int]) -> dict[int, Tensor]:
        """Run the operations that lead to ``wanted`` and return these values."""
        needed, chosen = set(wanted), list[RecordedOperation]()
        for operation in reversed(self.operations):
            if needed & (operation.makes.keys() | operation.writes):
                needed |= operation.reads
                chosen.append(operation)
        chosen.reverse()
        last = {number: place for place, operation in enumerate(chosen) for number in (*operation.reads, *operation.makes)}
        alive: dict[int, Tensor] = {}
        for place, operation in enumerate(chosen):
            for number in operation.writes - alive.keys():
                alive[number] = self.outside[number].clone()
            args, kwargs = tree_map_only(Ref, partial(self._given, alive), operation.arguments)
            with _drawing(operation.random), torch.set_grad_enabled(operation.differentiable):
                results = tree_leaves(operation.run(*args, **kwargs))
            alive |= {number: results[position] for number, position in operation.makes.items()}
            del args, kwargs, results
            for number in [n for n in (*operation.reads, *operation.makes) if last[n] == place and n not in wanted]:
                alive.pop(number, None)
        return {number: alive[number] for number in wanted}

    def _given(self, alive: Mapping[int, Tensor], ref: Ref) -> Tensor:
        return _placed(alive[ref.number] if ref.number in alive else self.outside[ref.number], ref)


def _placed(holder: Tensor, ref: Ref) -> Tensor:
    return holder.as_strided(ref.size, ref.stride, ref.offset)


@contextlib.contextmanager
def _drawing(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    """Let a generator continue from a state that it had; after the block it continues from where it was."""
    if random is None:
        yield
        return
    generator, state = random
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)
