"""Inference by the Python client: outputs of the formula, and graphs and names that mean harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import edgefl_bundle
import numpy as np
import pytest
import safetensors.numpy
from edgefl_client import infer, read_bundle
from handmade import SCALE, Regression, changed, samples
from python_client import called, unsigned
from spoiled_bundles import ENDLESS, GROWING, hostile, put
from torch_free import CLIENT


def test_probabilities_are_those_of_the_formula(bundle):
    x, _ = samples(10)
    first = Regression().first()
    logits = SCALE * x.reshape(10, -1) @ first["fc.weight"].T + first["fc.bias"]
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(infer(read_bundle(bundle), "0.5", x), expected, rtol=1e-5, atol=1e-6)


def test_inference_takes_the_trained_weights(bundle, data, tmp_path, capsys):
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state", "--epochs", 30)[0] == 0
    status, output, _ = called(capsys, "infer", bundle, "0.5", data, "--state", tmp_path / "state")
    lines = output.splitlines()
    assert status == 0
    assert len(lines) == 11
    x, y = samples(10)
    weights = safetensors.numpy.load((tmp_path / "state").read_bytes())
    logits = SCALE * x.reshape(10, -1) @ weights["fc.weight"].T + weights["fc.bias"]
    assert lines[-1] == f"accuracy: {(logits.argmax(1) == y).mean():.4f} of 10 samples"
    assert lines[3].split("\t")[:2] == ["3", ["ant", "bee", "cat"][int(logits[3].argmax())]]


def test_outputs_that_are_no_numbers_are_an_error(bundle):
    x, _ = samples(10)
    with pytest.raises(edgefl_bundle.ClientError, match=r"0\.5/forward\.onnx: the graph computes \S+, expected finite outputs"):
        infer(read_bundle(bundle), "0.5", np.sign(x) * np.float32(3e38))


def test_samples_without_labels_are_classified(bundle, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=samples(2)[0])
    status, output, _ = called(capsys, "infer", bundle, "0.5", tmp_path / "x.npz")
    assert (status, len(output.splitlines())) == (0, 2)


def test_weights_beside_a_graph_are_read(bundle, data, capsys):
    """A model of more than 2 GB has its weights in a second file, in the folder of the graph."""
    from onnx import TensorProto, load_from_string, numpy_helper

    inside = called(capsys, "infer", bundle, "0.5", data)
    model = load_from_string((bundle / "0.5" / "forward.onnx").read_bytes())
    tensor = model.graph.initializer[0]
    values = numpy_helper.to_array(tensor)
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    put(bundle, "forward.onnx", model.SerializeToString())
    put(bundle, "weights.bin", values.tobytes())
    assert called(capsys, "infer", bundle, "0.5", data) == inside
    put(bundle, "weights.bin", np.zeros_like(values).tobytes())
    assert called(capsys, "infer", bundle, "0.5", data) != inside


def alone(*arguments: object, out: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), *map(str, arguments), *unsigned(arguments)]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=120, env=plain)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device /dev/full is of Linux")
def test_an_output_that_cannot_be_written_is_an_error_in_a_line(bundle, data):
    with Path("/dev/full").open("w") as full:
        done = alone("infer", bundle, "0.5", data, out=full)
    assert (done.returncode, done.stderr) == (2, "Error: standard output: No space left on device\n")


def test_a_reader_that_has_gone_is_no_error(bundle, data):
    reader, writer = os.pipe()
    os.close(reader)
    done = alone("infer", bundle, "0.5", data, out=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_graph_that_never_ends_is_stopped(bundle, data, tmp_path):
    put(bundle, "forward.onnx", hostile(ENDLESS, ""))
    done = alone("infer", bundle, "0.5", data, "--timeout", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "a batch took more than 1 s" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is of Linux")
def test_constants_that_grow_beyond_the_memory_are_refused(bundle, data):
    put(bundle, "forward.onnx", hostile(GROWING, "batch,1,2,3"))
    done = alone("infer", bundle, "0.5", data)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_names_of_classes_do_not_control_the_terminal(bundle, data, capsys):
    changed(bundle, class_names=["a\x1b[2J", "b\x9b31m", "c\x07"])
    _, output, _ = called(capsys, "infer", bundle, "0.5", data)
    assert "\ufffd" in output
    assert not {"\x1b", "\x9b", "\x07"} & set(output)
