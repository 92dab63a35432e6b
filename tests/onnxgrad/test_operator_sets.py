"""Graphs of older operator sets: converted by onnx, they compute what they computed."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from graph_case import IMAGE, MATRIX, conv, graph, numbers
from onnx import TensorProto, helper, numpy_helper

from edgefl.errors import InputError
from edgefl.onnxgrad.rules import CURRENT_OPSET, converted
from edgefl.onnxgrad.to_torch import load_onnx, module_of

LRN = helper.make_node("LRN", ["x"], ["y"], size=3, alpha=0.5)
WIDE = np.float32([1, 1, 2, 2])
OLDER = {
    "softmax over all that follows": (helper.make_node("Softmax", ["x"], ["y"], axis=1), {}, 11),
    "axes as attributes": (helper.make_node("Squeeze", ["x"], ["y"], axes=[0]), {}, 11),
    "reduced axes as attributes": (helper.make_node("ReduceSum", ["x"], ["y"], axes=[2], keepdims=0), {}, 12),
    "bounds as attributes": (helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=0.5), {}, 9),
    "pads as attributes": (helper.make_node("Pad", ["x"], ["y"], pads=[0, 0, 1, 0, 0, 0, 0, 2], value=1.5), {}, 10),
    "slices as attributes": (helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[1]), {}, 9),
    "upsample": (helper.make_node("Upsample", ["x", "s"], ["y"], mode="nearest"), {"s": WIDE}, 9),
    "dropout with an unread mask": (helper.make_node("Dropout", ["x"], ["y", "mask"], ratio=0.4), {}, 7),
    "lrn": (LRN, {}, 7),
}


def older(node, inputs, weights, opset):
    """Make a model; onnx knows no shape of its output in some of these sets."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    body = helper.make_graph([node], "g", ends, [result], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def expected_of(case, x):
    images = torch.nn.functional
    return {
        "softmax over all that follows": lambda: x.flatten(1).softmax(1).reshape(x.shape),
        "axes as attributes": lambda: x.squeeze(0),
        "reduced axes as attributes": lambda: x.sum(2),
        "bounds as attributes": lambda: x.clamp(-0.5, 0.5),
        "pads as attributes": lambda: images.pad(x, (0, 2, 1, 0), value=1.5),
        "slices as attributes": lambda: x[:, 1:3],
        "upsample": lambda: images.interpolate(x, scale_factor=2),
        "dropout with an unread mask": lambda: x,
        "lrn": lambda: images.local_response_norm(x, 3, 0.5),
    }[case]()


@pytest.mark.parametrize("case", OLDER)
def test_an_older_set_computes_the_same(case):
    node, weights, opset = OLDER[case]
    x = numbers(1, 4, 5, 6)
    module, _ = module_of(older(node, {"x": x}, weights, opset))
    assert torch.allclose(module(torch.from_numpy(x)), expected_of(case, torch.from_numpy(x)), atol=1e-6)


def test_an_even_lrn_reads_one_more_channel_after_than_before():
    x = numbers(2, 4, 3, 3)
    node = helper.make_node("LRN", ["x"], ["y"], size=2, alpha=0.5, bias=2.0)
    module, _ = module_of(older(node, {"x": x}, {}, 13))
    squares = x**2 + np.pad(x**2, ((0, 0), (0, 1), (0, 0), (0, 0)))[:, 1:]
    assert np.allclose(module(torch.from_numpy(x)).numpy(), x / (2 + 0.25 * squares) ** 0.75, atol=1e-6)


def test_slopes_of_set_6_belong_to_channels():
    x, slopes = numbers(2, 3, 4, 5), np.float32([0.1, 0.2, 0.3])
    module, _ = module_of(older(helper.make_node("PRelu", ["x", "s"], ["y"]), {"x": x}, {"s": slopes}, 6))
    expected = torch.nn.functional.prelu(torch.from_numpy(x), torch.from_numpy(slopes))
    assert torch.equal(module(torch.from_numpy(x)), expected)


def test_names_and_weights_stay_and_newer_sets_are_left_alone():
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="/first/conv")
    model = older(node, IMAGE, conv(6, 4, 3, 3, bias=6), 9)
    module, _ = module_of(model)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {"first_conv.W": (6, 4, 3, 3), "first_conv.B": (6,)}
    assert model.opset_import[0].version == 9
    new = graph([helper.make_node("Relu", ["x"], ["y"])], MATRIX, opset=CURRENT_OPSET)
    assert converted(new) is new


def test_a_set_that_onnx_cannot_convert_says_so():
    model = older(helper.make_node("Nonsense", ["x"], ["y"]), MATRIX, {}, 11)
    with pytest.raises(InputError, match=r"^operator set 11 cannot be converted to 13 \(.*\); export the network again$"):
        module_of(model)


def test_a_model_of_2017_comes_back_from_its_file():
    folder = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted/test_Conv2d_groups"
    module, _ = module_of(load_onnx(folder / "model.onnx"))
    x, y = (numpy_helper.to_array(onnx.load_tensor(folder / f"test_data_set_0/{name}_0.pb")) for name in ("input", "output"))
    with torch.no_grad():
        assert torch.allclose(module(torch.tensor(x)), torch.tensor(y), atol=1e-5)
    assert list(module.parameters())
