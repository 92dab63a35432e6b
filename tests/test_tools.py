"""The tables of the README: edgefl's counts against closed forms and its own second counter, and the markers that hold them."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).parent.parent / "tools" / "compare_counters.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compare_counters", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


# Worked out by hand, in thousands, composition apart: what the closed forms of the tool come to.
THOUSANDS = {
    "convolution 3×3": (9437, 0),
    "depthwise 3×3": (147, 0),
    "transposed 3×3, stride 2": (9437, 0),
    "linear, 256 tokens": (1049, 0),
    "self-attention, 4 heads": (12583, 0),
    "LSTM, 16 steps": (524, 0),
    "FedPara, R = 16": (9437, 1475),
    "FLANC, 32 kernels": (6816, 0),
}


def test_the_closed_forms_are_those_worked_out_by_hand(tool):
    assert {layer.name: (round(layer.macs / 1e3), round(layer.compose_macs / 1e3)) for layer in tool.LAYERS} == THOUSANDS


@pytest.mark.parametrize("name", THOUSANDS)
def test_both_counters_agree_with_the_closed_form_of_a_layer(tool, name):
    layer = next(layer for layer in tool.LAYERS if layer.name == name)
    row = tool.layer_row(layer, peers=())
    assert (row.edgefl_forward, row.edgefl_both, row.edgefl_graph) == (layer.forward, 3 * layer.forward, layer.forward)
    assert row.agrees


@pytest.mark.parametrize("name", ["cnn-fashion, 1×28×28", "LSTM of characters, 80 steps"])
def test_both_counters_agree_with_the_walk_over_a_network(tool, name):
    row = tool.network_row(next(network for network in tool.NETWORKS if network.name == name), peers=())
    assert row.agrees, row
    assert 2 * row.forward < row.both < 3 * row.forward + 1


def test_a_peer_that_is_not_there_or_fails_is_a_word_in_the_table(tool):
    def fails(module, x):
        raise RuntimeError("odd network")

    peers = (
        tool.Peer("absent", "edgefl_no_such_package", fails, "is not there."),
        tool.Peer("failing", "torch", fails, "fails."),
        tool.Peer("half", "torch", lambda module, x: 4096 / 2, "counts half."),
    )
    x = torch.zeros(1, 64)
    layer = tool.Layer("linear", lambda: torch.nn.Linear(64, 64, bias=False), (1, 64), macs=4096)
    found = {peer.name: peer.measure(layer.build(), x) for peer in peers}
    assert found == {"absent": "not installed", "failing": "error", "half": 2048}
    row = tool.Row("linear", "k", 4096, 12288, 4096, 12288, 4096, found, 12288)
    text = tool.counters_markdown([row], ["vit: no timm"], peers)
    assert "| linear | 4 k | 4 k | 4 k | *not installed* | *error* | **2 k** (−50 %) |" in text
    assert "- half: 1 of 1 figures differ; it counts half." in text
    assert "it is not there" not in text
    assert text.endswith("vit: no timm")


def test_a_figure_of_edgefl_that_is_off_is_marked_and_fails_the_tool(tool, monkeypatch):
    layer = tool.LAYERS[3]
    wrong = tool.Layer(layer.name, layer.build, layer.shape, macs=layer.macs + 1)
    row = tool.layer_row(wrong, peers=())
    assert not row.agrees
    assert "**1,049 k** (< 0.1 %)" in tool.counters_markdown([row], peers=())
    monkeypatch.setattr(tool, "LAYERS", (wrong,))
    monkeypatch.setattr(tool, "NETWORKS", ())
    monkeypatch.setattr(sys, "argv", [str(TOOL)])
    with pytest.raises(SystemExit) as stopped:
        tool.main()
    assert stopped.value.code == 1


def test_the_table_is_written_between_its_markers_and_held_to_them(tool, tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- memory:begin -->\nold\n<!-- memory:end -->\nafter\n")
    monkeypatch.setattr(tool, "memory_markdown", lambda: "| new |")

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(TOOL), "--memory", "--readme", str(readme), *options])
        with pytest.raises(SystemExit) as stopped:
            tool.main()
        return stopped.value.code

    assert "the table is not what was counted now" in run("--check")
    assert run("--write") == 0
    assert readme.read_text() == "before\n<!-- memory:begin -->\n| new |\n<!-- memory:end -->\nafter\n"
    assert run("--check") == 0
    readme.write_text("no markers")
    assert "expected <!-- memory:begin --> and <!-- memory:end --> once each" in run("--write")


def test_memory_is_predicted_to_the_tier(tool):
    tiers = tool.memory_of("mlp", "fedhm")
    assert len(tiers) == 3
    for tier in tiers:
        assert tier.inference[0] == pytest.approx(tier.inference[1], rel=0.01)
        assert tier.training[0] == pytest.approx(tier.training[1], rel=0.01)


def test_examples_and_help(tool):
    assert doctest.testmod(tool).failed == 0
    done = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"--check .*\n\s+--write|--check \| --write", done.stdout)
