"""The memory of onnxruntime during a training step: the kernels of its optimized graph, in its order, with the blocks of its arena.

onnxruntime optimizes and orders the graph while it loads it, and nothing is computed. The rules are those of onnxruntime 1.31 on one
thread. Shapes are inferred twice. Those for one batch size give bytes. Those for any batch size tell where onnxruntime knows that a result
is as large as its input, and may write over it.
"""

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference

from edgefl.client.onnx_loop import held_bytes
from edgefl.cost.inference import Arena, kernels_peak
from edgefl.cost.kernels import Kernel
from edgefl.cost.layer_rules import convolution_scratch
from edgefl.onnxgrad.autodiff import reads
from edgefl.onnxgrad.graphs import attributes_of, dims_of, graphs_in, inferred_shapes
from edgefl.onnxgrad.roles import OUT
from edgefl.onnxgrad.session import opened, options_for
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.util.scratch import scratch_folder

_FLOAT = 4
_SHARES = frozenset(["Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"])
_OVERWRITES = frozenset([
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid", "Selu", "Celu", "Softplus", "Softsign", "ThresholdedRelu", "Clip",
    "Softmax", "LogSoftmax", "Cast", "Dropout", "ScatterElements", "ScatterND", "Trilu",
])  # fmt: skip


@dataclass(frozen=True)
class _Known:
    """The known shapes and bytes of the values of a graph.

    Attributes:
        shapes: for one batch size.
        bytes: of each value.
        free: shapes for any batch size, of values whose sizes onnxruntime knows as numbers or names.
    """

    shapes: Mapping[str, tuple[int, ...]]
    bytes: Mapping[str, int]
    free: Mapping[str, tuple[int | str, ...]]


def predicted_step_bytes(graphs: StepGraphs, optimizer: str, sample_bytes: int, batch_size: int, micro_batch: int) -> int:
    """Return the most bytes of a step: those held between steps, the batch, and those that onnxruntime uses, of all kinds of steps."""
    sizes: dict[str, int] = {}
    for graph in graphs.steps:
        inputs = onnx.load_model_from_string(graph).graph.input
        sizes |= {value.name: _FLOAT * math.prod(d for d in dims_of(value) if isinstance(d, int)) for value in inputs}
    parts = micro_batch < batch_size
    ran = (*graphs.passes, graphs.update) if parts else graphs.steps
    peak = max(predicted_peak_bytes(graph, micro_batch) for graph in ran)
    return held_bytes(graphs.roles, sizes, optimizer, parts) + batch_size * sample_bytes + peak


def predicted_peak_bytes(graph: bytes, batch_size: int) -> int:
    """Return the bytes that :func:`edgefl.onnxgrad.stepper.peak_bytes` measures in a step of ``batch_size`` samples."""
    model = onnx.load_model_from_string(graph)
    del model.graph.value_info[:]
    with scratch_folder() as folder:
        options = options_for(1)
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        opened(graph, options, "the training graph")
        optimized = onnx.load_model(options.optimized_model_filepath).graph
    stay = {value.name for value in optimized.output if value.name.endswith(OUT)}  # the caller gives their memory
    return _peak_bytes(optimized, _known(model, batch_size), stay)


def _known(model: onnx.ModelProto, batch_size: int) -> _Known:
    def named(shape: tuple[int | str, ...]) -> bool:
        return all(isinstance(size, int) or (size and not size.startswith("unk__")) for size in shape)  # onnx's own names

    free = {name: shape for name, shape in inferred_shapes(model).items() if named(shape)}
    fixed = copy.deepcopy(model)
    for part in graphs_in(fixed.graph):  # bodies of Scan have batches without a name
        dims = (dim for value in (*part.input, *part.output) for dim in value.type.tensor_type.shape.dim)
        for dim in (dim for dim in dims if not dim.HasField("dim_value")):
            dim.dim_value = batch_size
    shapes: dict[str, tuple[int, ...]] = {}
    sizes: dict[str, int] = {}
    for part in graphs_in(onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph):
        shapes |= {constant.name: tuple(constant.dims) for constant in part.initializer}
        for value in (*part.input, *part.value_info, *part.output):
            shape = tuple(dim for dim in dims_of(value) if isinstance(dim, int))
            if value.type.tensor_type.HasField("shape") and len(shape) == len(dims_of(value)):
                entry = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).itemsize
                shapes[value.name], sizes[value.name] = shape, math.prod(shape) * entry
    return _Known(shapes, sizes, free)


