"""Bundles that the Python client refuses, each in one message, and those that it takes."""

from __future__ import annotations

import json
import subprocess

import edgefl_bundle
import numpy as np
import pytest
import safetensors.numpy
from edgefl_client import read_bundle, train
from handmade import Regression, samples, seal, without_defaults
from python_client import called
from spoiled_bundles import SPOILED, edit_tier, put
from torch_free import client


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_a_wrong_bundle_is_refused_in_one_message(spoil, message, bundle, data, tmp_path, capsys):
    spoil(bundle)
    status, output, errors = called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state")
    assert (status, output) == (2, "")
    assert errors.startswith("Error: ")
    assert message in errors
    assert not (tmp_path / "state").exists()


def test_weights_beside_a_graph_must_be_files_of_the_bundle(bundle, data, capsys):
    """The text of protobuf: an entry of external_data is {key: "location", value: the file's name}."""
    from onnx import TensorProto, load_from_string

    for name in ("../../secret.bin", "secret.bin"):
        model = load_from_string(Regression().predict(weights=False))
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        put(bundle, "forward.onnx", model.SerializeToString())
        status, _, errors = called(capsys, "infer", bundle, "0.5", data)
        assert status == 2
        assert f"'0.5/{name}' is no file of the bundle" in errors


def test_a_bundle_for_inference_only_trains_nothing(bundle, data, tmp_path, capsys):
    edit_tier(bundle, train=None)
    status, _, errors = called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "state")
    assert (status, "exported for inference only" in errors) == (2, True)
    assert called(capsys, "infer", bundle, "0.5", data)[0] == 0


def test_keys_with_a_default_may_be_missing(bundle, data, tmp_path, capsys):
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "whole")[0] == 0
    inferred = called(capsys, "infer", bundle, "0.5", data)
    without_defaults(bundle)
    assert called(capsys, "infer", bundle, "0.5", data) == inferred
    assert called(capsys, "train", bundle, "0.5", data, "--out", tmp_path / "brief")[0] == 0
    whole, brief = (safetensors.numpy.load_file(tmp_path / name) for name in ("whole", "brief"))
    assert whole.keys() == brief.keys()
    assert all((brief[name] == value).all() for name, value in whole.items())
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["round"]
    seal(bundle, manifest)
    assert read_bundle(bundle).manifest["round"] == 0


def test_numbers_of_options_are_checked(bundle, data, capsys):
    for flag, value in (
        ("--epochs", "0"),
        ("--lr", "nan"),
        ("--lr", "-1"),
        ("--max-seconds", "inf"),
        ("--threads", "x"),
        ("--client", "a b"),
    ):
        assert called(capsys, "train", bundle, "0.5", data, "--out", "x", flag, value)[0] == 2


def test_all_of_it_runs_where_neither_torch_nor_edgefl_is(python, bundle, data, tmp_path):
    for name in ("torch", "edgefl"):
        missing = subprocess.run([str(python), "-I", "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in missing.stderr
    state, sent = tmp_path / "state", tmp_path / "up.safetensors"
    trained = client(python, "train", bundle, "0.5", data, "--out", state, "--memory-bytes", 10**8, "--allow-unsigned")
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.startswith("6 steps in ")
    classified = client(python, "infer", bundle, "0.5", data, "--state", state, "--allow-unsigned")
    assert "accuracy: " in classified.stdout
    assert client(python, "update", state, "--out", sent).returncode == 0
    here = train(read_bundle(bundle), "0.5", *samples(10))
    for name, tensor in safetensors.numpy.load(sent.read_bytes()).items():
        np.testing.assert_allclose(tensor, here.tensors[name], rtol=1e-5, atol=1e-6)
    assert edgefl_bundle.FORMAT_VERSION == 2
