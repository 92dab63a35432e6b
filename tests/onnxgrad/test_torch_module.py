"""An ONNX graph as a torch module computes what onnxruntime computes, trains, and runs on fake tensors."""

import copy

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from exported import forward_graph
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.errors import InputError
from edgefl.models.base import Architecture
from edgefl.onnxgrad.rules import FOLDED, RULES
from edgefl.onnxgrad.to_torch import load_onnx, module_of


def numbers(*shape, seed=5):
    return np.random.default_rng(seed + len(shape)).standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def graph(nodes, inputs, weights=None, outputs=("y",), opset=21):
    """Make a model; inputs and weights are arrays by name, the first dimension of an input is free."""
    ends = []
    for name, array in inputs.items():
        shape = [f"{name}_n", *array.shape[1:]] if array.ndim else []
        ends.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    body = helper.make_graph(nodes, "g", ends, results, stored)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return typed(model)


def typed(model):
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for value, output in zip(model.graph.output, inferred.graph.output, strict=True):
        kind = output.type.tensor_type
        dims = [dim.dim_value or dim.dim_param for dim in kind.shape.dim]
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind.elem_type or TensorProto.FLOAT, dims))
    return model


def one(op, inputs, weights=None, outputs=1, opset=21, order=None, **attributes):
    """Make a model of one node; its inputs are ``order``, by default the inputs and then the weights."""
    names = [f"y{i}" for i in range(outputs)] if outputs > 1 else ["y"]
    node = helper.make_node(op, order or [*inputs, *(weights or {})], names, name=f"/{op}", **attributes)
    return graph([node], inputs, weights, names, opset), inputs


