"""Files of other runtimes in a bundle, and the list of operators: what they compute, what the manifest says, what is refused.

A format of this file stands for one that is installed. ExecuTorch and LiteRT are tried where their extras are installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from command import edgefl as command
from requirements import require
from torch import nn

import edgefl
from edgefl import RunConfig, export_network, simulate
from edgefl.bundle.formats.contract import Converted
from edgefl.errors import BundleError, EdgeflError, InputError
from edgefl.registry import export_format, export_formats
from edgefl.run.export import export

SAMPLES = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), *head)


class Masked(nn.Module):
    """Token ids and a mask, whose names are not in the order of the alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, words, mask):
        return self.head((self.words(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


MASKED = {"words": torch.tensor([[1, 8, 3], [4, 5, 6]]), "mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}


def by_torch(off: float):
    """A runtime that is torch, whose results are ``off`` by that much."""

    def convert(network: nn.Module, sample: tuple[torch.Tensor, ...]) -> Converted:
        def run(inputs):
            os.write(1, b"noise")
            with torch.no_grad():
                return network(*map(torch.from_numpy, inputs)).numpy() + np.float32(off)

        return Converted(b"weights", run, "by-torch 1.0")

    return convert


@pytest.fixture(autouse=True)
def formats(monkeypatch):
    """Formats that are known in this file only."""
    for kind in ("_plugged", "_loaded", "_facts"):
        monkeypatch.setattr(export_formats, kind, dict(getattr(export_formats, kind)))
    facts = {"needs": "torch", "extra": "torch", "suffix": ".mine"}
    export_format("mine", **facts)(by_torch(1e-6))
    export_format("wrong", **facts)(by_torch(1e-3))
    export_format("absent", needs="absent_runtime", extra="absent", suffix=".absent")(by_torch(0))

    @export_format("refuses", **facts)
    def refuses(network, sample):
        raise KeyError("aten.weird")


def test_a_format_is_compared_with_torch_and_in_the_manifest(tmp_path, capfd):
    bundle = export_network(network(), SAMPLES, tmp_path / "b", method="heterofl", tiers=(1, 0.5), also=["mine"], operators=True)
    edgefl.verify(bundle)
    assert "noise" not in capfd.readouterr().out
    manifest = json.loads((bundle / "manifest.json").read_text())
    first, second = manifest["other_formats"]
    difference = first.pop("parity_max_abs_error")
    assert 5e-7 < difference < 2e-6
    expected = {"tier": "1", "format": "mine", "file": "1/forward.mine", "bytes": 7, "inputs": ["x"], "made_with": "by-torch 1.0"}
    assert first == expected
    assert (second["tier"], second["file"]) == ("0.5", "0.5/forward.mine")
    assert manifest["files"]["0.5/forward.mine"]["bytes"] == 7
    lines = (bundle / "required_operators.config").read_text().splitlines()
    operators = {line.rpartition(";")[0]: line.rpartition(";")[2].split(",") for line in lines}
    assert operators["ai.onnx;20"] == sorted(operators["ai.onnx;20"])
    assert {"Conv", "Gemm", "Relu", "ReduceMean"} & {*operators["ai.onnx;20"]} >= {"Conv", "Gemm", "Relu"}
    assert "FusedConv" in operators["com.microsoft;1"]  # what onnxruntime makes of Conv and Relu
    (bundle / "1" / "forward.mine").write_bytes(b"WEIGHTS")
    with pytest.raises(BundleError, match=r"1/forward.mine: changed"):
        edgefl.verify(bundle)


def test_a_finished_run_is_exported_with_formats_and_operators(tmp_path):
    config = RunConfig(method="heterofl", model="mlp", profile="phone", rounds=1, clients=3, local_epochs=1, data_share=0.2)
    simulate(config, tmp_path / "run")
    bundle = export(tmp_path / "run", tmp_path / "bundle", also=["mine"], operators=True, sign=False)
    edgefl.verify(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert [other["tier"] for other in manifest["other_formats"]] == [tier["label"] for tier in manifest["tiers"]]
    assert (bundle / "required_operators.config").is_file()


def test_what_is_refused(tmp_path):
    def fails(error, words, *also):
        with pytest.raises(error, match=words):
            export_network(network(), SAMPLES, tmp_path / "b", also=also, sign=False)
        assert not (tmp_path / "b").exists()

    fails(BundleError, r"tier 1: wrong differs from torch by 1\.00e-03, expected at most 1e-04; leave out --also wrong", "wrong")
    fails(EdgeflError, r"tier 1: refuses does not take the network: 'aten.weird'; leave out --also refuses", "refuses")
    fails(InputError, "--also absent needs absent_runtime, which is not installed; run pip install 'absent'", "mine", "absent")
    order = ["export", "--network", f"{__name__}:network", "--input", "1x6x6", "--out", str(tmp_path / "b"), "--unsigned"]
    for also, words in (("absent", "pip install 'absent'"), ("executorhc", "did you mean 'executorch'")):
        done = command(*order, "--also", also)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


PROGRAM = """
import sys
from edgefl import export_network
from test_other_formats import MASKED, SAMPLES, Masked, network
export_network(network(), SAMPLES, sys.argv[2] + "/one", method="fedhm", tiers=(1, 0.5), also=[sys.argv[1]], sign=False)
export_network(Masked(), MASKED, sys.argv[2] + "/two", also=[sys.argv[1]], sign=False)
"""


@pytest.mark.parametrize("name", ["executorch", "litert"])
def test_a_real_runtime_computes_what_torch_computes(tmp_path, name):
    """In a process of its own, because the converters change settings of torch."""
    require(name)
    order, env = [sys.executable, "-c", PROGRAM, name, str(tmp_path)], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(order, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for folder, tiers, inputs in (("one", ["1", "0.5"], ["x"]), ("two", ["1"], ["x.mask", "x.words"])):
        edgefl.verify(tmp_path / folder)
        others = json.loads((tmp_path / folder / "manifest.json").read_text())["other_formats"]
        assert [other["tier"] for other in others] == tiers
        assert [other["inputs"] for other in others] == [inputs] * len(tiers)
        assert all(other["parity_max_abs_error"] < 1e-5 for other in others)
