"""Every rule of an ONNX operator computes what onnxruntime computes, trains, and runs on fake tensors."""

import numpy as np
import onnxruntime as ort
import pytest
import torch
from graph_case import (
    BOOLS,
    IMAGE,
    MATRIX,
    PAIR,
    POSITIVE,
    STEPS,
    TOKENS,
    WHOLE,
    X1,
    X3,
    compare,
    conv,
    fake,
    ints,
    norm,
    numbers,
    one,
    recurrent,
)
from onnx import TensorProto

from edgefl.onnxgrad.rules import RULES
from edgefl.onnxgrad.to_torch import module_of

CASES = {
    "conv1": lambda: one("Conv", {"x": X1}, conv(6, 4, 3, bias=6), strides=[2], pads=[1, 1]),
    "conv2": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3), pads=[1, 1, 1, 1]),
    "conv2 grouped and dilated": lambda: one("Conv", IMAGE, conv(6, 2, 3, 2, bias=6), group=2, dilations=[2, 1], strides=[1, 2]),
    "conv2 asymmetric pads": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3, bias=6), pads=[0, 1, 2, 0]),
    "conv2 same upper": lambda: one("Conv", IMAGE, conv(6, 4, 3, 4, bias=6), auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv2 same lower": lambda: one("Conv", IMAGE, conv(6, 4, 2, 4), auto_pad="SAME_LOWER", strides=[1, 3]),
    "conv2 valid": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3), auto_pad="VALID"),
    "conv3": lambda: one("Conv", {"x": X3}, conv(6, 4, 3, 3, 3, bias=6), pads=[1] * 6, strides=[1, 2, 2]),
    "transposed1": lambda: one("ConvTranspose", {"x": X1}, conv(4, 6, 3, bias=6), strides=[2], pads=[1, 1], output_padding=[1]),
    "transposed2": lambda: one("ConvTranspose", IMAGE, conv(4, 3, 2, 2), strides=[2, 2], group=2),
    "transposed2 asymmetric": lambda: one("ConvTranspose", IMAGE, conv(4, 3, 3, 3, bias=3), strides=[2, 1], pads=[0, 1, 1, 0]),
    "transposed2 shape": lambda: one(
        "ConvTranspose", IMAGE, conv(4, 3, 3, 3, bias=3), strides=[2, 2], output_shape=[18, 16], auto_pad="SAME_UPPER"
    ),
    "transposed3": lambda: one("ConvTranspose", {"x": X3}, conv(4, 2, 2, 2, 2), dilations=[2, 1, 1]),
    "gemm": lambda: one("Gemm", MATRIX, {"w": numbers(5, 6), "b": numbers(5)}, transB=1),
    "gemm scaled": lambda: one("Gemm", MATRIX, {"w": numbers(3, 5), "b": numbers(6, 1)}, transA=1, alpha=0.5, beta=2.0),
    "gemm without bias": lambda: one("Gemm", MATRIX, {"w": numbers(6, 5)}, alpha=0.5),
    "matmul": lambda: one("MatMul", {"x": numbers(2, 3, 4, 6)}, {"w": numbers(6, 5)}),
    "matmul of two": lambda: one("MatMul", {"a": numbers(2, 3, 4), "b": numbers(2, 4, 5)}),
    "einsum": lambda: one("Einsum", {"a": numbers(2, 3, 4), "b": numbers(2, 5, 4)}, equation="bij, bkj -> bik"),
    "attention": lambda: one(
        "Attention", {n: numbers(2, 3, 8, seed=i) for i, n in enumerate("qkv")}, opset=23, q_num_heads=2, kv_num_heads=2
    ),
    "attention grouped, causal": lambda: one(
        "Attention",
        {"q": numbers(2, 4, 3, 8), "k": numbers(2, 2, 3, 8, seed=1), "v": numbers(2, 2, 3, 8, seed=2)},
        opset=23, is_causal=1, scale=0.3,
    ),
    "attention masked": lambda: one(
        "Attention", {n: numbers(2, 4, 3, 8, seed=i) for i, n in enumerate("qkv")} | {"m": numbers(3, 3)}, opset=23
    ),
    "max pool1": lambda: one("MaxPool", {"x": X1}, kernel_shape=[3], strides=[2], pads=[1, 1]),
    "max pool2 dilated": lambda: one("MaxPool", IMAGE, kernel_shape=[3, 2], dilations=[2, 1]),
    "max pool2 same": lambda: one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max pool2 ceil": lambda: one("MaxPool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    "max pool3": lambda: one("MaxPool", {"x": X3}, kernel_shape=[2, 2, 2]),
    "average pool1": lambda: one("AveragePool", {"x": X1}, kernel_shape=[3], strides=[2], pads=[1, 1]),
    "average pool2 whole": lambda: one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    "average pool2 asymmetric": lambda: one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0]),
    "average pool2 asymmetric whole": lambda: one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0], count_include_pad=1
    ),
    "average pool3": lambda: one("AveragePool", {"x": X3}, kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "global average": lambda: one("GlobalAveragePool", {"x": X3}),
    "global max": lambda: one("GlobalMaxPool", IMAGE),
    "batch norm": lambda: one(
        "BatchNormalization", IMAGE, norm(4) | {"m": numbers(4, seed=3), "v": np.abs(numbers(4)) + 0.5}, epsilon=1e-3
    ),
    "group norm by group": lambda: one("GroupNormalization", IMAGE, norm(2), num_groups=2, opset=18),
    "group norm by channel": lambda: one("GroupNormalization", IMAGE, norm(4), num_groups=2),
    "instance norm": lambda: one("InstanceNormalization", IMAGE, norm(4)),
    "layer norm": lambda: one("LayerNormalization", MATRIX, norm(6)),
    "layer norm broadcast": lambda: one("LayerNormalization", IMAGE, {"s": numbers(8), "b": numbers(8)}, axis=2),
    "layer norm without bias": lambda: one("LayerNormalization", MATRIX, {"s": numbers(6)}, epsilon=0.1),
    "rms norm": lambda: one("RMSNormalization", MATRIX, {"s": numbers(6)}, opset=23),
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
    "gather rows": lambda: one("Gather", TOKENS, {"w": numbers(5, 4)}, order=["w", "x"]),
    "gather axis": lambda: one("Gather", IMAGE, {"i": ints(0, -1)}, axis=2),
    "gather one": lambda: one("Gather", IMAGE, {"i": np.array(-1)}, axis=1),
    "gather elements": lambda: one("GatherElements", {"x": numbers(2, 3), "i": TOKENS["x"] % 2 - 1}, axis=1),
    "scatter": lambda: one("ScatterND", MATRIX, {"i": np.array([[0], [2]]), "u": numbers(2, 6)}),
    "scatter add": lambda: one("ScatterND", MATRIX, {"i": np.array([[0], [0]]), "u": numbers(2, 6)}, reduction="add"),
    "scatter elements": lambda: one("ScatterElements", MATRIX, {"i": np.array([[0, -1]]), "u": numbers(1, 2)}, axis=1),
    "reshape": lambda: one("Reshape", IMAGE, {"s": ints(0, -1, 4)}),
    "flatten": lambda: one("Flatten", IMAGE, axis=2),
    "flatten all": lambda: one("Flatten", IMAGE, axis=0),
    "transpose": lambda: one("Transpose", IMAGE, perm=[0, 3, 1, 2]),
    "transpose reversed": lambda: one("Transpose", IMAGE),
    "slice": lambda: one("Slice", IMAGE, {"s": ints(1, -3), "e": ints(2**62, -1), "a": ints(2, -1), "p": ints(2, 1)}),
    "slice backwards": lambda: one("Slice", IMAGE, {"s": ints(-1), "e": ints(-(2**62)), "a": ints(2), "p": ints(-2)}),
    "slice of nothing": lambda: one("Slice", IMAGE, {"s": ints(0, 5), "e": ints(2, 3)}),
    "concat": lambda: one("Concat", PAIR, {"w": numbers(3, 2)}, axis=1),
    "split": lambda: one("Split", IMAGE, {"s": ints(1, 3)}, outputs=2, axis=1),
    "split evenly": lambda: one("Split", IMAGE, outputs=3, axis=2, num_outputs=3),
    "split unevenly": lambda: one("Split", IMAGE, outputs=3, axis=3, num_outputs=3),
    "split by outputs": lambda: one("Split", IMAGE, outputs=2, axis=3, opset=13),
    "pad": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 0, 0, 0, 2, -1), "v": np.float32(1.5)}),
    "pad axes": lambda: one("Pad", IMAGE, {"p": ints(1, 2), "a": ints(-1)}, order=["x", "p", "", "a"]),
    "pad reflect": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 2, 0, 0, 2, 0)}, mode="reflect"),
    "pad edge": lambda: one("Pad", IMAGE, {"p": ints(0, 1, 1, 2, 0, 0, 2, 0)}, mode="edge"),
    "pad wrap": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 2, 0, 0, 2, 0)}, mode="wrap"),
    "expand": lambda: one("Expand", {"x": numbers(3, 1, 6)}, {"s": ints(2, 1, 4, 1)}),
    "tile": lambda: one("Tile", MATRIX, {"r": ints(2, 3)}),
    "squeeze": lambda: one("Squeeze", {"x": numbers(3, 1, 6, 1)}, {"a": ints(1, -1)}),
    "unsqueeze": lambda: one("Unsqueeze", MATRIX, {"a": ints(-1, 0)}),
    "cast": lambda: one("Cast", MATRIX, to=TensorProto.INT32),
    "cast like": lambda: one("CastLike", {"x": WHOLE["a"], "like": numbers(1, 1)}),
    "shape": lambda: one("Shape", IMAGE, start=1, end=-1),
    "size": lambda: one("Size", IMAGE),
    "trilu": lambda: one("Trilu", MATRIX, {"k": np.array(1)}, upper=0),
    "trilu upper": lambda: one("Trilu", MATRIX),
    "depth to space": lambda: one("DepthToSpace", IMAGE, blocksize=2),
    "depth to space columns": lambda: one("DepthToSpace", IMAGE, blocksize=2, mode="CRD"),
    "space to depth": lambda: one("SpaceToDepth", {"x": numbers(2, 3, 4, 6)}, blocksize=2),
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
    "lstm": lambda: one("LSTM", STEPS, recurrent(4, 1), outputs=3, hidden_size=4),
    "lstm both ways": lambda: one("LSTM", STEPS, recurrent(4, 2), outputs=3, hidden_size=4, direction="bidirectional"),
    "lstm with states": lambda: one(
        "LSTM", STEPS, recurrent(4, 1) | {"n": np.array([5, 5], np.int32), "h": numbers(1, 2, 4), "c": numbers(1, 2, 4, seed=1)},
        outputs=3, hidden_size=4,
    ),
    "lstm without bias": lambda: one(
        "LSTM", STEPS, {n: a for n, a in recurrent(4, 1).items() if n != "b"}, outputs=3, hidden_size=4, direction="reverse"
    ),
    "gru": lambda: one("GRU", STEPS, recurrent(3, 1), outputs=2, hidden_size=4),
    "gru late reset": lambda: one(
        "GRU", STEPS, recurrent(3, 2), outputs=2, hidden_size=4, direction="bidirectional", linear_before_reset=1
    ),
    "rnn": lambda: one("RNN", STEPS, recurrent(1, 1), outputs=2, hidden_size=4),
    "rnn relu": lambda: one("RNN", STEPS, recurrent(1, 1), outputs=2, hidden_size=4, activations=["Relu"]),
}  # fmt: skip

