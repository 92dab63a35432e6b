"""``edgefl plan``: its JSON and its table, amounts with units, and wrong input in one line."""

import json
import re
from functools import partial

import pytest
from command import told
from spoilt_weights import SPOILT, spoilt

from edgefl import profile
from edgefl.methods.ranks import rank_candidates, ranked
from edgefl.models.base import Architecture
from edgefl.planning.sub_models import STEPS
from edgefl.registry import methods
from edgefl.util.units import need_have
from edgefl.wire.payload import payload_bytes

every = partial(told, "plan", "cnn-digits", "--input", "1x8x8")
run = partial(every, "--method", "fedhm")
"""The command on a small network: arguments → exit status, standard output, standard error."""


@pytest.fixture
def few_methods(monkeypatch):
    monkeypatch.setattr(type(methods), "names", lambda self: ["fedavg", "fedhm", "heterofl", "prism"])


@pytest.mark.usefixtures("few_methods")
def test_without_a_method_every_method_with_several_sizes_is_tried():
    status, out, err = every("--macs", "10M", "--json")
    assert (status, err) == (0, "")
    plans = {planned["method"]: planned for planned in json.loads(out)}
    assert list(plans) == ["fedhm", "heterofl", "prism"]
    (alone,) = json.loads(run("--macs", "10M", "--json")[1])
    assert plans["fedhm"] == {"method": "fedhm", **alone}
    status, out, _ = every("--macs", "10M")
    assert status == 0
    assert [words[:2] for words in map(str.split, out.splitlines()) if words and words[0] in plans] == [
        [name, "1"] for name in plans
    ]
    assert "These are the methods that make sub-models of several sizes" in out


@pytest.mark.usefixtures("few_methods")
def test_a_method_without_a_size_that_fits_says_why_and_none_at_all_is_status_3():
    (smallest,) = profile("cnn-digits", (1, 8, 8), method="heterofl", tiers=(1 / STEPS,))
    status, out, _ = every("--macs", str(smallest.macs_forward))
    assert status == 0
    assert re.search(r"(?s)heterofl .*Without a size that fits: fedhm \(forward MACs: needs .*\)\.", out)
    status, out, err = every("--macs", "10")
    assert (status, out) == (3, "")
    assert "no size of cnn-digits fits with any method; of the smallest,\n  fedhm: forward MACs: needs" in err


def test_options_of_a_method_need_its_name():
    status, _, err = every("--macs", "800k", "--method-option", "factorize=conv")
    assert status == 2
    assert "--method-option is about one method: name it, such as --method fedhm" in err


def test_json_has_everything_that_rebuilds_the_network():
    status, out, err = run("--macs", "800k", "--upload", "400kB", "--allocate", "spectral", "--json")
    assert (status, err) == (0, "")
    plans = json.loads(out)
    assert [p["allocate"] for p in plans] == ["uniform", "spectral"]
    for planned in plans:
        network = ranked(Architecture("cnn-digits", (1, 8, 8), 10).build(), planned["ranks"])
        assert sum(p.numel() for p in network.parameters()) == planned["params"]
        assert payload_bytes({name: tuple(t.shape) for name, t in network.state_dict().items()}) == planned["upload_bytes"]
        by_name = {row["budget"]: row for row in planned["budgets"]}
        assert by_name["macs_forward"] == {
            "budget": "macs_forward",
            "need": planned["macs_forward"],
            "have": 800_000,
            "share": planned["macs_forward"] / 800_000,
        }
        assert planned["macs_forward"] <= 800_000
        assert planned["upload_bytes"] <= 400_000


def test_the_table_has_both_plans_and_a_rank_for_every_layer():
    status, out, _ = run("--macs", "800k", "--allocate", "spectral")
    assert status == 0
    lines = out.splitlines()
    assert any(line.split()[:1] == ["uniform"] and "of 800 k" in line for line in lines)
    assert any(line.split()[:3] == ["spectral", "per", "layer"] for line in lines)
    layers = rank_candidates(Architecture("cnn-digits", (1, 8, 8), 10).build())
    assert all(any(line.split()[:1] == [layer] for line in lines) for layer in layers)


