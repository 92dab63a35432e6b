"""The operations of a network's inference as values that they read and return, the way an exported graph has them."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from edgefl.util.tensors import tensors_in


@dataclass(frozen=True, slots=True)
class Value:
    """A result of an operation, an input or a weight: its shape, its bytes, and whether it depends on weights only."""

    shape: tuple[int, ...]
    bytes: int
    constant: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its name, its arguments, the numbers of the values that it reads and returns, and the layer that calls it."""

    name: str
    args: tuple[Any, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    layer: str


@dataclass
class Calls(TorchFunctionMode):
    """Records operations while it is active; :meth:`see` is told of those that torch dispatches.

    Recurrent layers are one operation each, as in ONNX, and not the many that torch dispatches for them. A weight, and what follows
    from weights alone, is a constant of the graph: a runtime computes it once, when it loads.

    Attributes:
        layer: names the layer that runs.
        samples: samples of the batch. A constant that is repeated for each of them is not computed before.
    """

    layer: Callable[[], str]
    samples: int
    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # as long as a tensor lives, no other one has its identity
        self._inside = False

    def number(self, tensor: Tensor, constant: bool = True, fresh: bool = False) -> int:
        """Return the number of the value that ``tensor`` has now; a ``fresh`` one if an operation has just written it."""
        if fresh or id(tensor) not in self._numbers:
            self._kept.append(tensor)
            self._numbers[id(tensor)] = len(self.values)
            self.values.append(Value(tuple(tensor.shape), tensor.numel() * tensor.element_size(), constant))
        return self._numbers[id(tensor)]

    def see(self, operation: Any, args: tuple[Any, ...], out: Any) -> None:
        """Record an operation that torch dispatched."""
        if not self._inside and operation.namespace != "prim":
            self._record(operation.overloadpacket.__name__, args, out)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = {torch.lstm: "lstm", torch.gru: "gru"}.get(func)
        if name is None or not isinstance(args[3], bool):  # else a packed sequence
            return func(*args, **(kwargs or {}))
        self._inside = True
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            self._inside = False
        self._record(name, args, out)
        return out

    def _record(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        reads = tuple(dict.fromkeys(self.number(tensor) for tensor in tensors_in(args)))
        constant = all(self.values[number].constant for number in reads)
        writes = []
        for tensor in tensors_in(out):
            repeated = constant and self.samples > 1 and self._repeats(tensor, reads)
            writes.append(self.number(tensor, constant and not repeated, fresh=True))
        self.calls.append(Call(name, args, reads, tuple(writes), self.layer()))

    def _repeats(self, tensor: Tensor, reads: tuple[int, ...]) -> bool:
        """Whether a constant result has the batch's size where no constant that it is made of has one."""
        return self.samples in tensor.shape[:2] and not any(self.samples in self.values[number].shape for number in reads)


def once(calls: Sequence[Call], results: Collection[int]) -> tuple[list[Call], set[int]]:
    """Return the operations without those that repeat an earlier one, as onnxruntime leaves them out, and the numbers of the results.

    >>> ones, padding, again = (Call(name, (), reads, writes, "") for name, reads, writes in
    ...                         [("ones", (), (0,)), ("eq", (0,), (1,)), ("eq", (0,), (2,))])
    >>> once([ones, padding, again], {2}) == ([ones, padding], {1})
    True
    """
    seen: dict[str, Call] = {}
    same: dict[int, int] = {}
    unique = []
    for call in calls:
        call = replace(call, reads=tuple(same.get(number, number) for number in call.reads))
        first = seen.setdefault(repr((call.name, call.reads, tree_map_only(Tensor, lambda _: None, call.args))), call)
        same |= dict(zip(call.writes, first.writes, strict=True)) if first is not call else {}
        unique += [call] if first is call else []
    return unique, {same.get(number, number) for number in results}


@contextlib.contextmanager
def spelled_out() -> Iterator[None]:
    """Trace attention and transformer blocks as products and a softmax, as an exported graph has them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