def compare(model, inputs, atol=1e-5):
    session = ort.InferenceSession(model.SerializeToString())
    expected = session.run(None, inputs)
    module, declared = module_of(model)
    assert list(declared) == list(inputs)
    with torch.no_grad():
        found = module(*(torch.from_numpy(array) for array in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(expected)
    for tensor, array in zip(found, expected, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_allclose(tensor.numpy(), array, atol=atol, rtol=1e-5)
    return module


def fake(module, inputs):
    """Run a copy of the module, and its inputs, as fake tensors; return the shapes of the outputs."""
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
        fakes |= {name: mode.from_tensor(tensor) for name, tensor in module.named_buffers()}
        found = torch.func.functional_call(module, fakes, tuple(mode.from_tensor(torch.from_numpy(a)) for a in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    return [tuple(tensor.shape) for tensor in found]


X1, X2, X3 = numbers(2, 4, 11), numbers(2, 4, 9, 8), numbers(2, 4, 6, 7, 5)
IMAGE = {"x": X2}
MATRIX = {"x": numbers(3, 6)}
POSITIVE = {"x": np.abs(numbers(3, 6)) + 0.1}
PAIR = {"a": numbers(3, 6), "b": numbers(3, 6, seed=8)}
BOOLS = {"a": numbers(3, 6) > 0, "b": numbers(3, 6, seed=8) > 0}
WHOLE = {"a": np.array([[7, -7, 5]], np.int64), "b": np.array([[2, 2, -3]], np.int64)}
TOKENS = {"x": np.array([[0, 3, -1], [2, 2, 1]], np.int64)}
STEPS = {"x": numbers(5, 2, 3)}


def conv(*shape, bias=None):
    return {"w": numbers(*shape, seed=1)} | ({} if bias is None else {"b": numbers(bias, seed=2)})


def norm(channels):
    return {"s": numbers(channels), "b": numbers(channels, seed=9)}


def recurrent(gates, directions, hidden=4, inputs=3):
    shapes = {"w": (directions, gates * hidden, inputs), "r": (directions, gates * hidden, hidden)}
    return {name: numbers(*shape, seed=3) for name, shape in shapes.items()} | {"b": numbers(directions, 2 * gates * hidden)}


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


def exported(name, shape, batch=2):
    inputs = {"x": numbers(batch, *shape)}
    model = onnx.load_model_from_string(forward_graph(Architecture(name, shape, 10).build().eval(), shape))
    return model, inputs


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


# The exporter writes GroupNorm as InstanceNormalization with a scale and bias for each group before its own, and static norms into
# the convolutions before them.
@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [("cnn-digits", (1, 8, 8), 2 * (4 + 8 + 8)), ("resnet18", (3, 32, 32), -2 * 4800), ("mlp", (1, 8, 8), 0)],
)
def test_our_own_networks_come_back(name, shape, more):
    model, inputs = exported(name, shape)
    module = compare(model, inputs, atol=1e-4)
    assert fake(module, inputs) == [(2, 10)]
    assert count(module) == count(Architecture(name, shape, 10).build()) + more


class Tokens(nn.Module):
    """A small transformer: an embedding, positions, a causal mask and a head that shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.zeros(5, 8))
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        h = self.embedding(x) + self.position[: x.shape[1]]
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind()
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return nn.functional.gelu(h) @ self.embedding.weight.T


class Recurrent(nn.Module):
    """A two-layer LSTM and GRU in both directions, batch first."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 5, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0][:, -1]


class Upsampled(nn.Module):
    """Sizes that follow from the input's: interpolation, a flattening and a mean over what remains."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x):
        y = nn.functional.interpolate(self.conv(x), scale_factor=2, mode="bilinear")
        y = nn.functional.interpolate(y, size=x.shape[2:], mode="nearest")
        return y.reshape(x.shape[0], -1, 4).mean(1)


EXPORTED = {
    "transformer": (Tokens, np.array([[1, 2, 3], [4, 5, 10]], np.int64)),
    "recurrent": (Recurrent, numbers(2, 6, 3)),
    "upsampled": (Upsampled, numbers(2, 2, 6, 8)),
}


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_network_computes_and_traces(kind):
    build, x = EXPORTED[kind]
    network = build().eval()
    program = torch.onnx.export(
        network, (torch.from_numpy(x),), dynamo=True, opset_version=20, verbose=False, input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    module = compare(program.model_proto, {"x": x})
    with torch.no_grad():
        expected = network(torch.from_numpy(x))
    assert torch.allclose(module(torch.from_numpy(x)), expected, atol=1e-5)
    assert fake(module, {"x": x}) == [tuple(expected.shape)]
    module(torch.from_numpy(x)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_module_built_under_fake_tensors_trains_on_them():
    model, _ = exported("cnn-digits", (1, 8, 8))
    with FakeTensorMode():
        module, declared = module_of(model)
        module.train()
        assert declared == {"x": (("batch", 1, 8, 8), torch.float32)}
        logits = module(torch.empty(7, 1, 8, 8))
        logits.sum().backward()
        assert logits.shape == (7, 10)
        assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())


def computed_shape():
    """Flatten through shapes that the graph computes: (n, c, …) to (n, c·h·w) and back, times a constant of Range."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(ints(0))),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("Shape", ["rows"], ["rows_shape"], start=1),
        helper.make_node("Squeeze", ["rows_shape"], ["columns"]),
        helper.make_node("Range", ["start", "columns", "step"], ["positions"]),
        helper.make_node("Cast", ["positions"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows", "floats"], ["scaled"]),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.float32([1]))),
        helper.make_node("Reshape", ["scaled", "shape"], ["back"]),
        helper.make_node("Add", ["back", "ones"], ["y"]),
    ]
    inputs = {"x": numbers(2, 3, 4)}
    return graph(nodes, inputs, {"start": np.array(0), "step": np.array(1)}, ("y", "flat")), inputs


def test_shapes_that_the_graph_computes_are_known_under_fake_tensors():
    model, inputs = computed_shape()
    module = compare(model, inputs)
    assert fake(module, inputs) == [(2, 3, 4), (2,)]
    assert not list(module.parameters())


def test_scales_that_are_concatenated_are_settings_and_no_parameters():
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["s"], axis=0),
        helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest"),
    ]
    model = graph(nodes, IMAGE, {"a": np.ones(2, np.float32), "b": np.full(2, 2, np.float32)})
    assert not list(compare(model, IMAGE).parameters())


def test_layers_have_the_names_of_nodes_without_clashes():
    names = ["/block.0/conv", "block_0_conv", "", "forward"]
    values = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [values[i]], [values[i + 1]], name=name) for i, name in enumerate(names)]
    module, _ = module_of(graph(nodes, MATRIX))
    assert [name for name, _ in module.named_children()] == ["block_0_conv", "block_0_conv_", "Relu_2", "forward_"]


def test_a_shared_initializer_is_one_parameter_of_two_layers():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="a"), helper.make_node("MatMul", ["h", "w"], ["y"], name="b")]
    module = compare(graph(nodes, MATRIX, {"w": numbers(6, 6)}), MATRIX)
    assert module.a.B is module.b.B
    assert len(list(module.parameters())) == 1


