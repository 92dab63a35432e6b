"""Calibration: what is measured becomes a profile, kinds of work become seconds, and a board needs neither torch nor edgefl."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgefl.calibrate.device import Measured, Rates, Spread, compute_of, device_values, to_toml
from edgefl.cli.main import group
from edgefl.errors import ConfigError, InputError, StorageError, UnknownNameError
from edgefl.fleet.figures import Figure
from edgefl.fleet.load import load_device
from edgefl.fleet.profile import Compute
from edgefl.fleet.rates import Step, StepCosts, StepWork, fit, train_s, work_of
from edgefl.records import Cost, LayerCost
from edgefl.util.files import shared
from edgefl.util.machine import Others, this_machine

TRUE_COSTS = (20e-12, 25e-12, 30e-12, 2e-9, 1e-9, 50e-6)
"""Seconds of a convolution's, a dense and a recurrent MAC, a value worked on, a value updated, and a layer's pass."""

WORK = {
    "cnn-digits at batch 8": StepWork(43_000_000, 250_000, 0, 300_000, 130_000, 9),
    "cnn-digits at batch 32": StepWork(172_000_000, 1_000_000, 0, 1_200_000, 130_000, 9),
    "vgg11 at batch 8": StepWork(3_600_000_000, 52_000_000, 0, 6_800_000, 18_460_000, 31),
    "vgg11 at batch 32": StepWork(14_400_000_000, 209_000_000, 0, 27_400_000, 18_460_000, 31),
    "lstm-shakespeare at batch 8": StepWork(0, 1_200_000, 1_525_000_000, 7_000, 1_640_000, 3),
    "lstm-shakespeare at batch 32": StepWork(0, 4_700_000, 6_100_000_000, 28_000, 1_640_000, 3),
}


def figure(value: float) -> Figure:
    return Figure(value=value, mark="measured", source="measured on it, 2026")


def step(work: StepWork, slower: float = 1.0) -> Step:
    update_s = work.update_ops * TRUE_COSTS[4]
    return Step(work, slower * (work.seconds(TRUE_COSTS) - update_s), slower * update_s)


def constant(value: float) -> Spread:
    return Spread(value, value, value / 2, value * 2, 7)


@pytest.fixture
def measured() -> Measured:
    pair = (constant(30e9), constant(40e9))
    return Measured(
        processor='A "fast" board',
        system="Linux x86_64",
        threads=2,
        total_bytes=4_000_000_000,
        free_bytes=3_000_000_000,
        battery=False,
        source="edgefl calibrate on it; 2 threads where not one; torch 2.13.0",
        kernels={"gemm": pair, "convolution 3x3": pair, "convolution 1x1": pair, "values": (constant(0.5e9), constant(0.4e9))},
        copied=constant(9e9),
        steps={name: [step(work, slower) for slower in (1.0, 1.0, 1.5, 3.0)] for name, work in WORK.items()},
        inference={
            "cnn-digits": pair,
            "vgg11": (constant(20e9), constant(35e9)),
            "lstm-shakespeare": (constant(10e9), constant(12e9)),
        },
        busy=0.02,
    )


# Kinds of work and their seconds.


def layer(name: str, kind: str, **counts: int) -> LayerCost:
    names = (
        "params", "parameter_bytes", "macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose", "elementwise_ops",
        "elementwise_ops_backward", "elementwise_ops_step", "saved_bytes_at_peak", "temporary_bytes_at_peak",
    )  # fmt: skip
    return LayerCost(name, kind, **(dict.fromkeys(names, 0) | counts))


def handmade() -> Cost:
    zeros = dict.fromkeys((name for name, f in Cost.__dataclass_fields__.items() if f.type == "int"), 0)
    layers = (
        layer("conv", "LowRankConv2d", macs_forward=100, macs_backward_weight=100, macs_compose=7, elementwise_ops=1),
        layer("rnn", "LSTM", macs_forward=40, macs_backward_input=30, macs_backward_weight=40),
        layer("relu", "ReLU", elementwise_ops=4, elementwise_ops_backward=5),
        layer("fc", "Linear", macs_forward=10, macs_backward_input=10, macs_backward_weight=10),
        layer("idle", "Flatten"),
        layer("(optimizer)", "", elementwise_ops_step=50),
    )
    return Cost(
        **zeros
        | {
            "batch_size": 4, "micro_batch": 4, "macs_forward": 150, "macs_backward_input": 40, "macs_backward_weight": 150,
            "macs_compose": 7, "elementwise_ops": 5, "elementwise_ops_backward": 5, "elementwise_ops_step": 50,
        },
        layers=layers,
    )  # fmt: skip


def step_costs(*values: float) -> StepCosts:
    return StepCosts(**{key: figure(value) for key, value in zip(StepCosts.model_fields, values, strict=True)})


class Known:
    """A profile's rates with costs of parts."""

    training_gmacs_per_s = figure(2.0)
    training_step = step_costs(20, 25, 30, 2000, 1000, 50)


