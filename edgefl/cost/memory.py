"""Bytes alive at once: a meter over dispatched operations, for fake tensors (a prediction) and for real ones (a measurement).

The meter sees every storage that an operation returns and learns when it is freed, whether Python, autograd or an optimizer held it.
Views and in-place operations share a storage and cost nothing. What kernels allocate and free within one operation is not seen: rules
(:mod:`edgefl.cost.workspace`) add it at that moment, to predictions and measurements alike.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.cost.workspace import kept, workspace_bytes
from edgefl.util.tensors import tensors_in

Observer = Callable[[Any, tuple[Any, ...], Any], None]


@dataclass(frozen=True)
class Peak:
    """The moment when most bytes are alive: how many, in which storages, and who allocated the last of them."""

    bytes: int = 0
    alive: frozenset[int] = frozenset()
    owner: str = ""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Every moment of a step.

    Attributes:
        sizes: bytes of each storage, (storages,) int64; a kernel's workspace is one, also where it takes 0 bytes.
        events: what changed before each moment, (moments,) int64: n + 1 where storage n appears, −(n + 1) where it goes.
    """

    sizes: NDArray[np.int64]
    events: NDArray[np.int64]

    def changes(self) -> NDArray[np.int64]:
        """Return the bytes that each event adds, (moments,); sums from the first on are the bytes alive."""
        return np.sign(self.events) * self.sizes[np.abs(self.events) - 1]


class Watcher(TorchDispatchMode):
    """Calls ``observe`` with every operation, its arguments and its result."""

    def __init__(self, observe: Observer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observe = observe

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under this mode; guarding it against that would slow every call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is _DEVICE:  # asked of fake tensors all the time
            return out
        out = kept(func, args, out)
        self._took_place(func, args, out)
        if self._observe is not None:
            self._observe(func, args, out)
        return out

    def _took_place(self, func: Any, args: Any, out: Any) -> None:
        """Do what a subclass does after an operation, before it is observed."""


_DEVICE = torch.ops.prim.device.default


def _sums_gradients(operation: Any) -> bool:
    """Whether a backward pass adds two gradients of one value. Autograd does so in place, except while operations are watched."""
    return operation is torch.ops.aten.add.Tensor and torch._C._current_graph_task_id() != -1


class LivenessMeter(Watcher):
    """Records every allocation and release while active.

    Args:
        held: what lives before and after (parameters, buffers): never counted, though operations may write to it.
        owner: names who allocates, the layer that runs; asked once per storage.

    >>> with LivenessMeter() as meter:
    ...     x = torch.ones(256)
    ...     y = (x + 1).relu_()
    ...     del x
    >>> meter.peak().bytes
    2048
    """

    def __init__(
        self, held: Iterable[Tensor] = (), observe: Observer | None = None, owner: Callable[[], str] | None = None
    ) -> None:
        super().__init__(observe)
        self._owner = owner or (lambda: "")
        self._names: dict[int, int] = {}  # identity of a live storage → its number
        self.sizes: list[int] = []
        self.owners: list[str] = []
        self._events: list[int] = []  # n + 1: storage n appears; −(n + 1): it goes
        self._marks: list[int] = []
        self._sum_of_gradients = 0  # the event of a sum that autograd has just made
        for tensor in held:
            self._see(tensor)
        self._held = frozenset(range(len(self.sizes)))

    def _took_place(self, func: Any, args: Any, out: Any) -> None:
        if not func.is_view:
            for tensor in tensors_in(out):
                self._see(tensor)
            self._sum_of_gradients = self._events[-1] if _sums_gradients(func) and self._events else 0
            if (workspace := workspace_bytes(func, args, out)) is not None:
                self._number(workspace)
                self._events.append(-len(self.sizes))

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._names:
            return
        self._names[identity] = number = self._number(storage.nbytes())
        weakref.finalize(storage, self._free, identity, number).atexit = False

    def _number(self, size_bytes: int) -> int:
        """Note that so many bytes are alive from now on, and return their number."""
        self.sizes.append(size_bytes)
        self.owners.append(self._owner())
        self._events.append(len(self.sizes))
        return len(self.sizes) - 1

    def _free(self, identity: int, number: int) -> None:
        if self._names.get(identity) == number:
            del self._names[identity]
        self._events.append(-(number + 1))
        total = self._sum_of_gradients
        if total and self._events[-2:] == [total, -(number + 1)] and self.sizes[number] == self.sizes[total - 1]:
            self._events[-2:] = [-(number + 1), total]  # autograd would have added in place

    def numbers(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the numbers of the storages of ``tensors``, those that an operation returned."""
        numbers = (self._names.get(tensor.untyped_storage()._cdata) for tensor in tensors)
        return [number for number in numbers if number is not None]

    def mark(self) -> None:
        """Note this moment, the end of a forward pass, for :meth:`alive_at_marks`."""
        self._marks.append(len(self._events))

    def alive_at_marks(self) -> frozenset[int]:
        """Return the storages that were alive at any marked moment: those that a forward pass leaves for the backward one."""
        marked: set[int] = set()
        alive: set[int] = set()
        start = 0
        for end in self._marks:
            for event in self._events[start:end]:
                (alive.add if event > 0 else alive.discard)(abs(event) - 1)
            marked |= alive
            start = end
        return frozenset(marked)

    def timeline(self, throughout: Iterable[int] = ()) -> Timeline:
        """Return every moment so far; the storages numbered ``throughout`` and the held ones are alive from the first to the last."""
        always = self._held.union(throughout)
        passing = [event for event in self._events if abs(event) - 1 not in always]
        return Timeline(np.array(self.sizes, np.int64), np.array([*(n + 1 for n in sorted(always)), *passing], np.int64))

    def peak(self, without: Iterable[int] = ()) -> Peak:
        """Return the moment with the most bytes alive, the storages numbered ``without`` and the held ones left out."""
        ignored = self._held.union(without)
        live = most = moment = 0
        for position, event in enumerate(self._events):
            number = abs(event) - 1
            if number not in ignored:
                live += self.sizes[number] if event > 0 else -self.sizes[number]
                if live > most:
                    most, moment = live, position
        if not most:
            return Peak()
        alive: set[int] = set()
        for event in self._events[: moment + 1]:
            (alive.add if event > 0 else alive.discard)(abs(event) - 1)
        return Peak(most, frozenset(alive) - ignored, self.owners[abs(self._events[moment]) - 1])


def held_by(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a network, each once: what is there before and after a step."""
    return [*module.parameters(), *module.buffers()]


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of ``tensors`` themselves.

    >>> bytes_of([torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)])
    56
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
