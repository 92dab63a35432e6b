"""Recomputation (activation checkpointing): the forward pass keeps what segments of it read, and the backward pass runs them again.

A segment is a part of the forward pass between two layers. Its operations are noted as torch dispatches them, with what they read from
outside. What autograd saves of the segment is dropped. When the backward pass asks for it, the operations that lead to it run again, once
per segment: operations, not the network's code. Random masks are drawn again from the same state of the generator. What the forward pass
has changed in place, such as running statistics, is changed in a copy. So loss, gradients and buffers have the same bits.

Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from edgefl.client.recompute.segment import RecordedOperation, Ref, Saved, Segment, unpack
from edgefl.cost.trace import Loss
from edgefl.records import Batch
from edgefl.util.tensors import tensors_in

aten = torch.ops.aten


def recomputing(loss: Loss, before: Sequence[str]) -> Loss:
    """Return ``loss`` with a backward pass that computes again what the forward pass saves before the last layer of ``before``.

    A segment begins with the network, and before each of the layers ``before`` runs for the first time. The part from the last of them on
    is saved as usual: its backward pass follows at once.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> plain = lambda module, batch: module(batch.x).sum()
    >>> def gradient(loss):
    ...     value = loss(network, Batch(torch.ones(4, 2), torch.zeros(4)))
    ...     return torch.autograd.grad(value, network[0].weight)[0]
    >>> torch.equal(gradient(recomputing(plain, ["2"])), gradient(plain))
    True
    """
    return lambda module, batch: taped(loss, module, batch, Tape(before, spares_last=True))


def taped(loss: Loss, module: nn.Module, batch: Batch, tape: Tape) -> Tensor:
    """Return the loss of a batch, with the forward pass on ``tape``."""

    def begin(name: str) -> Callable[..., None]:
        return lambda *_: tape.enter(name)

    handles = [module.get_submodule(name).register_forward_pre_hook(begin(name)) for name in tape.before]
    tape.watch(module)
    try:
        with torch.autograd.graph.saved_tensors_hooks(tape.pack, unpack), tape:
            return loss(module, batch)
    finally:
        for handle in handles:
            handle.remove()


class Tape(TorchDispatchMode):
    """Notes the operations of a forward pass, segment by segment.

    Args:
        before: the layers before which segments begin.
        spares_last: whether the part from the last of them on is saved as usual.
    """

    def __init__(self, before: Sequence[str], spares_last: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before, self._spares_last = tuple(before), spares_last
        self._left = set(before)
        self.began: list[str] = []
        self._segments = [Segment()]
        self._noting = True
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._home: list[int] = []  # of a number, the segment that made the storage; −1: none
        self._kinds: list[tuple[torch.dtype, int]] = []  # of a number, the type and the bytes of the storage
        self._reads: dict[int, tuple[int, int]] = {}  # of a number, the first and the last segment that read it
        self._trained: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under this mode

    def watch(self, module: nn.Module) -> None:
        """Number the parameters of the network that are trained."""
        self._trained = {self._number(parameter) for parameter in module.parameters() if parameter.requires_grad}

    def enter(self, name: str) -> None:
        """Begin a segment before a layer, unless it has run before."""
        if name in self._left:
            self._left.discard(name)
            self.began.append(name)
            self._noting = bool(self._left) or not self._spares_last
            if self._noting:
                self._segments.append(Segment())

    def pack(self, tensor: Tensor) -> Tensor | Saved:
        """Return what autograd holds in place of a tensor that it saves."""
        if not self._noting or (ref := self._ref(tensor)) is None or self._home[ref.number] != len(self._segments) - 1:
            return tensor
        self._segments[-1].saved[ref.number] += 1
        return Saved(self._segments[-1], ref)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [tensor for tensor in _written(func, args, kwargs) if isinstance(tensor, Tensor)]
        for tensor in written:
            self._will_change(tensor)
        if not self._noting or func.is_view:
            return func(*args, **kwargs)
        segment, arguments = self._segments[-1], (args, kwargs)
        inputs = list(tensors_in(arguments))
        numbers = [self._number(tensor) for tensor in inputs]
        refs = tree_map_only(Tensor, self._noted, arguments)
        random = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = kwargs.get("generator") or _generator_of(inputs, kwargs)
            random = generator, generator.get_state()
        out = func(*args, **kwargs)
        old, makes = {self._known[_storage(t)][1] for t in inputs}, dict[int, int]()
        for position, tensor in enumerate(tree_leaves(out)):
            if isinstance(tensor, Tensor) and (not self._knows(tensor) or self._number(tensor) not in old):
                makes[self._number(tensor, fresh=True)] = position
        writes = frozenset(self._number(tensor) for tensor in written)
        if makes or writes:
            differentiable = torch.is_grad_enabled()
            segment.operations.append(RecordedOperation(func, refs, frozenset(numbers), writes, makes, random, differentiable))
        return out

    def sizes(self) -> tuple[list[int], list[int], list[int]]:
        """Return the bytes that autograd saved of each segment, and of each boundary after one: bytes that cross it, and gradients.

        The gradients are those of parameters that no earlier segment reads.
        """
        count = len(self._segments)
        saved, crossing, gradients = [0] * count, [0] * (count - 1), [0] * (count - 1)
        packed = {number for segment in self._segments for number in segment.saved}
        for number, (home, (_, size)) in enumerate(zip(self._home, self._kinds, strict=True)):
            first, until = self._reads.get(number, (count, home))
            if home >= 0:
                saved[home] += size if number in packed or until > home else 0
                for boundary in range(home, until):
                    crossing[boundary] += size
            elif number in self._trained:
                for boundary in range(min(first, count - 1)):
                    gradients[boundary] += size
        return saved, crossing, gradients

    def _knows(self, tensor: Tensor) -> bool:
        entry = self._known.get(_storage(tensor))
        return entry is not None and entry[0]() is not None

    def _number(self, tensor: Tensor, fresh: bool = False) -> int:
        """Return the number of a tensor's storage; a new one if it is ``fresh``, made by the current segment, or was never seen."""
        storage = tensor.untyped_storage()
        if not fresh and self._knows(tensor):
            return self._known[storage._cdata][1]
        number = len(self._home)
        self._known[storage._cdata] = weakref.ref(storage), number
        self._home.append(len(self._segments) - 1 if fresh else -1)
        self._kinds.append((tensor.dtype, storage.nbytes()))
        return number

    def _ref(self, tensor: Tensor) -> Ref | None:
        """Return a reference to a tensor; None if it reads its storage in a way of its own."""
        number = self._number(tensor)
        if tensor.dtype != self._kinds[number][0] or tensor.is_conj() or tensor.is_neg():
            return None
        return Ref(number, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _noted(self, tensor: Tensor) -> Ref | Tensor:
        """Return an argument as its operation is noted with; the segment holds what another segment has made."""
        number, here = self._number(tensor), len(self._segments) - 1
        self._reads[number] = self._reads.get(number, (here, here))[0], here
        if (ref := self._ref(tensor)) is None:
            return tensor.detach()
        if self._home[number] != here and number not in self._segments[-1].outside:
            self._segments[-1].outside[number] = tensor.detach()
        return ref

    def _will_change(self, tensor: Tensor) -> None:
        """Give segments that read a tensor from outside a copy, before an operation changes it in place."""
        number = self._number(tensor)
        readers = [segment for segment in self._segments if number in segment.outside]
        if self._noting and self._home[number] != len(self._segments) - 1 and self._segments[-1] not in readers:
            readers.append(self._segments[-1])
        # A copy of its own is not changed by operations of the segment: those run on a copy of it.
        readers = [
            segment for segment in readers if segment.outside.get(number, tensor).untyped_storage()._cdata == _storage(tensor)
        ]
        if readers:
            whole = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0).clone()
            for segment in readers:
                segment.outside[number] = whole


def _storage(tensor: Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _generator_of(inputs: Sequence[Tensor], kwargs: Mapping[str, Any]) -> torch.Generator:
    device = inputs[0].device if inputs else torch.device(kwargs.get("device") or "cpu")
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def _written(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operation changes in place."""
    for position, name in _places_written(operation):
        value = args[position] if position < len(args) else kwargs.get(name)
        yield from tree_leaves(value)


@functools.cache
def _places_written(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operation changes; those of two kernels do not say so."""
    unsaid = ("running_mean", "running_var") if operation.overloadpacket in _UNSAID else ()
    arguments = enumerate(operation._schema.arguments)  # noqa: SLF001  torch's own description of it
    return tuple((n, a.name) for n, a in arguments if a.name in unsaid or (a.alias_info is not None and a.alias_info.is_write))


_UNSAID = {getattr(aten, name) for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm") if hasattr(aten, name)}
