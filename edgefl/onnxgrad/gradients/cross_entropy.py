"""The gradient of cross-entropy, which is written as a product with one-hot labels."""

from typing import Any

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.op import Op, prepared
from edgefl.onnxgrad.gradients.tape import Shape, Tape


@prepared("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(tape: Tape, op: Op) -> None:
    """Write −log softmax at the labels as a product with one-hot labels, then the mean, the sum, or neither.

    Inference builds of onnxruntime expand the operator into a dozen nodes with gathers. The product is faster, and so is its gradient.
    """
    (logits, labels), places = op.inputs[:2], tape.shape(op.inputs[0])
    if len(op.outputs) > 1:
        op.refuse("its second output has no rule")
    logs = logits if op.kind == "NegativeLogLikelihoodLoss" else _put(tape, places, "LogSoftmax", logits, axis=1)
    classes, shares = tape.fixed(op, logits, [1])[0], None
    if not _own_label(tape, op):
        labels, shares = _weighed(tape, op)
    values = tape.constant(np.array([0, 1], tape.real))
    chosen = _put(tape, places, "OneHot", labels, tape.constant(np.array(classes)), values, axis=1)
    rest = (places[0], *places[2:])
    own = _put(tape, rest, "ReduceSum", _put(tape, places, "Mul", logs, chosen), tape.integers(1), keepdims=0)
    if shares is not None:
        own = _put(tape, rest, "Mul", own, shares)
    reduction = op.get("reduction", "mean")
    if reduction != "none":
        own = _put(tape, (), "ReduceMean" if reduction == "mean" and shares is None else "ReduceSum", own, keepdims=0)
    if reduction == "mean" and shares is not None:
        own = _put(tape, (), "Div", own, _put(tape, (), "ReduceSum", shares, keepdims=0))
    tape.nodes.append(onnx.helper.make_node("Neg", [own], list(op.outputs), name=op.name))


def _put(tape: Tape, shape: Shape, kind: str, *inputs: str, **attributes: Any) -> str:
    value: str = tape.op(kind, *inputs, **attributes)
    tape.shapes[value] = shape
    return value


def _own_label(tape: Tape, op: Op) -> bool:
    """Return whether every label counts, and all count the same.

    torch exports its default ignore_index, −100. The one label of a sample is never that, but labels of a sequence's entries may be.
    """
    read = not any(op.inputs[1] in node.output for node in tape.nodes)
    single = len(tape.shape(op.inputs[1])) == 1 and read
    return op.input(2) is None and (op.get("ignore_index") is None or (single and op.get("ignore_index") < 0))


def _weighed(tape: Tape, op: Op) -> tuple[str, str]:
    """Return the labels, with 0 in place of the one to ignore, and the weight of each in the mean."""
    labels, places = op.inputs[1], tape.shape(op.inputs[1])
    kept = None
    if op.get("ignore_index") is not None:
        ignored = tape.op("Equal", labels, tape.constant(np.array(op.get("ignore_index"))))
        labels = _put(tape, places, "Where", ignored, tape.constant(np.array(0)), labels)
        kept = _put(tape, places, "Where", ignored, tape.number(0.0), tape.number(1.0))
    weights = op.input(2)
    if weights is None:
        return labels, str(kept)
    shares = _put(tape, places, "Gather", weights, labels)
    return labels, shares if kept is None else _put(tape, places, "Mul", shares, kept)