for name in ["Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Mish", "HardSwish", "Softsign", "Exp", "Neg", "Abs", "Sign", "Sin", "Cos",
             "Floor", "Ceil", "Round", "Identity"]:  # fmt: skip
    CASES[name] = lambda name=name: one(name, MATRIX)
for name in ["Sqrt", "Log", "Reciprocal"]:
    CASES[name] = lambda name=name: one(name, POSITIVE)
for name in ["Add", "Sub", "Mul", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]:
    CASES[name] = lambda name=name: one(name, PAIR)
CASES["Equal"] = lambda: one("Equal", {"a": WHOLE["a"], "b": WHOLE["a"]})
for name in ["And", "Or", "Xor"]:
    CASES[name] = lambda name=name: one(name, BOOLS)
CASES["Not"] = lambda: one("Not", {"a": BOOLS["a"]})
for name in ["ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]:
    CASES[name] = lambda name=name: one(name, IMAGE, {"a": ints(1, 3)})
for mode in ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]:
    for kind in ["nearest", "linear"]:
        CASES[f"resize {kind} {mode}"] = lambda mode=mode, kind=kind: one(
            "Resize", IMAGE, {"s": np.array([1, 1, 2, 0.7], np.float32)}, order=["x", "", "s"], mode=kind,
            coordinate_transformation_mode=mode,
        )  # fmt: skip
