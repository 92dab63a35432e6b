"""Kernels of onnxruntime, made from the operations that a network calls by rules of one operation each."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgefl.cost.calls import Call, Value

_LATE = 1 << 40


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of onnxruntime: which buffers it reads, which it writes with their bytes, and what it needs besides.

    Attributes:
        overwrites: buffer that its result may replace, if nothing reads it later.
        scratch: bytes of temporary buffers, which are freed when the kernel ends.
        place: kernels that come later in the graph have a larger one.
        layer: layer of the network.
        scratch_first: whether the temporary buffers get their memory before the results. This decides which free blocks both get.
    """

    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    overwrites: int | None
    scratch: tuple[int, ...]
    place: int
    layer: str
    scratch_first: bool = False


Rule = Callable[["Graph", Call], None]
"""Adds the kernels of one operation to a graph."""


@dataclass
class Graph:
    """The operations of a network, and the kernels that they have become so far.

    Attributes:
        calls: operations that compute something from the input and have a result that is read.
        values: shapes and bytes of all values, by number.
        results: values that the network returns.
        shapes: names of operations that return their input under another shape.
        sums: sum that its reader computes → buffers that it adds up.
        absorbed: result of an operation that is computed by a later kernel → value that this kernel reads.
    """

    calls: Sequence[Call]
    values: Sequence[Value]
    results: Collection[int]
    shapes: Collection[str]
    kernels: list[Kernel] = field(default_factory=list)
    sums: dict[int, tuple[int, ...]] = field(default_factory=dict)
    absorbed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        live = _live(self.calls, self.results)
        self.turned = {call.writes[0] for call in live if call.name == "t"}
        self.calls = [call for call in live if not all(self.values[number].constant for number in call.writes)]
        self.made_by = {number: call for call in self.calls for number in call.writes}
        self.readers: defaultdict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            for number in call.reads:
                self.readers[number].append(call)
        self._buffers: dict[int, int] = {}
        self._next = len(self.values)

    def buffer(self, number: int) -> int:
        """Return the buffer that holds a value."""
        return self._buffers.get(number, number)

    def inputs(self, call: Call) -> tuple[int, ...]:
        """Return the buffers that an operation reads, constants left out."""
        return tuple(dict.fromkeys(self.buffer(number) for number in call.reads if not self.values[number].constant))

    def size(self, call: Call) -> int:
        """Return the bytes of the first result of an operation."""
        return self.values[call.writes[0]].bytes

    def lengths(self, call: Call) -> tuple[int, ...]:
        """Return the shape of the first result of an operation."""
        return self.values[call.writes[0]].shape

    def constants(self, call: Call) -> list[Value]:
        """Return the constants that an operation reads."""
        return [self.values[number] for number in call.reads if self.values[number].constant]

    def share(self, call: Call, buffer: int | None = None) -> None:
        """Let the results of an operation be in a buffer that exists: in that of its input, unless another one is named."""
        inputs = self.inputs(call)
        for number in call.writes:
            if buffer is not None or inputs:
                self._buffers[number] = inputs[0] if buffer is None else buffer

    def emit(
        self,
        call: Call,
        reads: Iterable[int] | None = None,
        *,
        writes: Iterable[int] | None = None,
        overwrites: int | None = None,
        scratch: Iterable[int] = (),
        scratch_first: bool = False,
        fused: bool = False,
    ) -> None:
        """Add the kernel that writes the results of an operation.

        Args:
            call: the operation.
            reads: buffers; None: the operation's inputs.
            writes: values; None: the operation's first result.
            overwrites: buffer that the result may replace.
            scratch: bytes of temporary buffers.
            scratch_first: whether they get their memory before the result.
            fused: whether onnxruntime makes the kernel of several, when it loads the graph, and so puts it at the end.
        """
        written = tuple((number, self.values[number].bytes) for number in (call.writes[:1] if writes is None else writes))
        read = tuple(self.inputs(call) if reads is None else reads)
        place = len(self.kernels) + (_LATE if fused else 0)
        self.kernels.append(Kernel(read, written, overwrites, tuple(scratch), place, call.layer, scratch_first))

    def between(
        self, call: Call, reads: Iterable[int], size: int, overwrites: int | None = None, scratch: Iterable[int] = ()
    ) -> int:
        """Add a kernel with a result that torch does not have, and return its buffer of ``size`` bytes."""
        self._next += 1
        self.kernels.append(
            Kernel(tuple(reads), ((self._next, size),), overwrites, tuple(scratch), len(self.kernels), call.layer)
        )
        return self._next

    def only_reader(self, number: int) -> Call | None:
        """Return the operation that alone reads a value, seen through changes of shape; None if several do, or the caller."""
        readers = self.readers.get(number, [])
        if number in self.results or len(readers) != 1:
            return None
        return self.only_reader(readers[0].writes[0]) if readers[0].name in self.shapes else readers[0]

    def only_maker(self, number: int, through: bool = False) -> Call | None:
        """Return the operation that makes a value which one operation alone reads; ``through`` changes of shape if asked for."""
        call = self.made_by.get(number)
        if call is None or number in self.results or len(self.readers.get(number, [])) != 1:
            return None
        return self.only_maker(call.reads[0], True) if through and call.name in self.shapes else call


def lowered(graph: Graph, rules: Mapping[str, Rule], otherwise: Rule) -> None:
    """Add the kernels of all operations of ``graph``: ``rules`` has them by name, with a final ``_`` left out."""
    for call in graph.calls:
        if call.writes[0] in graph.absorbed:
            graph.share(call, graph.buffer(graph.absorbed[call.writes[0]]))
        else:
            rules.get(call.name.rstrip("_"), otherwise)(graph, call)


def count(shape: Iterable[int]) -> int:
    """Return the entries of a shape."""
    return math.prod(shape)


def _live(calls: Sequence[Call], results: Collection[int]) -> list[Call]:
    """Return the operations with results that are read, in order."""
    wanted, live = set(results), []
    for call in reversed(calls):
        if wanted.intersection(call.writes):
            wanted.update(call.reads)
            live.append(call)
    return live[::-1]
