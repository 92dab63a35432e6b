"""Losses of classifiers, written out in operators that every runtime has kernels for."""

from __future__ import annotations

import numpy as np
import onnx.helper

from edgefl.onnxgrad.gradients.tape import Op, Tape, prepared


@prepared("SoftmaxCrossEntropyLoss")
def cross_entropy(tape: Tape, op: Op) -> None:
    """−Σ log softmax at the labels, summed, averaged, or one for each sample.

    Inference builds of onnxruntime expand the operator into a dozen nodes with gathers; a product with one-hot labels is two, and its
    gradient is the softmax less the labels.
    """
    logits, labels, *weights = op.inputs
    # torch's own ignore_index, −100, is no label that data have.
    if len(tape.shape(logits)) != 2 or any(weights) or op.get("ignore_index", -1) >= 0 or len(op.outputs) > 1:
        op.refuse("only mean, sum or none over (batch, classes), without weights and without a label to ignore, has a rule")
    classes = tape.fixed(op, logits, [1])[0]
    places, (loss,) = tape.shape(logits), op.outputs
    logs = tape.op("LogSoftmax", logits, axis=1)
    chosen = tape.op("OneHot", labels, tape.constant(np.array(classes)), tape.constant(tape.pair(0, 1)), axis=1)
    picked = tape.op("Mul", logs, chosen)
    tape.shapes |= {logs: places, chosen: places, picked: places}
    own = tape.op("ReduceSum", picked, tape.integers(1), keepdims=0)
    tape.shapes[own] = places[:1]
    reduction = op.get("reduction", "mean")
    if reduction != "none":
        own = tape.op("ReduceMean" if reduction == "mean" else "ReduceSum", own, keepdims=0)
        tape.shapes[own] = ()
    tape.nodes.append(onnx.helper.make_node("Neg", [own], [loss], name=op.name))