for rounding in ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]:
    CASES[f"resize {rounding}"] = lambda rounding=rounding: one(
        "Resize", IMAGE, {"s": ints(2, 4, 13, 5)}, order=["x", "", "", "s"], nearest_mode=rounding
    )
CASES["resize axes"] = lambda: one("Resize", IMAGE, {"s": ints(13, 5)}, order=["x", "", "", "s"], axes=[2, 3], mode="linear")


@pytest.mark.parametrize("case", CASES)
def test_a_rule_computes_what_onnxruntime_computes_also_on_fake_tensors(case):
    model, inputs = CASES[case]()
    module = compare(model, inputs)
    expected = [array.shape for array in ort.InferenceSession(model.SerializeToString()).run(None, inputs)]
    assert fake(module, inputs) == expected


def test_every_rule_has_a_case():
    assert set(RULES) == {node.op_type for make in CASES.values() for node in make()[0].graph.node}


WEIGHTED = ["conv1", "conv2 grouped and dilated", "conv3", "transposed2", "gemm", "matmul", "batch norm", "group norm by channel",
            "layer norm",
            "rms norm", "instance norm", "prelu", "gather rows", "lstm both ways", "gru", "gru late reset", "rnn"]  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", WEIGHTED)
def test_every_weight_is_a_parameter_of_its_layer_and_gets_a_gradient(case, training):
    model, inputs = CASES[case]()
    module, _ = module_of(model)
    (layer,) = module.children()
    statistics = {"m", "v"} if case == "batch norm" else set()
    stored = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer if tensor.name not in statistics}
    assert [list(parameter.shape) for parameter in layer.parameters()] == list(stored.values())
    module.train(training)
    found = module(*(torch.from_numpy(array) for array in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    sum((tensor * torch.arange(tensor.numel()).reshape(tensor.shape)).sum() for tensor in found).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in layer.parameters())


def test_training_normalises_by_the_batch_and_moves_the_statistics():
    model, inputs = CASES["batch norm"]()
    module, _ = module_of(model)
    x = torch.from_numpy(inputs["x"])
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train()
    (layer,) = module.children()
    y = module(x)
    expected = torch.nn.functional.batch_norm(x, None, None, layer.scale, layer.B, True, eps=1e-3)
    assert torch.allclose(y, expected, atol=1e-5)
    mean = dict(module.named_buffers())["BatchNormalization.input_mean"]
    assert torch.allclose(mean, 0.9 * before["BatchNormalization.input_mean"] + 0.1 * x.mean((0, 2, 3)), atol=1e-6)