def _peak_bytes(graph: onnx.GraphProto, known: _Known, stay: Collection[str]) -> int:
    """Return the most bytes that the arena has in use while ``graph`` runs; its inputs and the values ``stay`` are not in it."""
    outside = {*stay, *(value.name for value in (*graph.input, *graph.initializer))}
    results = {value.name for value in graph.output}
    buffers: dict[str, str] = {}
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(buffers.get(name, name), len(numbers))

    kernels = []
    for place, node in enumerate(graph.node):
        shared = zip(node.output, node.input, strict=False) if node.op_type in _SHARES else ()
        if node.op_type == "BatchNormalization":  # statistics are written over their inputs
            shared = zip(node.output[1:], node.input[3:], strict=False)
        buffers |= {name: buffers.get(other, other) for name, other in shared if name not in results}
        fresh = [name for name in _made(node) if name and name not in buffers and name not in outside]
        read = tuple(dict.fromkeys(number(name) for name in sorted(reads(node)) if name))
        first = node.input[0] if node.input else ""
        alike = node.op_type in _OVERWRITES and first in known.free and known.free[first] == known.free.get(node.output[0])
        over = number(first) if alike and buffers.get(first, first) not in outside else None
        writes = tuple((number(name), known.bytes.get(name, _guessed_bytes(node, known))) for name in fresh)
        kernels.append(Kernel(read, writes, over, _scratch(node, known), place, node.name, node.op_type == "Where"))
    return kernels_peak(kernels, {number(name) for name in results}, Arena(doubling=True))[0]


def _made(node: onnx.NodeProto) -> list[str]:
    """Return the results of a node in the order in which they get memory: those of Scan when its body first makes a row of them."""
    if node.op_type != "Scan":
        return list(node.output)
    body = attributes_of(node)["body"]
    places = {name: place for place, part in enumerate(body.node) for name in part.output}
    return [made for _, made in sorted(zip((places[value.name] for value in body.output), node.output, strict=True))]


def _guessed_bytes(node: onnx.NodeProto, known: _Known) -> int:
    """Return the bytes of a result that onnxruntime added, or that onnx cannot infer: a shape, or a part of an input."""
    if node.op_type == "Shape":
        return 64
    return max((known.bytes.get(name, 0) for name in node.input), default=0) // len(node.output)


def _scratch(node: onnx.NodeProto, known: _Known) -> tuple[int, ...]:
    """Return the bytes of a kernel's temporary buffers."""
    attributes, shapes = attributes_of(node), known.shapes
    if node.op_type in ("Conv", "FusedConv", "ConvTranspose"):
        source, weight, result = (shapes[name] for name in (*node.input[:2], node.output[0]))
        plain = set(attributes.get("strides", [])) <= {1} and not any(attributes.get("pads", []))
        groups, transposed = attributes.get("group", 1), node.op_type == "ConvTranspose"
        return (convolution_scratch(source, weight, math.prod(result[2:]), groups, plain=plain, transposed=transposed),)
    if node.op_type == "Where":  # both choices, masked
        condition, *choices = (shapes[name] for name in node.input)
        entry = known.bytes[node.output[0]] // max(1, math.prod(shapes[node.output[0]]))
        return tuple(entry * math.prod(np.broadcast_shapes(condition, choice)) for choice in choices)
    if node.op_type == "Scan":  # one step of its body, whose rows go to the results
        body = attributes["body"]
        states = len(body.input) - attributes["num_scan_inputs"]
        return (_peak_bytes(body, known, [value.name for value in body.output[states:]]),)
    return ()
