"""Cross-entropy, written as a selection of each label's entry; its gradient follows from the rules of the selection."""

import math

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.op import Op, prepared
from edgefl.onnxgrad.gradients.tape import Tape, put


@prepared("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(tape: Tape, op: Op) -> None:
    """Write −log softmax at the labels, then the mean, the sum, or neither.

    Inference builds of onnxruntime expand the operator into a dozen nodes with gathers. A selection by comparison is faster, and so is its
    gradient. It takes no product with logits that are −∞. As in torch, ignored labels count for nothing, and a batch of which all labels
    are ignored has the loss NaN and no gradient. A label that is no class, an error in torch, has the loss NaN.
    """
    (logits, labels), places = op.inputs[:2], tape.shape(op.inputs[0])
    if len(op.outputs) > 1:
        op.refuse("its second output has no rule")
    logs = logits if op.kind == "NegativeLogLikelihoodLoss" else put(tape, places, "LogSoftmax", logits, axis=1)
    classes, rest = tape.fixed(op, logits, [1])[0], (places[0], *places[2:])
    index = op.get("ignore_index")
    ignored = None if index is None else tape.op("Equal", labels, tape.constant(np.array(index)))
    least, most = (tape.constant(np.array(number)) for number in (0, classes - 1))
    unknown = tape.op("Or", tape.op("Less", labels, least), tape.op("Greater", labels, most))
    if ignored is not None:
        unknown = tape.op("And", unknown, tape.op("Not", ignored))
        labels = tape.op("Where", ignored, tape.constant(np.array(-1)), labels)
    own = _selected(tape, logs, labels, classes)
    weights = op.input(2)
    if weights is not None:
        known = tape.op("Clip", labels, least, most)
        shares = put(tape, rest, "Gather", weights, known)
        own = put(tape, rest, "Mul", own, shares)
    own = put(tape, rest, "Where", unknown, tape.number(math.nan), own)
    reduction = op.get("reduction", "mean")
    if reduction == "mean" and (ignored is not None or weights is not None):
        counts = tape.number(1.0) if weights is None else shares
        if ignored is not None:
            counts = put(tape, rest, "Where", ignored, tape.number(0.0), counts)
        own = _mean(tape, own, counts, ignored)
    elif reduction != "none":
        own = put(tape, (), "ReduceMean" if reduction == "mean" else "ReduceSum", own, keepdims=0)
    tape.nodes.append(onnx.helper.make_node("Neg", [own], list(op.outputs), name=op.name))


def _selected(tape: Tape, logs: str, labels: str, classes: int) -> str:
    """Return the entry of ``logs`` (batch, classes, …) at each label, 0 for a label that is no class."""
    shape = tape.shape(logs)
    numbers = tape.constant(np.arange(classes).reshape(-1, *[1] * (len(shape) - 2)))
    chosen = put(tape, shape, "Equal", tape.op("Unsqueeze", labels, tape.integers(1)), numbers)
    entries = put(tape, shape, "Where", chosen, logs, tape.number(0.0))
    return put(tape, (shape[0], *shape[2:]), "ReduceSum", entries, tape.integers(1), keepdims=0)


def _mean(tape: Tape, own: str, counts: str, ignored: str | None) -> str:
    """Return Σ ``own`` / Σ ``counts``; if all labels are ignored, NaN that has no gradient."""
    total, count = (put(tape, (), "ReduceSum", value, keepdims=0) for value in (own, counts))
    if ignored is None:
        return put(tape, (), "Div", total, count)
    left = put(tape, (), "ReduceMin", tape.op("Cast", ignored, to=onnx.TensorProto.INT32), keepdims=0)
    none = tape.op("Cast", left, to=onnx.TensorProto.BOOL)
    share = tape.op("Where", none, tape.number(1.0), tape.op("Reciprocal", count))
    mean = put(tape, (), "Mul", total, share)
    return put(tape, (), "Where", none, tape.number(math.nan), mean)
