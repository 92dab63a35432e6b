"""Runs of a network in an ONNX file."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgefl import RunConfig, simulate
from edgefl.errors import CheckpointError, ConfigError
from edgefl.run.prepare import prepare
from tests.command import edgefl, flags_of
from tests.runs import checkpoint_of, lines_of, stopped_after

SMALL = {"clients": 4, "local_epochs": 1, "data_share": 0.1, "eval_samples": 40, "conditions": "ideal"}
FLAGS = flags_of(SMALL)


def weights(classes: int = 10, seed: int = 0, hidden: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"conv": (8, 1, 3, 3), "body": (hidden, 8), "head": (classes, hidden)}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def written(path: Path, shape=("n", 1, 8, 8), dtype=TensorProto.FLOAT, operator="Relu", reshape=False, inputs=1, **sizes) -> Path:
    """Write a network of a convolution and two linear layers, with known weights."""
    stored = [numpy_helper.from_array(array, name) for name, array in weights(**sizes).items()]
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["real", "conv"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "body"], ["b"], "body", transB=1),
        helper.make_node(operator, ["b"], ["r"], "act"),
        helper.make_node("Gemm", ["r", "head"], ["y"], "head", transB=1),
    ]
    if reshape:  # to numbers of channels that are written down
        nodes[3] = helper.make_node("Reshape", ["p", "eight"], ["f"], "flat")
        nodes[5] = helper.make_node("Reshape", ["b", "sixteen"], ["r"], "same")
        stored += [numpy_helper.from_array(np.array([-1, size]), name) for name, size in (("eight", 8), ("sixteen", 16))]
    ends = [helper.make_tensor_value_info(name, dtype, shape) for name in ("x", "z")[:inputs]]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], sizes.get("classes", 10)])
    graph = helper.make_graph(nodes, "g", ends, [out], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a network's file in the working directory."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "net.onnx")


def test_a_run_begins_with_the_weights_of_the_file(net):
    for model in ("net.onnx", net):
        state = prepare(RunConfig(model=model, method="fedavg", tiers=(1.0,), clients=4)).first_state()
        assert {name.partition(".")[0]: tensor.numpy().tolist() for name, tensor in state.tensors.items()} == {
            name: array.tolist() for name, array in weights().items()
        }
    assert state.architecture.model == "net.onnx"


def test_workers_compute_the_same_bits_and_a_changed_file_is_said_on_resume(net):
    config = RunConfig(model="net.onnx", method="fedavg", tiers=(1.0,), rounds=2, **SMALL)
    first = stopped_after(config, Path("first"), 1)
    second = shutil.copytree(first, "second")
    found = RunConfig.load(first / "config.toml", {})
    assert (found.model, len((found.sources or {})["model"])) == (str(net), 64)
    whole = stopped_after(config, first, 2, resume=True)
    shared = stopped_after(config.model_copy(update={"engine": "pool"}), Path("shared"), 2)
    assert lines_of(shared) == lines_of(whole)
    assert checkpoint_of(shared, 2).name == checkpoint_of(whole, 2).name

    written(net, seed=1)
    said: list[str] = []
    third = shutil.copytree(second, "third")
    stopped_after(config, second, 2, resume=True, notify=said.append)
    assert "the source of net.onnx has changed since this run began" in said[0]
    written(net, hidden=20)
    with pytest.raises(CheckpointError, match="another model.*; restore the source that the run began with"):
        simulate(config, third, resume=True)


@pytest.mark.parametrize("method", ["heterofl", "fedhm", "depthfl"])
def test_methods_make_smaller_tiers_of_it(net, method):
    run = prepare(RunConfig(model="net.onnx", method=method, tiers=(1.0, 0.5), clients=4))
    macs = [run.costs.of(tier).macs_forward for tier in run.tiers]
    assert macs[1] < macs[0]


def test_a_method_that_cannot_cut_it_says_why(net):
    written(net, reshape=True)
    with pytest.raises(ConfigError, match="net.onnx: .*; choose a method that factorizes, such as fedhm"):
        prepare(RunConfig(model="net.onnx", method="heterofl", tiers=(1.0, 0.5), clients=4))


def test_weights_in_a_second_file_are_a_part_of_the_source(net):
    config = RunConfig(model="net.onnx", method="fedavg", tiers=(1.0,), clients=4)

    def source() -> str:
        return (prepare(config).config.sources or {})["model"]

    onnx.save(onnx.load(net), net, save_as_external_data=True, location="net.data", size_threshold=0)
    first, data = source(), net.parent / "net.data"
    content = data.read_bytes()
    data.write_bytes(bytes(4) + content[4:])
    assert source() != first
    data.write_bytes(content[:100])
    refused("net.onnx: not a valid ONNX model")
    data.unlink()
    refused("net.onnx: not a valid ONNX model")


def refused(message: str, *flags: str) -> None:
    done = edgefl("simulate", "--model", "net.onnx", *FLAGS, "--method", "fedavg", "--tiers", "1", *flags, "--out", "never")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert message in done.stderr
    assert not Path("never").exists()


REFUSED = {
    "colour": ({"shape": ("n", 3, 8, 8)}, "input x is 3x8x8 a sample, got 1x8x8"),
    "classes": ({"classes": 7}, "model net.onnx returns 2x7 for two samples 1x8x8 of digits with 10 classes, expected 2x10"),
    "ids": ({"dtype": TensorProto.INT64}, "net.onnx: input x is int64:1x8x8 a sample, got 1x8x8 of digits; choose another model"),
    "inputs": ({"inputs": 2}, "net.onnx: has 2 inputs (x, z), expected one"),
    "operator": ({"operator": "Rleu"}, "node act (Rleu): no rule for operator 'Rleu'; did you mean 'Relu'?"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_does_not_fit_is_one_message_and_nothing_is_written(net, kind):
    changes, message = REFUSED[kind]
    written(net, **changes)
    refused(message)


def test_a_damaged_file_is_refused_and_free_sizes_are_those_of_the_data(net):
    net.write_bytes(net.read_bytes()[:300])
    refused("net.onnx: not a valid ONNX model")
    written(net, shape=("n", 1, "height", "width"))
    done = edgefl(
        "whatif", "--model", "net.onnx", "--method", "fedavg", "--tiers", "1", "--deadlines", "10", "--rounds", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    net.unlink()
    refused("net.onnx: no such file")
