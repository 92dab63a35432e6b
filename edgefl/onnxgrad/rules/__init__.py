"""What each ONNX operator computes, in torch: one rule for each operator, one file for each family.

:mod:`edgefl.onnxgrad.to_torch` makes modules with these rules. Gradient rules are in :mod:`edgefl.onnxgrad.gradients`.
"""

import math
from typing import Any

import onnx
import torch

from edgefl.onnxgrad.errors import InputError, nearest
from edgefl.onnxgrad.graphs import dims_of, label_of
from edgefl.onnxgrad.operator_sets import version_of
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
