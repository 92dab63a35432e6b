"""The tools: edgefl's counts against closed forms and its own second counter, predicted memory, the README's markers, the benchmark."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

import edgefl


@pytest.fixture
def tool():
    return tool_of("compare_counters")


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
    assert "|  | closed form | edgefl | edgefl, ONNX | failing | half |" in text
    assert "| linear | 4 k | = | = | *error* | 2 k (−50 %) |" in text
    assert "| linear | 12 k | = | = |" in text
    assert "; not installed: edgefl_no_such_package. = is" in text
    assert "- half: 1 of 1 figures differ. It counts half." in text
    assert "It is not there" not in text
    assert text.endswith("vit: no timm")


def test_a_figure_of_edgefl_that_is_off_is_marked_and_fails_the_tool(tool, monkeypatch):
    layer = tool.LAYERS[3]
    wrong = tool.Layer(layer.name, layer.build, layer.shape, macs=layer.macs + 1)
    row = tool.layer_row(wrong, peers=())
    assert not row.agrees
    assert "| linear, 256 tokens | 1,049 k | 1,049 k (< 0.1 %) | 1,049 k (< 0.1 %) |" in tool.counters_markdown([row], peers=())
    monkeypatch.setattr(tool, "LAYERS", (wrong,))
    monkeypatch.setattr(tool, "NETWORKS", ())
    monkeypatch.setattr(sys, "argv", ["compare_counters.py"])
    with pytest.raises(SystemExit) as stopped:
        tool.main()
    assert stopped.value.code == 1


@pytest.mark.parametrize("name", ["counters", "memory"])
def test_a_table_is_written_between_its_markers_and_held_to_them(tmp_path, monkeypatch, name):
    tool = tool_of(f"compare_{name}")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\nafter\n")
    if name == "memory":
        monkeypatch.setattr(tool, "memory_markdown", lambda: "| new |")
    else:
        monkeypatch.setattr(tool, "counted", lambda: ("| new |", True))

    def run(*options):
        monkeypatch.setattr(sys, "argv", [f"compare_{name}.py", "--page", str(readme), *options])
        try:
            tool.main()
        except SystemExit as stopped:
            return stopped.code or ""
        return ""

    assert "the table is not what was counted now" in run("--check")
    assert run("--write") == ""
    assert readme.read_text() == f"before\n<!-- {name}:begin -->\n| new |\n<!-- {name}:end -->\nafter\n"
    assert run("--check") == ""
    readme.write_text("no markers")
    assert f"expected <!-- {name}:begin --> and <!-- {name}:end --> once each" in run("--write")


def test_memory_is_predicted_measured_and_stored(tmp_path):
    tool, rows = tool_of("compare_memory"), tool_of("memory.rows")
    (network,) = (network for network in tool.NETWORKS if network.name == "mlp")
    row = tool.measured(network)
    for predicted, measured in (row.training, row.inference):
        assert predicted == pytest.approx(measured, rel=0.01)
    rows.write([row], tmp_path / "memory.jsonl")
    assert rows.read(tmp_path / "memory.jsonl") == {"mlp": row}
    assert f"| mlp | 32 | {row.training[0] / 1e6:.2f} |" in rows.markdown([row])


@pytest.mark.parametrize("kind", ["attention", "encoder"])
def test_a_profile_of_attention_is_that_of_the_module_as_given(kind):
    """Methods train attention as linear layers of its own, with a few per cent less memory."""
    build = {"attention": Attends, "encoder": Encodes}[kind]
    (row,) = edgefl.profile(build, (17, 96), batch_size=16)
    network = tool_of("memory.network").Network(kind, build, (17, 96), 16)
    assert row.training_memory_bytes == pytest.approx(tool_of("memory.measure").trained_bytes(network), rel=0.01)


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(96, 3, batch_first=True)
        self.head = torch.nn.Linear(96, 10)

    def forward(self, x):
        return self.head((x + self.attention(x, x, x, need_weights=False)[0])[:, 0])


class Encodes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(96, 3, 192, 0.1, activation="gelu", batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(96, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def test_stored_networks_are_those_of_the_list_and_a_third_is_held_out():
    networks, stored = tool_of("memory.networks").NETWORKS, tool_of("memory.rows").read()
    assert list(stored) == [network.name for network in networks if network.name in stored]
    assert len({network.name for network in networks}) == len(networks)
    assert len(stored) >= 60
    assert 0.25 < sum(row.held_out for row in stored.values()) / len(stored) < 0.4


def test_resnet50_has_the_size_and_the_cost_of_the_published_one():
    networks = tool_of("counters.networks")
    network = networks.resnet50()
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032
    forward, both = networks.ClosedForm().walk(network, torch.zeros(1, 3, 224, 224))
    # He et al., CVPR 2016, Table 1, gives 3.8 G with the stride in the first 1×1 convolutions; in the 3×3 ones it is 4.1 G.
    assert forward == 4_089_184_256
    assert both == 3 * forward - 64 * 3 * 49 * 112 * 112  # the images need no gradient


def test_a_target_is_met_or_missed():
    bench = tool_of("bench")
    found = {bench.BASELINE: [bench.Run(2, 1, 10**8)], "profile-large": [bench.Run(4, 3, 10**9)]}
    assert "| 4.00 | 3.00 | 3.00 | 2.00 | 1,000 | < 1,000 MB: **missed** |" in bench.markdown(found)


def test_the_benchmark_runs_its_cheapest_case(tmp_path):
    """Figures are not judged: tests are not timed."""
    runs = tmp_path / "runs.json"
    command = [sys.executable, str(TOOLS / "bench.py"), "--case", "help", "--runs", "1", "--json", str(runs)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert re.fullmatch(r"\d+ cores, .*, Python 3\.\S+, torch \S+; median of 1\.", lines[0])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert rows[0] == ["case", "seconds", "CPU s", "least", "× import torch", "peak MB", "target"]
    assert [row[0] for row in rows[2:]] == ['`python -c "import torch"`', "`edgefl --help`"]
    assert all(float(figure) > 0 for row in rows[2:] for figure in row[1:5])
    assert set(json.loads(runs.read_text())) == {"commit", "machine", "runs"}


def test_targets_of_what_a_tool_measures_itself():
    bench, cases = tool_of("bench"), tool_of("speed.cases")
    case = cases.Case("steps", cases.train_steps, figure_target=1.2)
    assert case.verdict(1, 1, {"mlp": 0.8, "cnn": 1.2}) == "≤ 1.2: met, at most 1.20 (cnn)"
    assert case.verdict(1, 1, {"mlp": 1.3, "cnn": 1.2}) == "≤ 1.2: **met by 1 of 2**, at most 1.30 (mlp)"
    found = {
        bench.BASELINE: [bench.Run(2, 1, 10**8)],
        "inference": [bench.Run(4, 3, 10**8, {"tier 1": figure}) for figure in (0.3, 0.04, 0.05)],
    }
    found[bench.BASELINE] *= 3
    assert bench.markdown(found).endswith("| ≤ 0.1: met, at most 0.05 (tier 1) |")


def test_the_benchmark_reads_the_figures_of_tools(monkeypatch):
    cases, process_of = tool_of("speed.cases"), tool_of("speed.process")
    steps = {"rows": [{"network": "mlp", "times": [{"threads": 1, "ratio": 0.9}, {"threads": 2, "ratio": 1.1}]}]}
    shares = [
        {"tier": 0.5, "form": form, "mac_share": macs, "time_share": time}
        for form, macs, time in (("factored", 0.4, 0.45), ("composed", 1, 1.0), ("auto", 1, 0.7))
    ]

    def process(*command):
        Path(command[-1]).write_text(json.dumps(steps if "onnx_steps.py" in command else shares))
        return process_of.Run(4, 3, 10**8)

    monkeypatch.setattr(process_of, "process", process)
    assert cases.train_steps().figures == {"mlp, 1 threads": 0.9, "mlp, 2 threads": 1.1}
    assert cases.inference().figures == {"tier 0.5": pytest.approx(0.3)}


def test_steps_of_torch_and_onnxruntime_are_the_same_work(tmp_path, monkeypatch, capsys):
    """Figures are not judged: tests are not timed. Both sides see the same batch, and their losses fall alike."""
    tool = tool_of("onnx_steps")
    monkeypatch.setattr(tool, "QUICK", (tool.Subject("mlp"),))
    monkeypatch.setattr(sys, "argv", ["onnx_steps.py", "--quick", "--seconds", "0.01", "--json", str(tmp_path / "rows.json")])
    tool.main()
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [t["threads"] for t in row["times"]] == [1]
    assert row["times"][0]["ratio"] > 0
    facts = row["facts"]
    assert facts["parameter_bytes"] == 4 * 203_530
    assert facts["graph_bytes"] < 300_000
    assert " | 5 | 1,521 |" in capsys.readouterr().out
    pair = tool.Pair(tool.Subject("mlp"))
    losses = pair.losses(3, lr=0.05)
    assert losses["onnx"] == pytest.approx(losses["torch"], rel=1e-5)
    assert losses["torch"][2] < 0.99 * losses["torch"][0]


def test_what_misses_its_target_is_bold():
    tables = tool_of("step_tables")
    facts = tables.Facts(graph_bytes=400_000, parameter_bytes=60_000)
    row = tables.Row("net", facts, (tables.Timed(1, 0.001, 0.0013, 1.3), tables.Timed(2, 0.001, 0.0011, 1.1)))
    text = tables.steps_markdown([row], 32, 21.0)
    assert "| net | 1.0 | 1.3 | **1.30** | 1.0 | 1.1 | 1.10 | **400** | 390 |" in text
    assert text.endswith("**21.0 s**.")
    forms = [
        {"tier": 0.5, "form": form, "mac_share": 0.4, "time_share": time, "file_bytes": 10**6, "composed": 1, "layers": 3}
        for form, time in (("factored", 0.8), ("composed", 1.0), ("auto", 0.6))
    ]
    forms.insert(
        0, {"tier": 1.0, "form": "dense", "mac_share": 1.0, "time_share": 1.0, "file_bytes": 10**6, "composed": 0, "layers": 0}
    )
    assert "| net 0.5 | 0.40 | 0.80 | 1.00 | **0.60** | 1 of 3 | 1.00 | 1.00 | 1.00 |" in tables.forms_markdown({"net": forms})


@pytest.mark.parametrize(
    "name",
    [
        *("compare_counters", "counters.markdown", "memory.rows", "bench", "step_tables", "growth", "onnx_memory", "scale"),
        *(f"speed.{name}" for name in ("loops", "peers", "plot", "ratios", "rows", "simulated", "tables", "work")),
    ],
)
def test_examples(name):
    found = doctest.testmod(tool_of(name))
    assert (found.failed, found.attempted > 0) == (0, True)


@pytest.mark.parametrize("name", ["compare_counters", "compare_memory", "bench"])
def test_help(name):
    done = subprocess.run([sys.executable, str(TOOLS / f"{name}.py"), "--help"], capture_output=True, text=True, check=True)
    assert "--check | --write" in done.stdout
