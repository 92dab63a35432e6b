"""The memory of onnxruntime during an inference: its kernels in its order, with the blocks of its arena.

The rules (``layer_rules.py``, ``product_rules.py``) are those of onnxruntime 1.31 on one thread, at its extended level of optimization.
They say which kernels an operation of torch becomes in an exported graph, and what may be written over its input. They also say what is one
kernel with its neighbours, and which temporary memory a kernel allocates. They follow onnxruntime's source, and no factor is fitted to
measurements.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from edgefl.cost.arena import Arena
from edgefl.cost.calls import Calls, once
from edgefl.cost.kernels import Graph, Kernel, lowered
from edgefl.cost.layer_rules import LAYERS, SHAPES, plain
from edgefl.cost.product_rules import PRODUCTS, find_gelu


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
