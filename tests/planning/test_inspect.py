"""``edgefl inspect``: a row per layer, with its form in each tier and the reason, from names, factories and ONNX files."""

import json
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from command import told
from mobile import MobileNet
from torch import nn

import edgefl
from edgefl.errors import ConfigError
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.planning.inspect import inspect
from edgefl.report.inspect_table import inspect_text

TESTS = str(Path(__file__).parents[1])
INPUT = (1, 8, 8)


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs ``edgefl inspect`` and returns (exit status, output, error)."""
    monkeypatch.syspath_prepend(TESTS)
    return partial(told, "inspect")


def forms(found, number: int) -> dict[str, tuple[str, int | None, str]]:
    return {
        row.layer: (row.tiers[number].form, row.tiers[number].rank, row.tiers[number].why) for row in found.layers if row.channels
    }


def test_fedhm_factorizes_the_1x1_layers_of_a_mobile_network():
    found = edgefl.inspect(MobileNet, INPUT, method="fedhm", tiers=(1, 0.5))
    assert forms(found, 0) == dict.fromkeys(forms(found, 0), ("dense", None, ""))
    assert forms(found, 1) == {
        "stem": ("dense", None, "stem"),
        "block.expand": ("factorized", 4, ""),
        "block.depth": ("dense", None, "depthwise"),
        "block.squeeze": ("factorized", 2, ""),
        "block.excite": ("factorized", 2, ""),
        "block.project": ("factorized", 4, ""),
        "head": ("factorized", 4, ""),
        "fc": ("dense", None, "classifier"),
    }
    assert found.notes == ("1x1 convolutions are factorized because no other layer can be; the option factorize chooses layers",)
    expand = next(row for row in found.layers if row.layer == "block.expand")
    # 8·16 weights at 16 positions; at rank 4, 4·(8 + 16).
    assert (expand.kind, expand.shape, expand.macs_forward, expand.parameter_bytes) == ("1x1", (16, 8, 1, 1), 2048, 512)
    assert (expand.tiers[1].macs_forward, expand.tiers[1].parameter_bytes) == (1536, 384)


def test_totals_are_those_of_profile():
    found = inspect(MobileNet, INPUT, method="fedhm", tiers=(1, 0.5), batch_size=4)
    rows = edgefl.profile(MobileNet, INPUT, method="fedhm", tiers=(1, 0.5), batch_size=4)
    for tier, row in zip(found.tiers, rows, strict=True):
        figures = ("tier", "params", "macs_forward", "macs_train_step", "training_memory_bytes")
        assert [getattr(tier, name) for name in figures] == [getattr(row, name) for name in figures]
        assert sum(tier.layers.values()) == 8


def test_rules_and_layers_whose_factors_would_not_be_smaller():
    options = {"factorize": "1x1,!head"}
    found = forms(inspect(MobileNet, INPUT, method="fedhm", method_options=options, tiers=(0.5,)), 0)
    assert found["head"] == ("dense", None, "not chosen")
    wide = inspect(MobileNet, INPUT, method="fedhm", tiers=(0.75, 0.5))
    head = next(row for row in wide.layers if row.layer == "head")
    assert [at.form for at in head.tiers] == ["dense", "factorized"]  # ⌊0.75·8⌋ = 6 > 8·16/24
    assert head.tiers[0].why == "no gain"
    assert head.tiers[0].reason.endswith("a rank below m·n/(m + n): 5.333 for a weight unrolled to 8 × 16")


def test_widths_name_the_layers_that_are_cut_together():
    found = inspect(MobileNet, INPUT, method="heterofl", tiers=(1, 0.5))
    rows = {row.layer: row for row in found.layers}
    assert rows["block.expand"].tied_with == ("block.depth", "block.excite")
    assert rows["block.expand"].tiers[1].channels == (4, 8)
    assert (rows["fc"].tiers[1].channels, rows["fc"].tiers[1].why) == ((128, 4), "output")
    assert {at.form for row in found.layers for at in row.tiers[1:]} == {"cut"}


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(torch.relu(torch.fft.fft(torch.relu(self.b(torch.relu(self.a(x))))).real))


def test_an_operation_without_a_rule_is_named():
    found = inspect(Mixed, (4,), method="heterofl", tiers=(0.5,))
    at = next(row for row in found.layers if row.layer == "b").tiers[0]
    assert (at.channels, at.why) == ((4, 8), "_fft_r2c")
    groups = CustomArchitecture(model="mixed", factory=Mixed, inputs={"": InputSpec((4,))}).channels.groups()
    assert {group.whole for group in groups} == {"", "input", "output", "_fft_r2c in the network", "view_as_real in the network"}


def test_methods_that_compose_weights_show_their_ranks():
    found = forms(inspect("cnn-digits", (1, 8, 8), method="fedpara"), 0)
    assert found["conv2"][0] == "factorized"
    assert found["conv2"][1]
    assert found["fc"] == ("dense", None, "classifier")


@pytest.mark.parametrize(("method", "form", "why"), [("depthfl", "absent", "depth"), ("last-blocks", "frozen", "early block")])
def test_depth_tiers_show_the_layers_that_they_do_without(method, form, why):
    found = forms(inspect("resnet9", (3, 32, 32), method=method, tiers=(1, 0.25)), 1)
    assert found["conv8.conv" if form == "absent" else "conv1.conv"] == (form, None, why)
    assert found["conv1.conv" if form == "absent" else "conv8.conv"][0] == "dense"


@pytest.mark.parametrize(
    ("method", "layer", "form", "rank"),
    [
        ("orthdrop", "conv2", "factorized", 16),
        ("splitmix", "conv2", "cut", None),
        ("pufferfish", "conv2", "factorized", 16),
        ("factorized-fl", "conv2", "factorized", None),
    ],
)
def test_other_forms_of_networks(method, layer, form, rank):
    found = inspect("cnn-digits", (1, 8, 8), method=method, tiers=(0.25,))
    assert forms(found, 0)[layer][:2] == (form, rank)
    assert sum(row.tiers[0].macs_forward for row in found.layers) == found.tiers[0].macs_forward


def test_the_table_fits_80_columns(run):
    status, out, _ = run("mobile:MobileNet", "--input", "1x8x8", "--method", "fedhm", "--tiers", "1,0.5")
    assert status == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["layer", "kind", "in→out", "MACs", "bytes", "at", "0.5", "why"]
    assert lines[2].split() == ["block.expand", "1x1", "8→16", "2.05", "k", "512", "B", "rank", "4"]
    assert lines[3].split() == ["block.depth", "dw", "3x3", "16→16", "2.30", "k", "576", "B", "dense", "depthwise"]
    text = " ".join(out.split())
    assert "not shown: 4 norm" in text
    assert "tier 0.5: 9.17 k MACs forward" in text
    assert "no other layer can be" in text


def test_long_names_are_shortened_in_the_middle():
    found = inspect(nn.Sequential(nn.ModuleDict({"a" * 90: nn.Linear(4, 2)})["a" * 90]), (4,))
    renamed = type(found.layers[0])(**{**vars(found.layers[0]), "layer": "encoder." + "x" * 90 + ".out"})
    text = inspect_text(type(found)(**{**vars(found), "layers": (renamed,)}))
    assert "…" in text.splitlines()[1]
    assert text.splitlines()[1].startswith("encoder.")


def test_json_has_every_layer_with_its_full_name(run):
    status, out, _ = run("cnn-digits", "--method", "fedhm", "--tiers", "1,0.25", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["layers"][0]["layer"] == "conv1"
    assert found["layers"][0]["tiers"][1]["why"] == "stem"
    assert [tier["tier"] for tier in found["tiers"]] == [1, 0.25]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--method fedhm --method-option factorize=heads", "'heads' is no kind (conv, 1x1, linear, recurrent), and no layer has"),
        ("--method fedhm --method-option factorize=conv", "no layer can be factorized (1 stem, 5 not chosen, 1 depthwise, 1 classifier)"),
        ("--method fedhm --method-option factorise=conv", "fedhm has no such option; did you mean 'factorize'?"),
        ("--method fedhn", "unknown method 'fedhn'"),
        ("--tiers 1,0.5", "a network as it is has one size"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(run, arguments, message):
    status, out, error = run("mobile:MobileNet", "--input", "1x8x8", *arguments.split())
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error


def test_layers_that_are_copied_cause_no_warning_of_torch(run, tmp_path):
    source = "from torch import nn\n\n\ndef net():\n    layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)\n"
    (tmp_path / "copied.py").write_text(
        source + "    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32, 4))\n"
    )
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            status, _, error = run(f"{tmp_path}/copied.py:net", "--input", "4x8", "--method", "fedhm")
    finally:
        torch.set_warn_always(False)
    assert (status, error) == (0, "")
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("method", ["prism", "orthdrop", "flanc"])
def test_methods_without_the_option_factorize_say_what_they_leave_out(method):
    network, shape = ("resnet18", (3, 32, 32)) if method == "prism" else ("cnn-digits", INPUT)
    found = inspect(network, shape, method=method, tiers=(1, 0.5))
    at_half = {row.layer: row.tiers[1] for row in found.layers if row.channels}
    first, *_, last = at_half.values()
    assert (first.why, last.why) == ("stem", "classifier")
    assert first.reason == "the first convolution, which this method does not factorize"
    assert last.reason == "the last layer, which this method does not factorize"
    assert all(row.why == "" for row in at_half.values() if row.form == "factorized")
    kinds = {row.layer: row.kind for row in found.layers}
    others = {kinds[layer]: row.why for layer, row in at_half.items() if row.form == "cut" and row not in (first, last)}
    assert others == ({"1x1": "no rule"} if method == "prism" else {})


@pytest.mark.parametrize("show", [edgefl.inspect, edgefl.profile])
def test_tiers_that_a_run_could_not_have_together_are_refused(show):
    widths = (1, 0.53)
    for width in widths:
        show("cnn-digits", INPUT, method="flanc", tiers=(width,))
    with pytest.raises(ConfigError, match="layer conv2: its 32, 17 input channels .* no common divisor"):
        show("cnn-digits", INPUT, method="flanc", tiers=widths)
