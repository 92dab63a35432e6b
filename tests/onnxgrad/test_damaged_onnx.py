"""An ONNX file with changed bytes is refused in one line, or still a network; nothing else comes out."""

import numpy as np
import pytest
import torch
from graph_case import IMAGE, MATRIX, STEPS, conv, graph, ints, numbers, one, recurrent
from onnx import helper

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.to_torch import load_onnx, module_of
from edgefl.onnxgrad.torch_layers import network_in

MODELS = {
    "network": lambda: graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["h"], name="conv", strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("Gemm", ["f", "v"], ["y"], name="head"),
        ],
        IMAGE,
        {**conv(3, 4, 3, 3, bias=3), "v": numbers(60, 5)},
    ),
    "resize": lambda: one("Resize", IMAGE, {"s": ints(2, 4, 13, 5)}, order=["x", "", "", "s"])[0],
    "lstm": lambda: one("LSTM", STEPS, recurrent(4, 1), outputs=3, hidden_size=4)[0],
    "pool": lambda: one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER")[0],
    "attention": lambda: one("Attention", {n: numbers(2, 3, 8) for n in "qkv"}, opset=23, q_num_heads=2, kv_num_heads=2)[0],
    "older set": lambda: one("Gemm", MATRIX, {"w": numbers(6, 5)}, alpha=0.5, opset=11)[0],
}


def fault_of(path):
    """Run the network of a file on zeros; return the message of its refusal, or an empty string."""
    try:
        module, signature = network_in(path)
        shapes = [([2 if isinstance(size, str) else size for size in dims], dtype) for dims, dtype in signature.values()]
        if sum(int(np.prod(shape)) for shape, _ in shapes) > 1e6:
            return "too large for a test"
        with torch.no_grad():
            module(*(torch.zeros(shape, dtype=dtype) for shape, dtype in shapes))
    except EdgeflError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", MODELS)
def test_changed_bytes_are_refused_or_harmless(name, tmp_path):
    whole, path = MODELS[name]().SerializeToString(), tmp_path / "network.onnx"
    draw = np.random.default_rng(sorted(MODELS).index(name))
    path.write_bytes(whole)
    assert not fault_of(path)
    faults = []
    for _ in range(40):
        damaged = bytearray(whole)
        for place in draw.integers(min(len(damaged), 900), size=draw.choice([1, 1, 3])):
            damaged[place] ^= 1 << draw.integers(8)
        path.write_bytes(damaged)
        faults.append(fault_of(path))
    assert 0 < faults.count("") < 40
    assert not any("\n" in fault for fault in faults)


@pytest.mark.parametrize(("place", "message"), [("name", "name is not text: b'"), ("op_type", "op_type is not text: b'")])
def test_a_name_that_is_not_text_is_refused(place, message, tmp_path):
    model = one("Relu", MATRIX)[0]
    setattr(model.graph.node[0], place, "Zzzzz")
    path = tmp_path / "network.onnx"
    path.write_bytes(model.SerializeToString().replace(b"Zzzzz", b"\xcfelu!"))
    with pytest.raises(EdgeflError, match=rf"network\.onnx: not a valid ONNX model \({message}"):
        load_onnx(path)


def test_an_attribute_that_is_not_text_is_refused():
    model = MODELS["pool"]()
    next(a for a in model.graph.node[0].attribute if a.name == "auto_pad").s = b"SAME_\xcfPPER"
    with pytest.raises(EdgeflError, match=r"\(MaxPool\): auto_pad 'SAME_\ufffdPPER', expected"):
        module_of(model)


def test_an_initializer_with_more_values_than_its_shape_is_refused(tmp_path):
    model = MODELS["lstm"]()
    next(tensor for tensor in model.graph.initializer if tensor.name == "b").dims[1] = 16
    path = tmp_path / "network.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EdgeflError, match=r"network\.onnx: not a valid ONNX model \("):
        network_in(path)