def test_kinds_of_work_follow_the_layers():
    # 6 samples in 2 passes, 3 samples forward only: convolution 6·200 + 2·7 + 3·100, recurrent 6·110 + 3·40, dense 6·30 + 3·10.
    work = work_of(handmade(), 6, 2, 3)
    assert work == StepWork(1514, 210, 780, 6 * 10 + 3 * 5, 2 * 50, 2 * 4)
    assert work.macs == handmade().macs_of(6, 2, 3)


def test_seconds_are_the_sum_over_kinds():
    expected = (1514 * 20 + 210 * 25 + 780 * 30 + 75 * 2000 + 100 * 1000) * 1e-12 + 8 * 50e-6
    assert train_s(Known(), handmade(), 6, 2, 3) == pytest.approx(expected, rel=1e-12)


def test_a_profile_without_costs_of_parts_counts_macs_by_its_rate():
    compute = load_device("raspberry-pi-4").compute
    assert train_s(compute, handmade(), 6, 2, 3) == handmade().macs_of(6, 2, 3) / 3.7e9


def test_a_cost_without_layers_is_dense():
    bare = replace(handmade(), layers=())
    assert work_of(bare, 6, 2) == StepWork(0, bare.macs_of(6, 2), 0, 60, 100, 0)


def test_a_network_drawn_each_step_does_a_share_of_every_kind():
    drawn = replace(handmade(), macs_drawn=170)  # half of 340 a sample
    assert work_of(drawn, 6, 2) == StepWork(6 * 100 + 14, 90, 330, 60, 100, 8)


def test_macs_of_every_reference_kind_add_up():
    from edgefl.calibrate.bench import step_cost
    from edgefl.planning.network import architecture_of

    for name, kinds in (
        ("cnn-digits", (True, True, False)),
        ("lstm-shakespeare", (False, True, True)),
        ("mlp", (False, True, False)),
    ):
        cost = step_cost(architecture_of(name), 4)
        work = work_of(cost, 4, 1)
        assert work.macs == cost.macs_train_step
        assert (work.convolution_macs > 0, work.dense_macs > 0, work.recurrent_macs > 0) == kinds


def test_the_fit_finds_the_costs_that_made_the_steps():
    assert fit([step(work) for work in WORK.values()], 1 / TRUE_COSTS[1], 1 / TRUE_COSTS[3]) == pytest.approx(
        TRUE_COSTS, rel=1e-3
    )


def test_no_part_costs_less_than_nothing_however_noisy_the_steps():
    noisy = [step(work, slower) for work, slower in zip(WORK.values(), (4.0, 0.3, 1.0, 0.5, 2.0, 0.7), strict=True)]
    found = fit(noisy, 1 / TRUE_COSTS[1], 1 / TRUE_COSTS[3])
    assert min(found) >= 0
    assert min(found[0], found[2]) >= TRUE_COSTS[1] / 4 * (1 - 1e-9)


# From measurements to a profile.


def test_a_quarter_of_the_repeats_decides():
    spread = Spread.of_seconds([4.0, 1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0])
    assert (spread.value, spread.median, spread.low, spread.high, spread.repeats) == (3.0, 5.0, 1.0, 9.0, 8)
    rate = spread.rate(36)
    assert (rate.value, rate.low, rate.high) == (12.0, 4.0, 36.0)


def test_the_training_rate_is_that_of_measured_steps(measured):
    rates = {name: work.macs / work.seconds(TRUE_COSTS) / 1e9 for name, work in WORK.items()}
    larger = sorted(rate for name, rate in rates.items() if name.endswith("32"))
    given = compute_of(measured)["training_gmacs_per_s"]
    assert given["value"] == pytest.approx(larger[1], rel=1e-3)
    assert all(name in given["note"] for name in WORK)


def test_the_profile_predicts_the_steps_that_it_comes_from(measured):
    costs = Rates.of(measured).training_step.seconds
    for work in WORK.values():
        assert work.seconds(costs) == pytest.approx(work.seconds(TRUE_COSTS), rel=0.01)


