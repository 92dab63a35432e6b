"""How onnxruntime runs convolutions, recurrent layers, normalizations, activations, pooling and choices, with their temporary memory."""

from collections.abc import Sequence

import torch

from edgefl.cost.calls import Call
from edgefl.cost.kernels import Graph, Rule, count

SHAPES = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "squeeze",
        "unsqueeze",
        "squeeze_",
        "unsqueeze_",
        "flatten",
        "detach",
        "detach_",
        "alias",
        "clone",
        "lift_fresh",
        "native_dropout",
    ]
)
"""Operations that return their input under another shape, or as it is."""
_OVERWRITES = [
    "relu",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "elu",
    "hardsigmoid",
    "hardtanh",
    "clamp",
    "_softmax",
    "_log_softmax",
    "log_sigmoid_forward",
]
_FUSED = frozenset(["relu", "sigmoid", "tanh", "leaky_relu", "hardtanh", "clamp", "hardsigmoid"])
_ALL_RESULTS = frozenset(["split", "split_with_sizes", "unsafe_split", "chunk", "unbind", "topk", "sort"])
_NORMS = ["_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_no_update", "cudnn_batch_norm"]
_FLOAT = 4


def plain(graph: Graph, call: Call) -> None:
    """Write the results to memory of their own: the rule of all operations without another one."""
    every = call.name in _ALL_RESULTS
    graph.emit(call, writes=[n for n in call.writes if every or n in graph.readers or n in graph.results])


def _overwriting(graph: Graph, call: Call) -> None:
    """Write over the input, if nothing reads it later; sums and products never do."""
    maker, inputs = graph.only_maker(call.reads[0]), graph.inputs(call)
    fused = call.name.rstrip("_") in _FUSED and maker is not None and maker.name in ("convolution", *_NORMS)
    graph.emit(call, overwrites=inputs[0] if inputs else None, fused=fused)


def _same_size(graph: Graph, call: Call) -> None:
    """Copy what a slice or an expansion makes smaller or larger."""
    same = graph.size(call) == graph.values[call.reads[0]].bytes
    graph.share(call) if same else graph.emit(call)


def _selection(graph: Graph, call: Call) -> None:
    """Copy an entry of an axis; one kernel copies all of them if a graph takes each once (GatherToSplit)."""

    def axis(selection: Call) -> int:
        return int(selection.args[1]) % len(graph.values[selection.reads[0]].shape)

    source = call.reads[0]
    length = graph.values[source].shape[axis(call)]
    alike = [c for c in graph.readers[source] if c.name == "select" and axis(c) == axis(call)]
    if length == 1 or not len(alike) == length == len({c.args[2] % length for c in alike}) == len(graph.readers[source]):
        graph.emit(call)
    elif call is alike[0]:
        graph.emit(call, writes=[c.writes[0] for c in alike], fused=True)


def _convolution(graph: Graph, call: Call) -> None:
    """Convolve; see :func:`convolution_scratch`."""
    source, weight, stride, padding, transposed, groups = (call.args[place] for place in (0, 1, 3, 4, 6, 8))
    positions = count(graph.lengths(call)[2:])
    shapes = tuple(source.shape), tuple(weight.shape)
    plain = all(s == 1 for s in stride) and not any(padding)
    graph.emit(call, scratch=[convolution_scratch(*shapes, positions, groups, plain=plain, transposed=transposed)])


def convolution_scratch(
    source: Sequence[int], weight: Sequence[int], positions: int, groups: int, *, plain: bool, transposed: bool = False
) -> int:
    """Return the bytes that MLAS needs to convolve (convolve.cpp), or ConvTranspose, which holds all patches before it adds them.

    A convolution unrolls its input: all of it where a layer has more filters than output ``positions``, else 64 KiB at a time. Products of
    the input as it is, such as 1×1 convolutions, take nothing. ``plain``: stride 1 and no padding.
    """
    image, kernel = tuple(source[2:]), tuple(weight[2:])
    window = count(weight[1:])
    whole = weight[1] == 1 and len(kernel) == 2 and (kernel[1] == image[1] or kernel == (image[0], 1))
    if transposed:
        return count(image) * window * _FLOAT
    if plain and (count(kernel) == 1 or whole):
        return 0
    return positions * window * _FLOAT if weight[0] // groups > positions else 64 * 1024


def _normalization(graph: Graph, call: Call) -> None:
    """Fold fixed statistics into the layer before, if nothing else reads its result."""
    maker = graph.only_maker(call.reads[0])
    graph.share(call) if maker is not None and maker.name in ("convolution", "addmm", "mm") else graph.emit(call)


def _group_norm(graph: Graph, call: Call) -> None:
    """Normalise, multiply and add by one kernel each."""
    reads = graph.inputs(call)
    for _ in graph.constants(call):
        reads = (graph.between(call, reads, graph.size(call)),)
    graph.emit(call, reads)


def _hardswish(graph: Graph, call: Call) -> None:
    graph.emit(call, [*graph.inputs(call), graph.between(call, graph.inputs(call), graph.size(call))])


def _mish(graph: Graph, call: Call) -> None:
    softplus = graph.between(call, graph.inputs(call), graph.size(call))
    graph.emit(call, [*graph.inputs(call), graph.between(call, [softplus], graph.size(call), softplus)])


