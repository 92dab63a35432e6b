"""The costs of ONNX files: as those of the module, at any batch, and bad files in one line."""

import json

import numpy as np
import onnx
import pytest
import torch
from command import told
from onnx import TensorProto, helper
from own_modules import COUNTS, NETWORKS, Words, conv

from edgefl import profile
from edgefl.errors import ConfigError
from edgefl.onnxgrad.graphs import free_batch
from edgefl.onnxgrad.to_torch import load_onnx, module_of


def exported(build, examples, path, free):
    """Export a network as its owner would, with weights that differ from layer to layer."""
    network = build().eval()
    shapes = tuple({0: torch.export.Dim("batch")} for _ in examples) if free else None
    torch.onnx.export(network, examples, path, dynamo=True, verbose=False, dynamic_shapes=shapes)
    return path


EXPORTED = {
    "conv": (conv, (torch.zeros(2, 3, 16, 16),), "3x16x16"),
    "two inputs": (Words, (torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 6)), ["ids=int64:9", "x=6"]),
}


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_network_costs_what_the_module_costs(kind, free, tmp_path):
    build, examples, inputs = EXPORTED[kind]
    path = exported(build, examples, tmp_path / "network.onnx", free)
    (own,) = profile(build, inputs, batch_size=8)
    (row,) = profile(path, batch_size=8)
    assert {key: getattr(row, key) for key in COUNTS} == {key: getattr(own, key) for key in COUNTS}
    assert row.training_memory_bytes == pytest.approx(own.training_memory_bytes, rel=0.1)
    assert row.uncounted_ops == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "batch"), [("lstm", 1), ("lstm", 2), ("transformer", 2)])
def test_a_network_exported_for_one_batch_is_the_same_at_another(name, batch, tmp_path):
    """Where the batch is not the first dimension, or is merged with heads or positions, too."""
    build, inputs = NETWORKS[name]
    network = build().eval()
    path = exported(lambda: network, (torch.zeros(batch, 12, dtype=torch.int64),), tmp_path / "network.onnx", free=False)
    ids = torch.from_numpy(np.random.default_rng(1).integers(50, size=(5, 12)))
    module, _ = module_of(free_batch(load_onnx(path)))
    with torch.no_grad():
        assert torch.allclose(module(ids), network(ids), atol=1e-5)
    rows = [profile(path, batch_size=size)[0] for size in (2, 8)]
    assert [row.macs_forward for row in rows] == [profile(build, inputs)[0].macs_forward] * 2


def onnx_model(shape, operator="Relu", opset=20, **attributes):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.linspace(-1, 1, 4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"], name="scale"),
        helper.make_node(operator, ["h"], ["y"], name="last", **attributes),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def test_a_free_dimension_needs_its_size(tmp_path):
    path = tmp_path / "free.onnx"
    onnx.save(onnx_model(["n", "time", 4]), path)
    status, _, error = told("profile", path)
    assert (status, error.count("\n")) == (2, 1)
    assert "input x is timex4 a sample; give its sizes, --input x=Nx4" in error
    assert told("profile", path, "--input", "x=7x5")[2].strip().endswith("input x is timex4 a sample, got 7x5")
    assert told("profile", path, "--input", "y=7x4")[2].strip().endswith("input 'y' is not in the file; it has x")
    status, out, _ = told("profile", path, "--input", "x=7x4", "--format", "json")
    assert (status, json.loads(out)["rows"][0]["params"]) == (0, 4)


def test_a_graph_that_computes_with_its_batch_says_so(tmp_path):
    path = tmp_path / "fixed.onnx"
    model = onnx_model([2, 4], "Reshape")
    model.graph.node[1].input.append("s")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 2, 2]), "s"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2, 2]))
    # Of an addition of numbers for two samples nothing can be made for three.
    model.graph.node.append(helper.make_node("Add", ["y", "b"], ["z"], name="two"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 2, 2), np.float32), "b"))
    model.graph.output[0].name = "z"
    onnx.save(model, path)
    with pytest.raises(ConfigError, match="exported for a batch of 2 and computes with that number; export it with a free batch"):
        profile(path)


def bad_files():
    good = onnx_model(["n", 4]).SerializeToString()
    yield "truncated.onnx", good[: len(good) // 2], "not a valid ONNX model"
    yield "random.onnx", np.random.default_rng(0).bytes(300), "not a valid ONNX model"
    yield "empty.onnx", b"", "names no operator set of ai.onnx"
    yield "future.onnx", onnx_model(["n", 4], opset=999).SerializeToString(), "operator set 999, expected 6 to"
    yield "unknown.onnx", onnx_model(["n", 4], "Rleu").SerializeToString(), "no rule for operator 'Rleu'; did you mean 'Relu'?"
    yield "missing.onnx", None, "no such file"


@pytest.mark.parametrize("name", ["truncated", "random", "empty", "future", "unknown", "missing"])
def test_a_bad_onnx_file_is_one_line(name, tmp_path):
    file, content, message = next(bad for bad in bad_files() if bad[0] == f"{name}.onnx")
    if content is not None:
        (tmp_path / file).write_bytes(content)
    status, out, error = told("profile", tmp_path / file)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"{tmp_path / file}: " in error
    assert message in error