def test_ones_that_two_layers_read_are_a_parameter_of_each():
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "b"], ["h"], name="a"),
        helper.make_node("LayerNormalization", ["h", "s", "b"], ["y"], name="b"),
    ]
    model = graph(nodes, MATRIX, {"s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)})
    assert count(compare(model, MATRIX)) == 4 * 6


def test_what_is_no_weight_is_no_parameter():
    mask = np.array([0, -np.inf, 0, 0, 0, 0], np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["h"]),
        helper.make_node("Add", ["h", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    module = compare(graph(nodes, MATRIX, {"half": np.float32(0.5), "mask": mask}), MATRIX)
    assert not list(module.parameters())
    assert not module.state_dict()


def test_training_normalises_by_the_batch_and_moves_the_statistics():
    model, inputs = CASES["batch norm"]()
    module, _ = module_of(model)
    x = torch.from_numpy(inputs["x"])
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train()
    (layer,) = module.children()
    y = module(x)
    expected = nn.functional.batch_norm(x, None, None, layer.scale, layer.B, True, eps=1e-3)
    assert torch.allclose(y, expected, atol=1e-5)
    mean = dict(module.named_buffers())["BatchNormalization.input_mean"]
    assert torch.allclose(mean, 0.9 * before["BatchNormalization.input_mean"] + 0.1 * x.mean((0, 2, 3)), atol=1e-6)


def test_dropout_drops_in_training_only():
    module, _ = module_of(one("Dropout", MATRIX, {"ratio": np.float32(0.9)})[0])
    x = torch.ones(40, 6)
    assert torch.equal(module(x), x)
    assert (module.train()(x) == 0).any()


def test_a_layer_can_be_replaced_and_the_module_copied():
    model, inputs = one("Gemm", MATRIX, {"w": numbers(5, 6), "b": numbers(5)}, transB=1)
    module, _ = module_of(model)
    linear = nn.Linear(6, 5)
    with torch.no_grad():
        linear.weight.copy_(module.Gemm.B)
        linear.bias.copy_(module.Gemm.C)
    x = torch.from_numpy(inputs["x"])
    expected = copy.deepcopy(module)(x)
    module.Gemm = linear
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_values_are_let_go_after_their_last_use():
    names = ["x", "a", "b", "c", "y"]
    model = graph([helper.make_node("Exp", [names[i]], [names[i + 1]], name=names[i + 1]) for i in range(4)], MATRIX)
    module, _ = module_of(model)
    assert module.last_use == {"a": ("x",), "b": ("a",), "c": ("b",), "y": ("c",)}


def test_a_number_of_inputs_is_explained():
    module, _ = module_of(one("Add", PAIR)[0])
    with pytest.raises(InputError, match=r"^got 1 inputs, expected 2: a, b$"):
        module(torch.ones(3, 6))


REFUSED = {
    "activation": (
        lambda: one("GRU", STEPS, recurrent(3, 1), outputs=2, hidden_size=4, activations=["Relu", "Tanh"]),
        r"^node /GRU \(GRU\): activations relu, tanh have no rule, expected sigmoid, tanh$",
    ),
    "directions": (
        lambda: one("RNN", STEPS, recurrent(1, 2), outputs=2, hidden_size=4, direction="bidirectional",
                    activations=["Relu", "Tanh"]),
        r"^node /RNN \(RNN\): activations relu, tanh: directions that differ have no rule$",
    ),
    "clip": (
        lambda: one("RNN", STEPS, recurrent(1, 1), outputs=2, hidden_size=4, clip=1.0),
        r"^node /RNN \(RNN\): clip and input_forget have no rule$",
    ),
    "cubic": (
        lambda: one("Resize", IMAGE, {"s": ints(2, 4, 3, 3)}, order=["x", "", "", "s"], mode="cubic"),
        r"^node /Resize \(Resize\): mode 'cubic', expected 'nearest' or 'linear'$",
    ),
    "indices": (lambda: one("MaxPool", IMAGE, outputs=2, kernel_shape=[2, 2]), r"\(MaxPool\): only its first output has a rule$"),
    "dilated": (
        lambda: one("AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
        r"\(AveragePool\): dilations \[2, 2\], expected ones$",
    ),
    "softcap": (
        lambda: one("Attention", {n: numbers(2, 4, 3, 8, seed=i) for i, n in enumerate("qkv")}, opset=23, softcap=2.0),
        r"^node /Attention \(Attention\): a cache of keys and softcap have no rule$",
    ),
    "cast": (lambda: one("Cast", MATRIX, to=TensorProto.UINT64), r"^node /Cast \(Cast\): type UINT64 has no rule$"),
    "scatter": (
        lambda: one("ScatterND", MATRIX, {"i": np.array([[0]]), "u": numbers(1, 6)}, reduction="mul"),
        r"\(ScatterND\): reduction 'mul', expected 'none' or 'add'$",
    ),
    "pad": (lambda: one("Pad", IMAGE, {"p": ints(*[1] * 8)}, mode="mirror"), r"\(Pad\): mode 'mirror', expected 'constant', 'edge', "),
    "rounding": (
        lambda: one("Resize", IMAGE, {"s": ints(2, 4, 3, 3)}, order=["x", "", "", "s"], nearest_mode="up"),
        r"^node /Resize \(Resize\): nearest_mode 'up', expected round_prefer_floor, ",
    ),
}  # fmt: skip

REFUSED_WHEN_RUN = {
    "lengths": (
        lambda: one("LSTM", STEPS, recurrent(4, 1) | {"n": np.array([5, 4], np.int32)}, outputs=3, hidden_size=4),
        r"^node /LSTM \(LSTM\): sequence_lens \[5, 4\], expected all 5: shorter sequences have no rule$",
    ),
    "shape": (
        lambda: one("Reshape", {"x": numbers(3, 6), "s": ints(6, 3)}),
        r"^node /Reshape \(Reshape\): input 1 \(shape\) depends on data; a shape or setting must be known$",
    ),
    "range": (
        lambda: one("ConstantOfShape", {"s": ints(6, 3)}),
        r"^node /ConstantOfShape \(ConstantOfShape\): its inputs depend on data; only known ones have a rule$",
    ),
    "rank": (
        lambda: one("Conv", {"x": numbers(1, 1, 2, 2, 2, 2)}, conv(1, 1, 1, 1, 1, 1)),
        r"^node /Conv \(Conv\): 4 spatial axes, expected 1, 2, 3$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_rule_names_the_node(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        module_of(make()[0])


@pytest.mark.parametrize("case", REFUSED_WHEN_RUN)
def test_values_without_a_rule_name_the_node_that_meets_them(case):
    make, message = REFUSED_WHEN_RUN[case]
    model, inputs = make()
    module, _ = module_of(model)
    with pytest.raises(InputError, match=message):
        module(*(torch.from_numpy(array) for array in inputs.values()))


def test_a_type_without_a_rule_does_not_matter_where_values_are_known():
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["t"], to=TensorProto.UINT64),
             helper.make_node("Cast", ["t"], ["y"], to=TensorProto.INT64)]  # fmt: skip
    compare(graph(nodes, MATRIX), MATRIX)


def stored(path, model):
    onnx.save(model, path)
    return path


def test_a_file_loads_with_functions_of_its_own_expanded(tmp_path):
    domain = "local"
    body = helper.make_function(
        domain, "Twice", ["v"], ["r"], [helper.make_node("Add", ["v", "v"], ["r"])], [helper.make_opsetid("", 21)]
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in "xy"]
    body_graph = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain=domain)], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    model = helper.make_model(body_graph, opset_imports=opsets, functions=[body], ir_version=10)
    module, _ = module_of(load_onnx(stored(tmp_path / "f.onnx", model)))
    assert torch.equal(module(torch.ones(1, 6)), 2 * torch.ones(1, 6))


def changed(**fields):
    model, _ = one("Relu", MATRIX)
    if "op" in fields:
        model.graph.node[0].op_type = fields["op"]
    if "domain" in fields:
        model.graph.node[0].domain = fields["domain"]
        model.opset_import.append(helper.make_opsetid(fields["domain"], 1))
    if "version" in fields:
        model.opset_import[0].version = fields["version"]
    if "shape" in fields:
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", fields.get("type", TensorProto.FLOAT), fields["shape"]))
    if "wire" in fields:
        model.graph.node[0].input[0] = fields["wire"]
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "Rel"}, r"node /Relu \(Rel\): no rule for operator 'Rel'; did you mean 'Relu'\? Known: Abs, Add, .*, Xor$"),
        ({"op": "Optional"}, r"node /Relu \(Optional\): no rule for operator 'Optional';.* Known: Abs, "),
        ({"domain": "com.acme"}, r"node /Relu \(Relu\): operator set 'com\.acme', expected only ai\.onnx$"),
        ({"version": 99}, r"operator set 99, expected 13 to \d\d; convert it, or export it again$"),
        ({"version": 12}, r"operator set 12, expected 13 to \d\d; convert it, or export it again$"),
        ({"shape": [0, 3]}, r"input 'x': shape \(0, 3\), expected sizes of at least 1 and at most 2147483647 values$"),
        ({"shape": ["n", 2**20, 2**20]}, r"input 'x': shape \('n', 1048576, 1048576\), expected sizes"),
        ({"shape": None}, r"input 'x': expected a tensor of numbers with a shape$"),
        ({"shape": ["n"], "type": TensorProto.STRING}, r"input 'x': expected a tensor of numbers with a shape$"),
        ({"wire": "nowhere"}, r"not a valid ONNX model \(.*nowhere"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_in_one_line(tmp_path, fields, message):
    path = stored(tmp_path / "net.onnx", changed(**fields))
    with pytest.raises(InputError, match=f"^{path}: {message}") as caught:
        load_onnx(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff" * 40, "not a valid ONNX model (Error parsing message"),
        (b"", "names no operator set of ai.onnx: not an ONNX model, or one without standard operators"),
        (None, "no such file"),
    ],
)
def test_a_damaged_or_missing_file_is_named(tmp_path, content, message):
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_onnx(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(tmp_path):
    path = stored(tmp_path / "net.onnx", exported("cnn-digits", (1, 8, 8))[0])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"net\.onnx: not a valid ONNX model \("):
        load_onnx(path)


def test_weights_outside_the_file_that_are_missing_are_named(tmp_path):
    model, _ = one("Gemm", MATRIX, {"w": numbers(6, 500)})
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.data")
    assert len(load_onnx(tmp_path / "net.onnx").graph.initializer) == 1
    (tmp_path / "net.data").unlink()
    with pytest.raises(InputError, match=r"net\.onnx: not a valid ONNX model \(.*net\.data"):
        load_onnx(tmp_path / "net.onnx")


def test_constants_that_do_not_fit_are_named():
    model = graph([helper.make_node("Add", ["a", "b"], ["c"], name="sum"), helper.make_node("Reshape", ["x", "c"], ["y"])],
                  MATRIX, {"a": ints(1, 2), "b": ints(1, 2, 3)})  # fmt: skip
    with pytest.raises(InputError, match=r"^node sum \(Add\): cannot be computed from its constants \("):
        module_of(model)


def test_every_folded_operator_is_in_a_test():
    assert {node.op_type for node in computed_shape()[0].graph.node} >= FOLDED