def _where(graph: Graph, call: Call) -> None:
    """Choose by a condition: the kernel holds both choices, masked by it, at once."""
    masking = call.name.startswith("masked_fill")
    condition, *choices = (call.args[1], call.args[0], call.args[2]) if masking else call.args
    entry = graph.size(call) // max(1, count(graph.lengths(call)))
    shapes = [torch.broadcast_shapes(condition.shape, getattr(choice, "shape", ())) for choice in choices]
    graph.emit(call, scratch=[entry * count(shape) for shape in shapes], scratch_first=True)


def _compared(graph: Graph, call: Call) -> None:
    """Compute softplus or a threshold: compare, compute, and choose."""
    inputs, size = graph.inputs(call), graph.size(call)
    reads = [*inputs, graph.between(call, inputs, count(graph.lengths(call)))]
    if call.name == "softplus":
        reads.append(graph.between(call, inputs, size))
    graph.emit(call, reads, scratch=[size, size], scratch_first=True)


def _bag(graph: Graph, call: Call) -> None:
    """Take the rows of a bag, weigh them, and reduce them."""
    weight, ids, reads = call.args[0], call.args[1], graph.inputs(call)
    size = count(ids.shape) * int(weight.shape[-1]) * weight.element_size()
    rows = graph.between(call, reads, size)
    if len(call.args) > 6 and call.args[6] is not None:
        rows = graph.between(call, [rows, *reads[1:]], size)
    graph.emit(call, [rows])


def _adaptive(graph: Graph, call: Call) -> None:
    """Pool to sizes that do not divide, one axis after the other: means by a product, maxima window by window."""
    reads: Sequence[int] = graph.inputs(call)
    shape, target = list(graph.values[call.reads[0]].shape), graph.lengths(call)
    axes = range(len(shape) - len(call.args[1]), len(shape))
    if all(shape[axis] % target[axis] == 0 for axis in axes):
        plain(graph, call)
        return
    for axis in axes:
        size, windows = shape[axis], target[axis]
        entry = _FLOAT * count(shape) // size
        if "max" in call.name:
            spans = [-(-(i + 1) * size // windows) - i * size // windows for i in range(windows)]
            reads = [graph.between(call, [graph.between(call, reads, entry * span)], entry) for span in spans]
        reads = [graph.between(call, reads, entry * windows)]
        shape[axis] = windows
    graph.share(call, reads[0])


def _recurrent(graph: Graph, call: Call) -> None:
    """Run LSTM or GRU layers, steps first: each takes all inputs and returns all outputs; two directions are then interleaved."""
    source, _, _, _, layers, _, _, both, batch_first = call.args
    steps, samples = (source.shape[1], source.shape[0]) if batch_first else source.shape[:2]
    outputs = graph.lengths(call)[-1]
    reads, state = list(graph.inputs(call)[:1]), samples * outputs * _FLOAT
    zeros = graph.between(call, [], layers * state)
    if batch_first:
        reads = [graph.between(call, reads, graph.values[call.reads[0]].bytes)]
    inputs = int(source.shape[-1])
    for _ in range(layers):
        scratch = recurrent_scratch(call.name, steps, samples, inputs, outputs // (1 + both), both)
        reads = [graph.between(call, [*reads, graph.between(call, [zeros], state)], steps * state, None, scratch)]
        if both:
            reads = [graph.between(call, reads, steps * state)]
        inputs = outputs
    graph.share(call, reads[0])


def recurrent_scratch(name: str, steps: int, samples: int, inputs: int, hidden: int, both: bool) -> list[int]:
    """Return the bytes of the temporary buffers of an LSTM or GRU kernel (uni_directional_lstm.cc, deep_cpu_gru.cc).

    Each direction holds the gates of all steps, and a few states and biases. The backward one also reverses its input and its output.

    >>> sum(recurrent_scratch("lstm", 16, 8, 32, 24, False))
    53600
    """
    state = _FLOAT * samples * hidden
    gates, states = (4, [state] * 3 + [_FLOAT * hidden] * 6) if name == "lstm" else (3, [state] * 7)
    forward = [*states, steps * gates * state, _FLOAT * samples]
    backward = [*forward, _FLOAT * steps * samples * inputs, steps * state] if both else []
    last = [state * (1 + both)] * (2 if name == "lstm" else 1)
    return [*last, *forward, *backward]


LAYERS: dict[str, Rule] = {
    **dict.fromkeys((name.rstrip("_") for name in SHAPES), Graph.share),
    **dict.fromkeys(_OVERWRITES, _overwriting),
    **dict.fromkeys(_NORMS, _normalization),
    **dict.fromkeys(("expand", "slice"), _same_size),
    **dict.fromkeys(("where", "masked_fill"), _where),
    **dict.fromkeys(("softplus", "threshold"), _compared),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bag),
    **dict.fromkeys((f"{kind}_pool{axes}d" for kind in ("_adaptive_avg", "adaptive_max") for axes in (2, 3)), _adaptive),
    **dict.fromkeys(("lstm", "gru"), _recurrent),
    "convolution": _convolution,
    "select": _selection,
    "native_group_norm": _group_norm,
    "hardswish": _hardswish,
    "mish": _mish,
}
