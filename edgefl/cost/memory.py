"""Bytes alive at once: a meter over dispatched operations, for fake tensors (a prediction) and for real ones (a measurement).

The meter sees every storage that an operation returns and learns when it is freed, whether Python, autograd or an optimizer held it.
Views and in-place operations share a storage and cost nothing. What kernels allocate and free within one operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgefl.cost.macs import MacCounter


class LivenessMeter(TorchDispatchMode):
    """Records every allocation and release while active; optionally counts MACs of the same operations.

    >>> with LivenessMeter() as meter:
    ...     x = torch.ones(256)
    ...     y = (x + 1).relu_()
    ...     del x
    >>> meter.peak_bytes()
    2048
    """

    def __init__(self, macs: MacCounter | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._macs = macs
        self._names: dict[int, int] = {}  # identity of a live storage → its number
        self._sizes: list[int] = []
        self._events: list[int] = []  # n + 1: storage n appears; −(n + 1): it goes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self._see(tensor)
        if self._macs is not None:
            self._macs.add(func, args, out)
        return out

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Make known what was there before: these tensors count from now on."""
        for tensor in tensors:
            self._see(tensor)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._names:
            return
        number = len(self._sizes)
        self._names[identity] = number
        self._sizes.append(storage.nbytes())
        self._events.append(number + 1)
        weakref.finalize(storage, self._free, identity, number).atexit = False

    def _free(self, identity: int, number: int) -> None:
        if self._names.get(identity) == number:
            del self._names[identity]
        self._events.append(-(number + 1))

    def numbers(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the meter's numbers of the storages of ``tensors``, to leave them out of a peak."""
        found = (self._names.get(tensor.untyped_storage()._cdata) for tensor in tensors)
        return {number for number in found if number is not None}

    def peak_bytes(self, without: Iterable[int] = ()) -> int:
        """Return the largest number of bytes alive at once, leaving out the storages numbered ``without``."""
        ignored = set(without)
        live = peak = 0
        for event in self._events:
            number = abs(event) - 1
            if number not in ignored:
                live += self._sizes[number] if event > 0 else -self._sizes[number]
                peak = max(peak, live)
        return peak


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer's state that are as large as a parameter (step counters aside)."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor) and value.dim() > 0]


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of ``tensors`` themselves.

    >>> bytes_of([torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)])
    56
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