def test_nothing_that_fits_is_status_3_with_the_smallest_need():
    row = profile("cnn-digits", (1, 8, 8), method="fedhm", tiers=(1 / STEPS,))[0]
    status, out, err = run("--macs", "1k", "--upload", "1MB")
    assert (status, out) == (3, "")
    assert "no size of cnn-digits with fedhm fits; the smallest has the ratio 0.001:" in err
    assert f"  forward MACs: {need_have('macs_forward', row.macs_forward, 1000)} (too little)\n" in err
    assert f"  upload: {need_have('upload_bytes', row.upload_bytes, 1e6)}\n" in err
    assert ", has 1 k (too little)" in err
    assert ", has 1 MB\n" in err
    assert "e+0" not in err
    assert "give larger budgets, a smaller batch or micro-batch, recomputation, or a smaller network" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "budget: give a device or at least one limit, such as --memory 64MB"),
        (("--seconds", "30"), "budget deadline_s: seconds and joules are a device's; give one, such as --device raspberry-pi-4"),
        (("--macs", "1M", "--device", "abacus"), "unknown device 'abacus'"),
        (("--macs", "1M", "--method", "heterofl", "--allocate", "spectral"), "use fedhm"),
        (("--macs", "1M", "--codec", "zip"), "unknown codec 'zip'"),
    ],
)
def test_wrong_input_is_status_2_and_one_line(args, message):
    status, out, err = run(*args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("amount", ["0", "-3", "nan", "inf", "1e999", "64XB", "1.2.3M", "", "²"])
@pytest.mark.parametrize("flag", ["--memory", "--joules"])
def test_amounts_that_are_none_are_refused_with_an_example(flag, amount):
    status, out, err = run(flag, amount)
    assert (status, out) == (2, "")
    expected = {
        "--memory": "a number of bytes above 0, such as 100MB or 64KiB",
        "--joules": "an energy above 0, such as 30 (joules) or 1kJ",
    }
    assert f"Invalid value for '{flag}': {amount!r} is not {expected[flag]}" in err


@pytest.mark.parametrize(
    ("flag", "amount", "why"),
    [
        ("--macs", "100MB", "'100MB' is in bytes, expected a number of MACs above 0, such as 100M or 1.5G"),
        ("--memory", "60", "60 is a number without a unit: give 60MB, or 60B for bytes"),
        ("--memory", "64MACs", "'64MACs' is in MACs, expected a number of bytes"),
        ("--memory", "10min", "'10min' is a time, expected a number of bytes"),
        ("--joules", "50%", "'50%' is a share, expected an energy"),
        ("--seconds", "3kJ", "'3kJ' is in joules, expected a time"),
    ],
)
def test_an_amount_in_another_unit_is_refused_with_the_reason(flag, amount, why):
    status, out, err = run(flag, amount)
    assert (status, out) == (2, "")
    assert f"Invalid value for '{flag}': {why}" in err


@pytest.mark.parametrize("kind", SPOILT)
def test_the_command_says_the_same_of_weights_in_one_line(kind, tmp_path):
    path = tmp_path / "w.safetensors"
    if kind != "missing":
        path.write_bytes(spoilt(kind))
    status, _, err = run("--macs", "1M", "--allocate", "spectral", "--weights", str(path))
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"Error: {path}: ")


def test_the_runtime_decides_the_memory_that_is_planned():
    row = profile("cnn-digits", (1, 8, 8), method="fedhm", tiers=(1 / STEPS,), runtime="onnx")[0]
    need = row.training_memory_bytes
    status, _, err = run("--memory", f"{need - 1}B", "--runtime", "onnx")
    assert status == 3
    assert "  memory: needs " in err
    code, _, err = run("--memory", "64MB", "--runtime", "onnx", "--allocate", "spectral")
    assert code == 2
    assert "allocate: spectral predicts the memory of torch; give runtime torch, or allocate uniform" in err
