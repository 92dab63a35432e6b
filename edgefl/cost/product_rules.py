"""How onnxruntime runs matrix products, and what it fuses with them: biases, scales, transpositions, GELU and layer normalization."""

from edgefl.cost.calls import Call
from edgefl.cost.kernels import Graph, Rule, count

_BATCHED = ("bmm", "baddbmm")


def _product(graph: Graph, call: Call) -> None:
    """Multiply. A linear layer over several positions adds its bias afterwards, unless the next kernel does."""
    reader = graph.only_reader(call.writes[0])
    adds = reader is not None and (reader.name == "gelu" or _adds_before_norm(graph, reader))
    if call.name in _BATCHED and _is_scaled(graph, call):
        graph.emit(call, fused=True)
    elif adds or not _over_positions(graph, call) or graph.readers[call.writes[0]][0].writes[0] in graph.absorbed.values():
        graph.emit(call)
    else:
        graph.emit(call, [graph.between(call, graph.inputs(call), graph.size(call))])


def _over_positions(graph: Graph, call: Call) -> bool:
    """Whether a product with a bias is that of ``nn.Linear`` over more than one axis, which is a MatMul and not a Gemm."""
    if call.name != "addmm" or not graph.turned.intersection(call.reads):
        return False
    before = next((graph.made_by[number] for number in call.reads if number in graph.made_by), None)
    after = graph.readers.get(call.writes[0], [])
    if before is None or before.name not in graph.shapes or len(after) != 1 or after[0].name not in graph.shapes:
        return False
    positions = graph.values[before.reads[0]].shape[:-1]
    return len(positions) > 1 and positions == graph.lengths(after[0])[:-1]


def _adds_before_norm(graph: Graph, call: Call) -> bool:
    """Whether only a layer normalization reads a sum. Its kernel then adds as well (SkipLayerNormalization)."""
    readers, shape = graph.readers.get(call.writes[0], []), graph.lengths(call)
    same = len(call.reads) == 2 and all(graph.values[number].shape == shape for number in call.reads)
    return call.name == "add" and same and len(shape) == 3 and [reader.name for reader in readers] == ["native_layer_norm"]


def _sum(graph: Graph, call: Call) -> None:
    maker = graph.only_maker(call.reads[0], True)
    reader = graph.only_reader(call.writes[0])
    if _adds_before_norm(graph, call):
        graph.sums[call.writes[0]] = graph.inputs(call)
    elif _is_bias(graph, call) and maker is not None and maker.name == "mm" and reader is not None and reader.name == "gelu":
        graph.share(call)
    else:
        _scale(graph, call)


def _is_bias(graph: Graph, call: Call) -> bool:
    return call.name == "add" and [len(value.shape) for value in graph.constants(call)] == [1]


def _scale(graph: Graph, call: Call) -> None:
    """Fold a factor or term of each channel into the convolution before, and a number into a product beside it."""
    maker = graph.only_maker(call.reads[0])
    constants = [value.shape for value in graph.constants(call)]
    of_channels = len(constants) == 1 and len(constants[0]) > 2 and count(constants[0][-2:]) == 1
    by_number = call.name in ("mul", "div") and len(graph.inputs(call)) == 1 and all(count(shape) == 1 for shape in constants)
    folded = call.name != "div" and of_channels and maker is not None and maker.name == "convolution"
    if parts := [number for number in call.reads if number in graph.absorbed]:
        view = graph.made_by.get(graph.absorbed[parts[0]])
        product = None if view is None or not view.reads else graph.made_by.get(view.reads[0])
        biased = product is not None and _over_positions(graph, product)
        graph.emit(call, scratch=[graph.size(call)] if biased else [], fused=True)
    elif folded or (by_number and (_before_product(graph, call) or _after_product(graph, call))):
        graph.share(call)
    else:
        graph.emit(call)


def _before_product(graph: Graph, call: Call) -> bool:
    """Whether products alone read a result, whatever views of it they take."""
    readers = graph.readers.get(call.writes[0], [])
    views = {"expand", *_ORDERS, *graph.shapes}
    return bool(readers) and all(r.name in _BATCHED or (r.name in views and _before_product(graph, r)) for r in readers)


