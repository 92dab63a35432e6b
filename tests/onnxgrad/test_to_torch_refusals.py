"""ONNX graphs and files without a torch module: the message names the node, or the file."""

import numpy as np
import onnx
import pytest
import torch
from graph_case import IMAGE, MATRIX, STEPS, conv, exported, graph, ints, numbers, one, recurrent
from onnx import TensorProto, helper

from edgefl.errors import InputError
from edgefl.onnxgrad.to_torch import load_onnx, module_of

NEEDED = {"SpaceToDepth": {"blocksize": 2}, "MaxPool": {"kernel_shape": [2, 2]}}


def stray(op, inputs, opset=21, **attributes):
    """Make a model of one node, whose attributes are not those that onnx expects."""
    model, inputs = one(op, inputs, opset=opset, **NEEDED.get(op, {}))
    model.graph.node[0].ClearField("attribute")
    model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return model, inputs


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
    "mode": (
        lambda: one("Resize", IMAGE, {"s": ints(2, 4, 3, 3)}, order=["x", "", "", "s"], mode="area"),
        r"^node /Resize \(Resize\): mode 'area', expected 'nearest', 'linear' or 'cubic'$",
    ),
    "statistics": (
        lambda: one("BatchNormalization", IMAGE, {n: np.ones(4, np.float32) for n in "sbmv"}, outputs=3, training_mode=1),
        r"\(BatchNormalization\): only its first output has a rule$",
    ),
    "an attribute with another value than its default": (
        lambda: one("LayerNormalization", MATRIX, {"s": numbers(6)}, stash_type=11),
        r"^node /LayerNormalization \(LayerNormalization\): attribute stash_type = 11 has no rule, expected 1$",
    ),
    "an attribute of no operator set": (
        lambda: stray("Relu", MATRIX, slope=0.5),
        r"^node /Relu \(Relu\): attribute 'slope' is not in operator set 21$",
    ),
    "an attribute of a newer operator set": (
        lambda: stray("SpaceToDepth", IMAGE, opset=20, blocksize=2, mode="CRD"),
        r"^node /SpaceToDepth \(SpaceToDepth\): attribute 'mode' is not in operator set 20$",
    ),
    "pads": (
        lambda: stray("MaxPool", IMAGE, kernel_shape=[2, 2], auto_pad="SAME"),
        r"\(MaxPool\): auto_pad 'SAME', expected 'NOTSET', 'VALID', 'SAME_UPPER' or 'SAME_LOWER'$",
    ),
    "cast": (lambda: one("Cast", MATRIX, to=TensorProto.FLOAT8E5M2), r"^node /Cast \(Cast\): type FLOAT8E5M2 has no rule$"),
    "scatter": (
        lambda: one("ScatterND", MATRIX, {"i": np.array([[0]]), "u": numbers(1, 6)}, reduction="mean"),
        r"\(ScatterND\): reduction 'mean', expected 'none', 'add', 'mul', 'max' or 'min'$",
    ),
    "a size that depends on data": (
        lambda: one("NonMaxSuppression", {"b": numbers(1, 6, 4), "s": numbers(1, 1, 6)}),
        r"\(NonMaxSuppression\): no rule for operator 'NonMaxSuppression': the size of its output depends on data$",
    ),
    "random": (
        lambda: one("RandomUniformLike", MATRIX),
        r"no rule for operator 'RandomUniformLike': it draws at random in every call$",
    ),
    "pad": (lambda: one("Pad", IMAGE, {"p": ints(*[1] * 8)}, mode="mirror"), r"\(Pad\): mode 'mirror', expected 'constant', 'edge', "),
    "rounding": (
        lambda: one("Resize", IMAGE, {"s": ints(2, 4, 3, 3)}, order=["x", "", "", "s"], nearest_mode="up"),
        r"^node /Resize \(Resize\): nearest_mode 'up', expected 'round_prefer_floor', ",
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
    "align corners of a part": (
        lambda: one(
            "Resize",
            IMAGE,
            {"s": np.array([1, 1, 0.6, 1], np.float32)},
            order=["x", "", "s"],
            mode="linear",
            coordinate_transformation_mode="align_corners",
        ),
        r"^node /Resize \(Resize\): align_corners with a scale of 0\.6\d* for size 9, whose product must be whole: runtimes differ$",
    ),
    "unpool into another size": (
        lambda: one(
            "MaxUnpool",
            {"x": numbers(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])},
            {"s": ints(1, 1, 5, 5)},
            kernel_shape=[2, 2],
            strides=[2, 2],
        ),
        r"\(MaxUnpool\): output_shape \[1, 1, 5, 5\] for maps of \[4, 4\]: runtimes differ in what the indices mean$",
    ),
    "dropout in training": (
        lambda: one("Dropout", MATRIX, {"r": np.float32(0.5), "t": np.array(True)}),
        r"\(Dropout\): training_mode drops at random in every call; export the network in evaluation mode, ",
    ),
    "cubic volumes": (
        lambda: one("GridSample", {"x": numbers(1, 1, 2, 2, 2), "g": numbers(1, 2, 2, 2, 3)}, opset=20, mode="cubic"),
        r"\(GridSample\): 3 spatial axes with mode 'bicubic': torch samples maps of 2 axes, and volumes without cubic$",
    ),
    "kernel": (
        lambda: one("Conv", IMAGE, conv(2, 4, 3, 3), kernel_shape=[3, 1]),
        r"\(Conv\): kernel_shape \[3, 1\], but its weights have \[3, 3\]$",
    ),
    "what torch refuses": (
        lambda: one("Split", IMAGE, {"s": ints(1, 9)}, outputs=2, axis=1),
        r"^node /Split \(Split\): cannot be computed from float32\(2, 4, 9, 8\), int64\(2,\): ",
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


def test_constants_that_do_not_fit_are_named():
    model = graph([helper.make_node("Add", ["a", "b"], ["c"], name="sum"), helper.make_node("Reshape", ["x", "c"], ["y"])],
                  MATRIX, {"a": ints(1, 2), "b": ints(1, 2, 3)})  # fmt: skip
    with pytest.raises(InputError, match=r"^node sum \(Add\): cannot be computed from its constants \("):
        module_of(model)


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


@pytest.mark.parametrize("call", ["Twice", "Once"])
def test_a_function_that_calls_itself_or_that_a_call_does_not_fit_is_refused(tmp_path, call):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    node = helper.make_node("Twice", ["v"], ["r"], domain="local" if call == "Twice" else "")
    body = helper.make_function("local", "Twice", ["v"], ["r"], [node], opsets)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in "xy"]
    inputs = ["x"] if call == "Twice" else ["x", "x"]
    body_graph = helper.make_graph([helper.make_node("Twice", inputs, ["y"], domain="local")], "g", ends[:1], ends[1:])
    model = helper.make_model(body_graph, opset_imports=opsets, functions=[body], ir_version=10)
    with pytest.raises(InputError, match=r"f\.onnx: not a valid ONNX model \("):
        load_onnx(stored(tmp_path / "f.onnx", model))


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
        ({"op": "Rel"}, r"node /Relu \(Rel\): no rule for operator 'Rel'; did you mean 'Relu'\?$"),
        ({"op": "Qqq"}, r"node /Relu \(Qqq\): no rule for operator 'Qqq'; known: Abs, Acos, .*, Xor$"),
        ({"op": "Optional"}, r"node /Relu \(Optional\): no rule for operator 'Optional': it reads or returns a sequence or an "),
        ({"domain": "com.acme"}, r"node /Relu \(Relu\): operator set 'com\.acme', expected only ai\.onnx$"),
        ({"version": 99}, r"operator set 99, expected 6 to \d\d; convert it, or export it again$"),
        ({"version": 5}, r"operator set 5, expected 6 to \d\d; convert it, or export it again$"),
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
