"""The memory of onnxruntime during an inference: its kernels in its order, with the blocks of its arena.

The rules (``layer_rules.py``, ``product_rules.py``) are those of onnxruntime 1.31 on one thread, at its extended level of optimization.
They say which kernels an operation of torch becomes in an exported graph, and what may be written over its input. They also say what is one
kernel with its neighbours, and which temporary memory a kernel allocates. They follow onnxruntime's source, and no factor is fitted to
measurements.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from edgefl.cost.calls import Calls, once
from edgefl.cost.kernels import Graph, Kernel, lowered
from edgefl.cost.layer_rules import LAYERS, SHAPES, plain
from edgefl.cost.product_rules import PRODUCTS, find_gelu

UNIT = 256
"""Every block is a multiple of so many bytes."""
_MOST_SPARE = 128 * 2**20
_FIRST, _MOST = 2**20, 2**30  # bytes of a region that doubles


def rounded(size: int) -> int:
    """Return ``size`` rounded up to whole units.

    >>> rounded(1), rounded(512)
    (256, 512)
    """
    return -(-size // UNIT) * UNIT


class Arena:
    """Counts the bytes in use, block by block, as onnxruntime's arena does (bfc_arena.cc).

    It grows by what is requested, as our arenas with a limit do, or with ``doubling`` by powers of two, which is onnxruntime's default. A
    request gets the smallest free block that is large enough, whole unless twice as much or 128 MiB more than requested. Neighbours
    that are free become one block. Bytes in use are those of blocks, so that they depend on what was freed before.

    Attributes:
        in_use_bytes: of the blocks that are in use now.

    >>> arena = Arena()
    >>> large = arena.take(1000)
    >>> arena.free(large)
    >>> small = arena.take(600)
    >>> arena.in_use_bytes
    1024
    """

    def __init__(self, doubling: bool = False) -> None:
        self.in_use_bytes = 0
        self._region = _FIRST if doubling else 0  # bytes of the next region; 0: what is requested
        self._end = 0
        self._sizes: dict[int, int] = {}  # begin of a block → its bytes
        self._free: set[int] = set()
        self._after: dict[int, int] = {}  # begin of a block → begin of the next one of its region
        self._before: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Return the begin of a block of at least ``size`` bytes, which :meth:`free` gives back; 0 bytes take none."""
        wanted = rounded(size)
        if not wanted:
            return -1
        fit = min(((self._sizes[begin], begin) for begin in self._free if self._sizes[begin] >= wanted), default=None)
        room, begin = (self._grow(wanted), self._end) if fit is None else fit
        if fit is None:
            self._end += room + UNIT  # regions have no neighbours
            self._sizes[begin] = room
        self._free.discard(begin)
        if room >= 2 * wanted or room - wanted >= _MOST_SPARE:
            self._split(begin, wanted)
        self.in_use_bytes += self._sizes[begin]
        return begin

    def _grow(self, wanted: int) -> int:
        """Return the bytes of a new region that holds ``wanted``."""
        if not self._region:
            return wanted
        size = self._region
        while size < wanted:
            size *= 2
        self._region = min(2 * size, _MOST) if size == self._region else size
        return size

    def free(self, begin: int) -> None:
        """Give a block back."""
        if begin < 0:
            return
        self.in_use_bytes -= self._sizes[begin]
        after = self._after.get(begin)
        if after in self._free:
            self._merge(begin, after)
        before = self._before.get(begin)
        if before in self._free:
            self._merge(before, begin)
            begin = before
        self._free.add(begin)

    def _split(self, begin: int, size: int) -> None:
        rest, after = begin + size, self._after.get(begin)
        self._sizes[rest], self._sizes[begin] = self._sizes[begin] - size, size
        self._link(rest, after)
        self._link(begin, rest)
        self._free.add(rest)

    def _merge(self, begin: int, after: int) -> None:
        self._free.discard(after)
        self._sizes[begin] += self._sizes.pop(after)
        self._before.pop(after)
        self._link(begin, self._after.pop(after, None))

    def _link(self, begin: int, after: int | None) -> None:
        if after is None:
            self._after.pop(begin, None)
        else:
            self._after[begin], self._before[after] = after, begin


def inference_peak(recorded: Calls, inputs: Collection[int], results: Collection[int]) -> tuple[int, str]:
    """Return the most bytes in use at once besides the weights, those of the ``inputs`` included, and the layer that runs then.

    Args:
        recorded: the operations of the inference.
        inputs: values of the network's inputs, which the caller holds throughout.
        results: values that it returns, which stay.
    """
    calls, results = once(recorded.calls, results)
    graph = Graph(calls, recorded.values, results, SHAPES)
    find_gelu(graph)
    lowered(graph, {**LAYERS, **PRODUCTS}, plain)
    peak, layer = kernels_peak(in_order(graph.kernels), {graph.buffer(number) for number in results}, Arena())
    return peak + sum(recorded.values[number].bytes for number in inputs), layer


def kernels_peak(order: Sequence[Kernel], results: Collection[int], arena: Arena) -> tuple[int, str]:
    """Return the most bytes of ``arena`` that kernels in this ``order`` have in use, and the layer of the kernel that runs then.

    >>> conv = Kernel((0,), ((1, 1000),), None, (64,), 0, "conv")
    >>> relu = Kernel((1,), ((2, 1000),), 1, (), 1, "relu")
    >>> kernels_peak([conv, relu, Kernel((2,), ((3, 40),), None, (), 2, "fc")], {3}, Arena())
    (1280, 'conv')
    """
    readers = Counter(number for kernel in order for number in kernel.reads)
    blocks = dict[int, tuple[int, int]]()  # buffer → its block, and the bytes that were asked for
    peak, layer = 0, ""
    for kernel in order:
        scratch = [arena.take(size) for size in kernel.scratch if kernel.scratch_first]
        for number, size in kernel.writes:
            over = kernel.overwrites
            if over in blocks and readers[over] == 1 and over not in results and blocks[over][1] == size:
                blocks[number] = blocks.pop(over)
            else:
                blocks[number] = arena.take(size), size
        scratch += [arena.take(size) for size in kernel.scratch if not kernel.scratch_first]
        if arena.in_use_bytes > peak:
            peak, layer = arena.in_use_bytes, kernel.layer
        for block in scratch:
            arena.free(block)
        for number in (*kernel.reads, *(number for number, _ in kernel.writes)):
            readers[number] -= number in kernel.reads
            if readers[number] <= 0 and number not in results and number in blocks:
                arena.free(blocks.pop(number)[0])
    return peak, layer


def in_order(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return ``kernels`` as onnxruntime orders them: from the results back, of a kernel's inputs the one made last first.

    Of two branches, the one that the graph has last runs first.
    """
    made_by = {number: kernel for kernel in kernels for number, _ in kernel.writes}
    read = {number for kernel in kernels for number in kernel.reads}
    ends = [kernel for kernel in kernels if not any(number in read for number, _ in kernel.writes)]
    order, seen = [], set[int]()
    stack = [(kernel, False) for kernel in ends]
    while stack:
        kernel, done = stack.pop()
        if done:
            order.append(kernel)
            continue
        if kernel.place in seen:
            continue
        seen.add(kernel.place)
        stack.append((kernel, True))
        before = {made_by[number].place: made_by[number] for number in kernel.reads if number in made_by}
        stack += [(before[place], False) for place in sorted(before) if place not in seen]
    return order