def _is_scaled(graph: Graph, call: Call) -> bool:
    """Whether a product contains the factor of its first operand, which makes it a fused kernel."""
    maker = graph.only_maker(call.reads[0], True)
    while maker is not None and (maker.name in _ORDERS or maker.name in ("expand", "clone")) and maker.reads:
        maker = graph.only_maker(maker.reads[0], True)
    return maker is not None and maker.name in ("mul", "div") and len(graph.inputs(maker)) == 1


def _after_product(graph: Graph, call: Call) -> bool:
    maker = graph.only_maker(call.reads[0], True)
    return maker is not None and maker.name in _BATCHED


def _layer_norm(graph: Graph, call: Call) -> None:
    added = graph.sums.get(call.reads[0])
    graph.emit(call, added, fused=added is not None)


def _gelu(graph: Graph, call: Call) -> None:
    """Add the bias of a product and take the GELU of the sum (BiasGelu), with a temporary buffer for the sum."""
    maker = graph.only_maker(call.reads[0], True)
    biased = maker is not None and (_over_positions(graph, maker) or _is_bias(graph, maker))
    graph.emit(call, scratch=[graph.size(call)] if biased else [], fused=biased)


def find_gelu(graph: Graph) -> None:
    """Find x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) by its cube. onnxruntime runs it as one kernel (FastGelu)."""
    for cube in (call for call in graph.calls if call.name == "pow"):
        parts = [cube]
        for name in ("mul", "add", "mul", "tanh", "add", "mul"):
            reader = graph.only_reader(parts[-1].writes[0])
            if reader is None or reader.name != name:
                break
            parts.append(reader)
        else:
            halves = [graph.made_by[n] for n in parts[-1].reads if n in graph.made_by and n not in parts[-2].writes]
            if len(halves) == 1 and halves[0].name == "mul" and halves[0].reads[0] == cube.reads[0]:
                graph.absorbed |= {part.writes[0]: cube.reads[0] for part in (*parts[:-1], *halves)}


_ORDERS = frozenset(["t", "transpose", "permute", "numpy_T", "movedim"])


def _transposition(graph: Graph, call: Call) -> None:
    """Transpose, unless products alone read the result and can take the matrix as it is."""
    readers = graph.readers[call.writes[0]]
    if readers and _readable(graph, call) and all(_multiplies(graph, reader) for reader in readers):
        graph.share(call)
    elif readers and all(reader.name == "mul" and _before_product(graph, reader) for reader in readers):
        _keys(graph, call)
    else:
        graph.emit(call)


def _keys(graph: Graph, call: Call) -> None:
    """Transpose the keys of torch's attention: the graph changes their shape before and after, to sizes that it computes."""
    shape = graph.between(call, graph.inputs(call), 32)
    parts = [graph.between(call, [shape], size) for size in (8, 8, 16)]
    targets = [graph.between(call, parts, 32), graph.between(call, parts[:2], 24)]
    graph.emit(call, [*graph.inputs(call), *targets])


def _multiplies(graph: Graph, call: Call) -> bool:
    same = len(call.writes) == 1 and graph.size(call) == graph.values[call.reads[0]].bytes
    if same and call.name in ("expand", "view", "_unsafe_view", "clone"):
        return all(_multiplies(graph, reader) for reader in graph.readers[call.writes[0]])
    return call.name in _BATCHED


def _readable(graph: Graph, call: Call) -> bool:
    """Whether a product can read a tensor with these permuted axes: the last two swapped, the first behind the batch, or both."""
    rank = len(graph.lengths(call))
    order = list(range(rank))
    if call.name == "permute":
        order = [int(axis) % rank for axis in call.args[1]]
    elif call.name == "transpose":
        first, second = (int(axis) % rank for axis in call.args[1:3])
        order[first], order[second] = second, first
    return rank > 1 and order in (
        [*range(rank - 2), rank - 1, rank - 2],
        [*range(1, rank - 1), 0, rank - 1],
        [*range(1, rank - 1), rank - 1, 0],
    )


PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", *_BATCHED), _product),
    **dict.fromkeys(_ORDERS, _transposition),
    "add": _sum,
    "mul": _scale,
    "div": _scale,
    "native_layer_norm": _layer_norm,
    "gelu": _gelu,
}