def test_the_file_is_a_profile_with_marks_sources_and_spreads(measured, tmp_path):
    values = device_values(measured, "board", "wifi-pi4", load_device("flagship-phone"))
    (tmp_path / "board.toml").write_text(to_toml(values), encoding="utf-8")
    device = load_device(str(tmp_path / "board.toml"))
    assert (device.name, device.reference_hardware, device.link.name) == ("board", 'A "fast" board, Linux x86_64', "wifi-pi4")
    assert (device.training_bytes, device.memory.total_bytes.value) == (3e9, 4e9)
    assert device.compute.inference_gmacs_per_s.value == 35
    assert device.compute.inference_single_thread_gmacs_per_s.value == 20
    for key, one in device.figures().items():
        if key.startswith(("power.", "thermal.")):
            assert one.mark == "assumed"
            assert "not measured by calibration: the figure of the flagship-phone profile" in one.source
        elif not key.startswith("link."):
            assert one.mark == "measured"
            assert one.source.startswith("edgefl calibrate on it")
    assert "40 (median 40, 20 to 80, 7 repeats)" in device.compute.inference_gmacs_per_s.note
    assert "onnxruntime, batch of 1" in device.compute.inference_gmacs_per_s.note
    assert device.thermal is not None
    assert device.power.battery_wh is None
    assert ("training_step" in values["compute"]) == ("training_step" in Compute.model_fields)


def test_a_battery_is_assumed_where_there_is_one(measured):
    values = device_values(replace(measured, battery=True), "x", "wifi-pi4", load_device("laptop"))
    assert values["power"]["battery_wh"]["mark"] == "assumed"


# Measuring.


def test_tasks_take_turns_and_the_first_turn_does_not_count():
    from edgefl.calibrate.bench import interleaved

    turns: list[str] = []

    def task(name):
        def run():
            turns.append(name)
            return (float(len(turns)),)

        return run

    found = interleaved({"a": task("a"), "b": task("b")}, seconds=0.0, least=3)
    assert turns == ["a", "b"] * 4
    assert found == {"a": [(3.0,), (5.0,), (7.0,)], "b": [(4.0,), (6.0,), (8.0,)]}


def test_this_machine_is_measured_for_real(monkeypatch):
    from edgefl.calibrate import calibrate as calibrating

    monkeypatch.setattr(calibrating, "NETWORKS", ("cnn-digits",))
    found = calibrating.measure(seconds=0.5, threads=1)
    assert set(found.steps) == {"cnn-digits at batch 8", "cnn-digits at batch 32"}
    assert all(len(repeats) >= 5 for repeats in found.steps.values())
    assert all(one.pass_s > 0 and one.update_s > 0 for repeats in found.steps.values() for one in repeats)
    assert 0 < found.free_bytes <= found.total_bytes
    assert 0 <= found.busy <= 1
    text = to_toml(device_values(found, "x", "wifi-world", load_device("laptop")))
    assert platform.node() not in text or len(platform.node()) < 4
    rate = compute_of(found)["training_gmacs_per_s"]["value"]
    assert 0.01 < rate < 10_000


def test_a_prediction_is_compared_with_a_measured_step(monkeypatch):
    from edgefl.calibrate import validate as validating
    from edgefl.registry import models

    monkeypatch.setattr(models, "names", lambda: ["mlp"])
    result = validating.validate(Known(), threads=1, seconds=0.1)
    (row,) = result.rows
    assert (row.model, row.batch_size, row.calibrated_on) == ("mlp", 16, False)
    assert row.predicted_by_rate_s == pytest.approx(row.macs / 2e9)
    assert row.low_s <= row.measured_s <= row.high_s
    assert result.to_json()["median_error"] == abs(row.predicted_s / row.measured_s - 1)


def test_a_network_too_slow_for_its_batch_is_measured_at_a_smaller_one(monkeypatch):
    from edgefl.calibrate import validate as validating
    from edgefl.registry import models

    class Slow:
        training_gmacs_per_s = figure(2e-3)
        training_step = None

    monkeypatch.setattr(models, "names", lambda: ["mlp"])
    assert validating.validate(Slow(), threads=1, seconds=0.1).rows[0].batch_size == 4


def test_own_work_is_not_that_of_others():
    others = Others()
    assert 0 <= others.share() <= 1
    machine = this_machine()
    assert machine.processor
    assert machine.threads >= 1


# The command line.


def run(*arguments: str):
    return CliRunner().invoke(group, list(arguments))


@pytest.fixture
def quick(monkeypatch, measured):
    """Calibration without its half minute."""
    from edgefl.calibrate import calibrate as calibrating

    monkeypatch.setattr(calibrating, "measure", lambda seconds, threads, notify: measured)


