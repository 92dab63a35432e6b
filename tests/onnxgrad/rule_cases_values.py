"""Cases of the reader's rules. Arithmetic, activations and reductions."""

import numpy as np
from graph_case import BOOLS, IMAGE, MATRIX, PAIR, POSITIVE, WHOLE, ints, numbers, one
from onnx import TensorProto

CASES = {
    "softmax": lambda: one("Softmax", IMAGE, axis=1),
    "log softmax": lambda: one("LogSoftmax", IMAGE),
    "leaky relu": lambda: one("LeakyRelu", MATRIX, alpha=0.2),
    "elu": lambda: one("Elu", MATRIX, alpha=0.7),
    "selu": lambda: one("Selu", MATRIX),
    "gelu": lambda: one("Gelu", MATRIX),
    "gelu tanh": lambda: one("Gelu", MATRIX, approximate="tanh"),
    "hard sigmoid": lambda: one("HardSigmoid", MATRIX, alpha=0.3),
    "swish": lambda: one("Swish", MATRIX, opset=24),
    "swish alpha": lambda: one("Swish", MATRIX, opset=24, alpha=1.5),
    "prelu": lambda: one("PRelu", IMAGE, {"s": numbers(4, 1, 1)}),
    "clip": lambda: one("Clip", MATRIX, {"low": np.float32(-0.5), "high": np.float32(0.5)}),
    "clip above": lambda: one("Clip", MATRIX, {"high": np.float32(0.5)}, order=["x", "", "high"]),
    "clip nothing": lambda: one("Clip", MATRIX),
    "pow": lambda: one("Pow", POSITIVE, {"p": np.float32(1.5)}),
    "div": lambda: one("Div", PAIR),
    "div of integers": lambda: one("Div", WHOLE),
    "mod": lambda: one("Mod", WHOLE),
    "fmod": lambda: one("Mod", PAIR, fmod=1),
    "max": lambda: one("Max", {**PAIR, "c": numbers(3, 6, seed=2)}),
    "min": lambda: one("Min", PAIR),
    "sum": lambda: one("Sum", {**PAIR, "c": numbers(3, 6, seed=2)}),
    "where": lambda: one("Where", {"c": BOOLS["a"], **PAIR}),
    "cast": lambda: one("Cast", MATRIX, to=TensorProto.INT32),
    "cast like": lambda: one("CastLike", {"x": WHOLE["a"], "like": numbers(1, 1)}),
    "dropout": lambda: one("Dropout", MATRIX),
    "reduce sum": lambda: one("ReduceSum", IMAGE, {"a": ints(1, -1)}),
    "reduce all": lambda: one("ReduceSum", IMAGE, keepdims=0),
    "reduce nothing": lambda: one("ReduceSum", IMAGE, noop_with_empty_axes=1),
    "reduce mean": lambda: one("ReduceMean", IMAGE, {"a": ints(2, 3)}, keepdims=0),
    "reduce mean by attribute": lambda: one("ReduceMean", IMAGE, axes=[2, 3], opset=13),
    "argmax": lambda: one("ArgMax", IMAGE, axis=1),
    "argmax last": lambda: one(
        "ArgMax", {"x": np.array([[1.0, 3, 3]], np.float32)}, axis=1, select_last_index=1, keepdims=0
    ),
    "argmin": lambda: one("ArgMin", IMAGE, axis=-1),
    "dropout's mask": lambda: one("Dropout", MATRIX, outputs=2),
    "hardmax": lambda: one("Hardmax", IMAGE, axis=1),
    "celu": lambda: one("Celu", MATRIX, alpha=0.7),
    "shrink": lambda: one("Shrink", MATRIX, lambd=0.3, bias=0.1),
    "thresholded relu": lambda: one("ThresholdedRelu", MATRIX, alpha=0.3),
    "swiglu": lambda: one("SwiGLU", PAIR, opset=28, alpha=1.5),
    "mean": lambda: one("Mean", {**PAIR, "c": numbers(3, 6, seed=2)}),
    "is nan": lambda: one("IsNaN", {"x": np.array([[1, np.nan, np.inf]], np.float32)}),
    "is infinite": lambda: one("IsInf", {"x": np.array([[1, np.nan, np.inf, -np.inf]], np.float32)}, detect_negative=0),
    "bits to the left": lambda: one("BitShift", {"a": np.uint8([[1, 200, 7]]), "b": np.uint8([[3, 1, 9]])}, direction="LEFT", opset=18),
    "bits to the right": lambda: one("BitShift", {"a": np.uint8([[1, 200, 7]]), "b": np.uint8([[3, 1, 9]])}, direction="RIGHT", opset=18),
    "bit cast": lambda: one("BitCast", MATRIX, opset=26, to=TensorProto.INT32),
    "reduce prod": lambda: one("ReduceProd", IMAGE, {"a": ints(1, -1)}),
    "reduce prod of all": lambda: one("ReduceProd", MATRIX, keepdims=0),
    "reduce sum of int32": lambda: one("ReduceSum", {"x": np.int32([[1, 2], [3, 4]])}),
    "reduce log sum": lambda: one("ReduceLogSum", POSITIVE, {"a": ints(1)}),
    "top k": lambda: one("TopK", {"x": np.float32([[2, 3, 3, 1], [0, 0, 0, 0]])}, {"k": ints(3)}, outputs=2),
    "top k smallest": lambda: one("TopK", IMAGE, {"k": ints(2)}, outputs=2, axis=1, largest=0),
    "running sum": lambda: one("CumSum", MATRIX, {"a": np.array(1)}),
    "running sum backwards": lambda: one("CumSum", IMAGE, {"a": np.array(-2)}, exclusive=1, reverse=1),
    "running product": lambda: one("CumProd", MATRIX, {"a": np.array(0)}, opset=26, exclusive=1),
}  # fmt: skip
for name in ["Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Mish", "HardSwish", "Softsign", "Exp", "Neg", "Abs", "Sign", "Sin", "Cos",
             "Tan",
             "Sinh", "Cosh", "Asinh", "Atan", "Floor", "Ceil", "Round", "Identity"]:  # fmt: skip
    CASES[name] = lambda name=name: one(name, MATRIX)
for name in ["Acos", "Asin", "Atanh"]:
    CASES[name] = lambda name=name: one(name, {"x": np.tanh(numbers(3, 6))})
for name in ["Sqrt", "Log", "Reciprocal"]:
    CASES[name] = lambda name=name: one(name, POSITIVE)
CASES["Acosh"] = lambda: one("Acosh", {"x": 1 + POSITIVE["x"]})
for name in ["Add", "Sub", "Mul", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]:
    CASES[name] = lambda name=name: one(name, PAIR)
CASES["Equal"] = lambda: one("Equal", {"a": WHOLE["a"], "b": WHOLE["a"]})
for name in ["And", "Or", "Xor"]:
    CASES[name] = lambda name=name: one(name, BOOLS)
for name in ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]:
    CASES[name] = lambda name=name: one(name, WHOLE)
CASES["BitwiseNot"] = lambda: one("BitwiseNot", {"a": WHOLE["a"]})
CASES["Not"] = lambda: one("Not", {"a": BOOLS["a"]})
for name in ["ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]:
    CASES[name] = lambda name=name: one(name, IMAGE, {"a": ints(1, 3)})
