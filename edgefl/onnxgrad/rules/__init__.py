"""What each ONNX operator computes, in torch: one rule for each operator, one file for each family; and which models have rules.

:mod:`edgefl.onnxgrad.to_torch` makes modules with these rules. Gradient rules are in :mod:`edgefl.onnxgrad.gradients`.
"""

import math
from typing import Any

import onnx
import onnx.shape_inference
import onnx.version_converter
import torch

from edgefl.onnxgrad.errors import InputError, first_line, nearest
from edgefl.onnxgrad.graphs import dims_of, label_of
from edgefl.onnxgrad.rules import elementwise, indexing, products, quantized, sequences, shape, signals, windows
from edgefl.onnxgrad.rules.common import DTYPES, KNOWN_ALWAYS, Check, Choices, Rule

_FAMILIES: tuple[Any, ...] = products, windows, sequences, elementwise, shape, indexing, signals, quantized


def _joined(table: str) -> dict[str, Any]:
    return {kind: entry for family in _FAMILIES for kind, entry in getattr(family, table, {}).items()}


RULES: dict[str, Rule] = _joined("RULES")
CHECKS: dict[str, Check] = _joined("CHECKS")
"""Operator → check of a node, if its rule does not support all attributes, inputs or outputs."""

ATTRIBUTES: dict[str, frozenset[str]] = {kind: frozenset(names.split()) for kind, names in _joined("ATTRIBUTES").items()}
"""Operator → attributes that its rule or check reads; any other must have its default value."""

CHOICES: dict[str, Choices] = _joined("CHOICES")
"""Operator → the values of its attributes that its rule supports, if not all."""

FOLDED = frozenset(KNOWN_ALWAYS)
"""Operators that are computed only from known values, without a rule."""

SHAPES = frozenset({"Shape", "Size"})
"""Operators whose rule returns a known value for a tensor."""

KNOWN: dict[str, tuple[int, ...]] = {**KNOWN_ALWAYS, **_joined("KNOWN")}
"""Operator → positions of the inputs that are shapes or settings; rules receive them as NumPy arrays."""

STATISTICS: dict[str, tuple[int, ...]] = _joined("STATISTICS")
"""Operator → positions of the inputs that are statistics of data, not trained weights."""

WEIGHTS: dict[str, tuple[int, ...]] = _joined("WEIGHTS")
"""Operator → positions of the inputs that are weights, also if the graph makes them of constants."""

UNTRAINED: dict[str, tuple[int, ...]] = _joined("UNTRAINED")
"""Operator → positions of the inputs that are constants of an exported network, not trained weights."""

REFUSED: dict[str, str] = {
    name: reason
    for reason, names in {
        "it runs a graph of its own, and what it runs may depend on data": "If Loop Scan SequenceMap",
        "the size of its output depends on data": "NonMaxSuppression",
        "it draws at random in every call": (
            "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
        ),
        "it reads or returns a sequence or an optional value, not a tensor": (
            "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty "
            "SequenceErase SequenceInsert SequenceLength SplitToSequence"
        ),
        "it reads text": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
        "it decodes files of images": "ImageDecoder",
        "torch has no such operation without torchvision": "MaxRoiPool RoiAlign",
        "operator sets that have rules have Resize and ScatterElements instead": "Scatter Upsample",
    }.items()
    for name in names.split()
}
"""Standard operators without a rule → why: torch has no such operation, or a traced graph cannot contain it."""

Signature = dict[str, tuple[tuple[int | str, ...], torch.dtype]]
"""Input → (dimensions, dtype); a free dimension is a name."""

MAX_ELEMENTS = 2**31 - 1


OLDEST_OPSET = 6
"""The oldest set that onnx converts without loss."""
CURRENT_OPSET = 13
"""Older sets are converted to this one: in them Softmax, Squeeze and the reductions are defined differently."""
NEWEST_OPSET = 28
"""The newest set that the rules were tested with; a newer onnx may know newer ones."""


