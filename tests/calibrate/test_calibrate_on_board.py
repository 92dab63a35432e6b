"""A board measures itself with neither torch nor edgefl."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from edgefl.fleet.load import load_device
from edgefl.util.files import shared

SCRIPT = shared("export") / "python" / "calibrate.py"
GUARDED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    loaded = {"torch", "edgefl", "onnx", "psutil"} & set(sys.modules)
    assert not loaded, loaded
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    from exported import forward_graph
    from torch import nn

    folder = tmp_path_factory.mktemp("bundle")
    graph = forward_graph(nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.Linear(1000, 10)).eval(), (1, 8, 8))
    (folder / "1").mkdir()
    (folder / "1" / "forward.onnx").write_bytes(graph)
    manifest = {
        "format_version": 2,
        "manifest_sha256": "0" * 64,
        "model": "small",
        "input_shape": [1, 8, 8],
        "input_dtype": "float32",
        "tiers": [{"label": "1", "forward": "1/forward.onnx", "costs": {"macs_forward": 74_000, "macs_inference": 74_000}}],
        "files": {"1/forward.onnx": {"sha256": hashlib.sha256(graph).hexdigest(), "bytes": len(graph)}},
    }
    content = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1))
    return folder


def on_board(*arguments: str, cwd):
    command = [sys.executable, "-c", GUARDED, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_a_board_writes_its_profile_without_torch_or_edgefl(bundle, tmp_path):
    done = on_board(str(bundle), "--out", "board.toml", "--link", "wifi-pi4", "--threads", "1", "--seconds", "0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    device = load_device(str(tmp_path / "board.toml"))
    compute = device.compute
    assert compute.training_gmacs_per_s.value == pytest.approx(0.4 * compute.inference_gmacs_per_s.value, rel=1e-3)
    assert compute.training_gmacs_per_s.mark == "assumed"
    assert "training was not measured" in compute.training_gmacs_per_s.source
    assert (compute.inference_gmacs_per_s.mark, device.memory.training_bytes.mark) == ("measured", "measured")
    assert "repeats" in compute.inference_gmacs_per_s.note
    assert {f"power.{key}" for key in ("idle_w", "load_w")} <= set(device.assumed)
    pi = load_device("raspberry-pi-4").power
    assert (device.power.idle_w.value, device.power.load_w.value) == (pi.idle_w.value, pi.load_w.value)
    assert device.power_error == 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "expected a folder that edgefl export wrote"),
        (["BUNDLE", "--out", "."], "is a folder"),
        (["BUNDLE", "--out", "no/x.toml"], "is no folder"),
        (["BUNDLE", "--seconds", "-1"], "expected --seconds in (0, 3600]"),
        (["BUNDLE", "--seconds", "nan"], "expected --seconds in (0, 3600]"),
        (["DAMAGED"], "forward.onnx: changed"),
    ],
)
def test_a_board_says_what_is_wrong_and_writes_nothing(arguments, message, bundle, tmp_path):
    damaged = tmp_path / "damaged"
    (damaged / "1").mkdir(parents=True)
    (damaged / "manifest.json").write_bytes((bundle / "manifest.json").read_bytes())
    (damaged / "1" / "forward.onnx").write_bytes(b"x")
    places = {"BUNDLE": str(bundle), "DAMAGED": str(damaged)}
    done = on_board(*(places.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


@pytest.mark.parametrize(
    "keys",
    [{"costs": {}}, {"costs": {"macs_forward": "x"}}, {"costs": None, "label": "\x1b[2J"}],
    ids=["none", "text", "control characters"],
)
def test_a_board_survives_what_a_manifest_says(keys, bundle, tmp_path):
    (tmp_path / "b" / "1").mkdir(parents=True)
    (tmp_path / "b" / "1" / "forward.onnx").write_bytes((bundle / "1" / "forward.onnx").read_bytes())
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["manifest_sha256"] = "0" * 64
    manifest["tiers"][0].update(keys)
    content = json.dumps(manifest).encode()
    digest = hashlib.sha256(content).hexdigest().encode()
    (tmp_path / "b" / "manifest.json").write_bytes(content.replace(b"0" * 64, digest, 1))
    done = on_board("b", "--seconds", "0.2", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.strip().isprintable()
    assert "cannot be measured" in done.stderr