def test_calibrate_writes_a_profile_that_other_commands_take(quick, tmp_path):
    out = tmp_path / "my-board.toml"
    done = run("calibrate", "--out", str(out), "--link", "wifi-pi5", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["profile"]["name"] == "my-board"
    assert load_device(str(out)).link.name == "wifi-pi5"
    shown = run("devices", str(out))
    assert "real training steps" in shown.output or "forward, backward and update" in shown.output
    assert run("profile", "mlp", "--device", str(out)).exit_code == 0


def test_a_link_of_ones_own_is_written_into_the_profile(quick, tmp_path):
    text = (shared("profiles") / "links" / "wifi-pi4.toml").read_text(encoding="utf-8").replace("wifi-pi4", "my-wire")
    (tmp_path / "wire.toml").write_text(text, encoding="utf-8")
    done = run("calibrate", "--out", str(tmp_path / "o" / "x.toml"), "--link", str(tmp_path / "wire.toml"))
    assert done.exit_code == 0, done.output
    assert load_device(str(tmp_path / "o" / "x.toml")).link.name == "my-wire"


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "x"])
def test_seconds_are_above_0(seconds, tmp_path):
    done = run("calibrate", "--out", str(tmp_path / "x.toml"), "--seconds", seconds)
    assert done.exit_code == 2
    assert "--seconds" in done.output
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    from edgefl.calibrate import calibrate as calibrating

    def never(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(calibrating, "measure", never)
    out = tmp_path / "x.toml"
    with pytest.raises(UnknownNameError, match="unknown link 'wifi-pi9'; did you mean 'wifi-pi"):
        calibrating.calibrate(out, link="wifi-pi9")
    with pytest.raises(UnknownNameError, match="unknown device 'lap'"):
        calibrating.calibrate(out, like="lap")
    with pytest.raises(ConfigError, match="name: got 'my board', expected letters"):
        calibrating.calibrate(out, name="my board")
    with pytest.raises(StorageError, match="it is a folder"):
        calibrating.calibrate(tmp_path, name="x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        calibrating.calibrate(tmp_path / "file" / "x.toml")
    assert run("calibrate", "--out", str(tmp_path)).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interruption_leaves_nothing(monkeypatch, tmp_path):
    from edgefl.calibrate import calibrate as calibrating

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrating.calibrate(tmp_path / "x.toml")
    assert not list(tmp_path.iterdir())


def test_validation_says_its_median_and_the_bar(monkeypatch, tmp_path):
    from edgefl.calibrate import validate as validating

    rows = tuple(
        validating.StepComparison(name, 16, 1000, predicted, 3.0, 1.0, 0.9, 1.5, 7, own)
        for name, predicted, own in (("cnn-digits", 1.1, True), ("mlp", 1.4, False), ("vgg16", 0.7, False))
    )
    monkeypatch.setattr(validating, "validate", lambda *_, **__: validating.Validation(rows, 0.25))
    done = run("devices", "--validate", "laptop")
    assert done.exit_code == 0
    assert "median error 30.0%, at most 25% wanted: not met" in done.stdout
    assert "35.0%; by one rate 200.0%" in done.stdout
    assert "other programs took 25%" in done.stdout
    assert "cnn-digits (calibrated on)" in done.stdout
    printed = json.loads(run("devices", "--validate", "laptop", "--json").stdout)
    assert printed["met"] is False
    assert [row["model"] for row in printed["models"]] == ["cnn-digits", "mlp", "vgg16"]


def test_wrong_uses_of_validation():
    assert run("devices", "laptop", "--validate", "host").exit_code == 2
    assert run("devices", "--threads", "2").exit_code == 2
    with pytest.raises(InputError, match="unknown device 'hots'"):
        CliRunner().invoke(group, ["devices", "--validate", "hots"], catch_exceptions=False)


@pytest.mark.parametrize(
    "module", ["edgefl.cli.calibrate", "edgefl.cli.devices", "edgefl.calibrate.device", "edgefl.util.machine"]
)
def test_importing_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# On a board.

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
    from torch import nn

    from edgefl.bundle.forms import forward_graph

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
    assert {f"power.{key}" for key in ("idle_w", "load_w", "energy_pj_per_mac")} <= set(device.assumed)
    pi = load_device("raspberry-pi-4").power
    assert (device.power.idle_w.value, device.power.load_w.value, device.power.energy_pj_per_mac.value) == (
        pi.idle_w.value, pi.load_w.value, pi.energy_pj_per_mac.value,
    )  # fmt: skip


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