def version_of(model: onnx.ModelProto) -> int:
    """Return the version of a model's operator set ai.onnx; InputError if it has another one, none, or an unknown version."""
    for index, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise InputError(f"{label_of(node, index)}: operator set {node.domain!r}, expected only ai.onnx")
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    opset = versions.get("ai.onnx", 0)
    if not opset:
        raise InputError("names no operator set of ai.onnx: not an ONNX model, or one without standard operators")
    newest = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"operator set {opset}, expected {OLDEST_OPSET} to {newest}; convert it, or export it again")
    return opset


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of at least operator set :data:`CURRENT_OPSET`: the model itself, or what onnx's converter makes of it.

    Raises:
        InputError: the set is not supported, or onnx cannot convert an operator (named).
    """
    opset = version_of(model)
    if opset >= CURRENT_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(_with_channel_slopes(model) if opset < 7 else model, CURRENT_OPSET)
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its adapters do
        raise InputError(
            f"operator set {opset} cannot be converted to {CURRENT_OPSET} ({first_line(error)}); export the network again"
        ) from None


def _with_channel_slopes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of set 6 whose PReLU has slopes (channels, 1, …): from set 7 on they broadcast, which onnx does not convert."""
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    ranks = {value.name: len(dims_of(value)) for value in (*graph.input, *graph.value_info)}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "PRelu" and ranks.get(node.input[1]) == 1 and ranks.get(node.input[0], 0) > 2:
            wide = f"{node.output[0]}_slopes"
            axes = list(range(1, ranks[node.input[0]] - 1))
            graph.node.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [wide], axes=axes))
            node.input[1] = wide
        graph.node.append(node)
    return inferred


def require_rules(model: onnx.ModelProto) -> int:
    """Return the version of a model's operator set; InputError if it, an operator or an input is not supported (named)."""
    opset = version_of(model)
    known = {*RULES, *FOLDED}
    for index, node in enumerate(model.graph.node):
        if node.op_type in REFUSED:
            raise InputError(f"{label_of(node, index)}: no rule for operator {node.op_type!r}: {REFUSED[node.op_type]}")
        if node.op_type not in known:
            hint = nearest(node.op_type, sorted(known)) or f" known: {', '.join(sorted(known))}"
            raise InputError(f"{label_of(node, index)}: no rule for operator {node.op_type!r};{hint}")
    inputs_of(model.graph)
    return opset


def inputs_of(graph: onnx.GraphProto) -> Signature:
    """Return the inputs of a graph that are not initializers; InputError if a type, rank or size cannot be used (named)."""
    stored = {tensor.name for tensor in graph.initializer}
    inputs: Signature = {}
    for value in graph.input:
        kind = value.type.tensor_type
        if value.name in stored:
            continue
        if not value.type.HasField("tensor_type") or not kind.HasField("shape") or kind.elem_type not in DTYPES:
            raise InputError(f"input {value.name!r}: expected a tensor of numbers with a shape")
        dims = tuple(dim or f"{value.name}_{axis}" if isinstance(dim, str) else dim for axis, dim in enumerate(dims_of(value)))
        fixed = [dim for dim in dims if isinstance(dim, int)]
        if min(fixed, default=1) < 1 or math.prod(fixed) > MAX_ELEMENTS:
            raise InputError(
                f"input {value.name!r}: shape {dims}, expected sizes of at least 1 and at most {MAX_ELEMENTS} values"
            )
        inputs[value.name] = (dims, DTYPES[kind.elem_type])
    for tensor in graph.initializer:
        if math.prod(tensor.dims) > MAX_ELEMENTS or min(tensor.dims, default=0) < 0:
            raise InputError(f"initializer {tensor.name!r}: shape {tuple(tensor.dims)}, expected at most {MAX_ELEMENTS} values")
    return inputs
