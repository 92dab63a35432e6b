"""The table of composites: functions without an ONNX operator, each one node until a graph is written in standard operators.

Such a node has the domain ``edgefl``. It has a gradient rule like any operator, and is then replaced by the nodes that compute it. The
rule is therefore the derivative of the function, and not that of the steps that approximate it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from edgefl.onnxgrad.gradients.op import Op
from edgefl.onnxgrad.gradients.tape import Tape

DOMAIN = "edgefl"
Write = Callable[[Tape, Op], None]
"""Appends standard operators whose last nodes have the outputs of the composite."""
WRITTEN: dict[str, Write] = {}
"""Composite → the function that writes it out."""


def writes(*kinds: str) -> Callable[[Write], Write]:
    """Return a decorator that enters a :data:`Write` into :data:`WRITTEN` for composites."""
    return lambda write: WRITTEN.update(dict.fromkeys(kinds, write)) or write


def written_out(tape: Tape, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return ``nodes`` with each composite replaced by standard operators; their constants are put on the tape."""
    if not any(is_composite(node) for node in nodes):
        return list(nodes)
    outer, tape.nodes = tape.nodes, []
    try:
        for node in nodes:
            if is_composite(node):
                WRITTEN[node.op_type](tape, Op.of(node))
            else:
                tape.nodes.append(node)
        found = tape.nodes
    finally:
        tape.nodes = outer
    return written_out(tape, found)  # one may have been written with others


def is_composite(node: Any) -> bool:
    """Return whether a node of onnx or onnx_ir is a composite."""
    return node.domain == DOMAIN and node.op_type in WRITTEN


def in_standard_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its composites written out; without one, the model itself."""
    if not any(is_composite(node) for node in model.graph.node):
        return model
    tape = Tape(model)
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:], found.opset_import[:]
    before = set(tape.constants)
    found.graph.node.extend(written_out(tape, model.graph.node))
    found.opset_import.extend(entry for entry in model.opset_import if entry.domain != DOMAIN)
    found.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in tape.constants.items() if name not in before
    )
    return found
