"""The gradient of cross-entropy, which is written as a product with one-hot labels."""

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.op import Op, prepared
from edgefl.onnxgrad.gradients.tape import Tape


@prepared("SoftmaxCrossEntropyLoss")
def cross_entropy(tape: Tape, op: Op) -> None:
    """Write −log softmax at the labels as a product with one-hot labels, then the mean, the sum, or neither.

    Inference builds of onnxruntime expand the operator into a dozen nodes with gathers. The product is faster, and so is its gradient.
    """
    logits, labels, *weights = op.inputs
    # torch exports its default ignore_index, −100, which is never a label.
    if len(tape.shape(logits)) != 2 or any(weights) or op.get("ignore_index", -1) >= 0 or len(op.outputs) > 1:
        op.refuse("only mean, sum or none over (batch, classes), without weights and without a label to ignore, has a rule")
    classes = tape.fixed(op, logits, [1])[0]
    places, (loss,) = tape.shape(logits), op.outputs
    logs = tape.op("LogSoftmax", logits, axis=1)
    chosen = tape.op("OneHot", labels, tape.constant(np.array(classes)), tape.constant(np.array([0, 1], tape.real)), axis=1)
    picked = tape.op("Mul", logs, chosen)
    tape.shapes |= {logs: places, chosen: places, picked: places}
    own = tape.op("ReduceSum", picked, tape.integers(1), keepdims=0)
    tape.shapes[own] = places[:1]
    reduction = op.get("reduction", "mean")
    if reduction != "none":
        own = tape.op("ReduceMean" if reduction == "mean" else "ReduceSum", own, keepdims=0)
        tape.shapes[own] = ()
    tape.nodes.append(onnx.helper.make_node("Neg", [own], [loss], name=op.name))
