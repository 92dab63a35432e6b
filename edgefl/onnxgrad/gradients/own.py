"""Operators of the domain ``edgefl``: functions of torch whose derivative at a border differs from that of their form in ONNX.

A *form* writes an operator in standard ones, for inference and for training. A gradient rule under its name, if there is one, then takes
the place of the rules of these operators. In docstrings, g is the gradient of the output.
"""

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from edgefl.onnxgrad.gradients.formula import Formula, register_slopes
from edgefl.onnxgrad.gradients.op import DOMAIN, FORMS, OF_MATRICES, Gradient, Op, form, register_rule
from edgefl.onnxgrad.gradients.tape import Tape

LEAST_LOG, LEAST_VARIANCE = -100.0, 1e-12
"""torch's limits of binary cross-entropy: of each log, and of x(1 − x) in the derivative."""


@form("Clamp", "HardTanh")
def clipped(tape: Tape, op: Op) -> None:
    """Write min(max(x, low), high). A bound may be missing."""
    low, high = (None if op.get(name) is None else tape.number(op.get(name)) for name in ("low", "high"))
    bounds = [low] if high is None else [low, high]
    tape.op("Clip", op.inputs[0], *bounds, out=op.outputs)


def _hardtanh(op: Op, x: Formula, y: Formula, g: Formula) -> Formula:
    """Return g between the bounds, 0 on them and outside."""
    return (y > op.get("low")).op("And", y < op.get("high")).where(g, 0)


register_slopes({"HardTanh": _hardtanh})


@form("FirstMax", "FirstMin")
def extreme(tape: Tape, op: Op) -> None:
    """Write the extreme along an axis."""
    kind = op.kind.replace("First", "Reduce")
    tape.op(kind, op.inputs[0], tape.integers(op.get("axis")), keepdims=op.get("keepdims"), out=op.outputs)


@register_rule("FirstMax", "FirstMin")
def first_extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient g goes to the first of the extreme entries."""
    (x,), axis = op.inputs, op.get("axis")
    if not op.get("keepdims"):
        gradient = tape.op("Unsqueeze", gradient, tape.integers(axis))
    place = tape.op(op.kind.replace("First", "Arg"), x, axis=axis, keepdims=1)
    return [tape.op("ScatterElements", tape.zeros_like(x), place, gradient, axis=axis)]


@form("ExactSigmoid")
def exact_sigmoid(tape: Tape, op: Op) -> None:
    """Write 1/(1 + e⁻ˣ). Runtimes approximate Sigmoid by a quotient, which is 0 for x ≤ −18."""
    power = tape.op("Exp", tape.op("Neg", op.inputs[0]))
    tape.op("Reciprocal", tape.op("Add", power, tape.number(1.0)), out=op.outputs)


@form("BinaryCrossEntropy")
def binary_cross_entropy(tape: Tape, op: Op) -> None:
    """Write −t·log x − (1 − t)·log(1 − x) with logs of at least −100."""
    x, target = op.inputs
    logs = (tape.op("Clip", tape.op("Log", value), tape.number(LEAST_LOG)) for value in (x, _rest(tape, x)))
    parts = [tape.op("Mul", *pair) for pair in zip((target, _rest(tape, target)), logs, strict=True)]
    tape.op("Neg", tape.total(parts), out=op.outputs)


@register_rule("BinaryCrossEntropy")
def of_binary_cross_entropy(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g·(x − t)/max(x(1 − x), 1e-12) for x, and g·(log(1 − x) − log x) for the target t."""
    (x, target), rest = op.inputs, _rest(tape, op.inputs[0])
    of_x = of_target = None
    if tape.needs(x):
        least = tape.op("Max", tape.op("Mul", x, rest), tape.number(LEAST_VARIANCE))
        of_x = tape.op("Mul", gradient, tape.op("Div", tape.op("Sub", x, target), least))
    if tape.needs(target):
        of_target = tape.op("Mul", gradient, tape.op("Sub", tape.op("Log", rest), tape.op("Log", x)))
    return [of_x, of_target]


def _rest(tape: Tape, value: str) -> str:
    return str(tape.op("Sub", tape.number(1.0), value))


def standard(model: onnx.ModelProto, real: Any = np.float32) -> onnx.ModelProto:
    """Return the model with operators of :data:`FORMS` in standard ones, with constants of type ``real``; itself if it has none."""
    kinds = {node.op_type for node in model.graph.node}.intersection(FORMS)
    if not kinds:
        return model
    found, tape = onnx.ModelProto(), Tape(onnx.ModelProto(), real)
    if not kinds.isdisjoint(OF_MATRICES):
        tape.learn_shapes(model)
    found.CopyFrom(model)
    graph = found.graph
    tape.reserve(name for node in graph.node for name in (*node.input, *node.output))
    for node in graph.node:
        if node.op_type in FORMS:
            tape.write(Op.of(node))
        else:
            tape.nodes.append(node)
    nodes = list(tape.nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in tape.constants.items())
    for imported in [entry for entry in found.opset_import if entry.domain == DOMAIN]:
        found.opset_import.remove(imported)
    return found
