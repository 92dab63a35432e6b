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

from edgefl.calibrate.device import Inference, Measured, Rates, Spread, Step, compute_of, device_values
from edgefl.calibrate.profile_file import to_toml
from edgefl.cli.main import group
from edgefl.errors import ConfigError, InputError, StorageError, UnknownNameError
from edgefl.fleet.figures import Figure
from edgefl.fleet.load import load_device
from edgefl.fleet.profile import Compute
from edgefl.fleet.time_model import Limits, StepCosts, fit, train_s
from edgefl.records import Cost
from edgefl.records.work import KINDS, StepWork, Work
from edgefl.util.files import shared
from edgefl.util.machine import Others, this_machine

TRUE = {
    "convolution_macs": 20e-12, "convolution_backward_macs": 22e-12, "pointwise_macs": 25e-12, "pointwise_backward_macs": 27e-12,
    "grouped_macs": 300e-12, "grouped_backward_macs": 350e-12, "product_macs": 25e-12, "recurrent_macs": 30e-12,
    "grouped_bytes": 90e-12, "product_bytes": 80e-12, "normalization_bytes": 400e-12, "elementwise_bytes": 300e-12,
    "update_bytes": 200e-12, "input_bytes": 1 / 9e9, "kernels": 4e-9, "operations": 5e-6, "packed_weights": 1e-9, "convolutions": 70e-6,
}  # fmt: skip
TRUE_COSTS = tuple(TRUE[kind] for kind in KINDS)
"""Seconds of one count of each kind."""
LIMITS = Limits(160e9, 180e9)


def work(forward: Work, backward: Work, update: Work) -> StepWork:
    """Of a network whose samples go forward and backward; an operation of a pass runs once whatever its samples are."""
    once = Work(operations=12, kernels=1000)
    return StepWork(sample=forward + backward, per_pass=once, forward=forward, per_forward=once, update=update)


def mostly(kind: str, count: int) -> StepWork:
    """Of a network that does mostly one kind of work."""
    split = kind in ("convolution_macs", "pointwise_macs", "grouped_macs")
    backward = {kind.replace("_macs", "_backward_macs") if split else kind: 2 * count}
    if kind == "grouped_bytes":  # in forward passes only
        backward = {"grouped_backward_macs": count}
    forward = {"input_bytes": 400, "elementwise_bytes": 9000} | {kind: count}
    return work(Work(**forward), Work(**backward), Work(update_bytes=20_000, operations=3))


_ALONE = ("update_bytes", "kernels", "operations", "packed_weights", "convolutions")
FORWARD_KINDS = [kind for kind in KINDS if "backward" not in kind and kind not in _ALONE]
WORK = {
    "cnn-digits at batch 8": work(
        Work(convolution_macs=5_000_000), Work(convolution_backward_macs=10_000_000), Work(update_bytes=130_000)
    ),
    "vgg11 at batch 32": work(
        Work(convolution_macs=40_000_000), Work(convolution_backward_macs=80_000_000), Work(update_bytes=18_000_000)
    ),
    "lstm-shakespeare at batch 8": work(
        Work(recurrent_macs=60_000_000), Work(recurrent_macs=120_000_000), Work(update_bytes=1_640_000)
    ),
    **{kind: mostly(kind, 3_000_000 + 1_000_000 * at) for at, kind in enumerate(FORWARD_KINDS)},
    "tiny": StepWork(
        sample=Work(input_bytes=4), per_pass=Work(operations=400), per_forward=Work(operations=200), update=Work(operations=90)
    ),
    "many weights": StepWork(
        per_pass=Work(packed_weights=7_000_000, convolutions=3),
        per_forward=Work(packed_weights=4_000_000),
        update=Work(update_bytes=10_000),
    ),
    "many convolutions": StepWork(
        per_pass=Work(convolutions=30, operations=40),
        per_forward=Work(convolutions=10, operations=15),
        update=Work(update_bytes=10_000),
    ),
    "many kernels": StepWork(
        per_pass=Work(kernels=900_000), per_forward=Work(kernels=900_000), update=Work(update_bytes=2 * 10**7)
    ),
}
INFERRED = {
    "cnn-digits": Work(convolution_macs=5_000_000, operations=9),
    "vgg11": Work(convolution_macs=40_000_000, operations=30),
    "lstm-shakespeare": Work(recurrent_macs=60_000_000, operations=4),
}
"""At 10, 20 and 30 GMAC/s on one thread, at 12, 24 and 36 on all."""
REFERENCES = tuple(name for name in WORK if " at " in name)


def figure(value: float) -> Figure:
    return Figure(value=value, mark="measured", source="measured on it, 2026")


def step(work: StepWork, slower: float = 1.0) -> Step:
    counts = work.of(8, 1, 0), work.update, work.of(0, 0, 0, 8, 1)
    return Step(work, 8, *(slower * one.seconds(TRUE_COSTS) for one in counts))


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
        product=pair,
        copied=constant(9e9),
        steps={name: [step(work, slower) for slower in (1.0, 1.0, 1.5, 3.0)] for name, work in WORK.items()},
        inference={
            name: Inference(one, constant(one.macs / 10e9 / at), constant(one.macs / 12e9 / at))
            for at, (name, one) in enumerate(INFERRED.items(), 1)
        },
        references=REFERENCES,
        busy=0.02,
    )


# Kinds of work and their seconds.


def handmade() -> Cost:
    """340 MACs a sample forward and backward, of which 150 forward; 7 in a pass."""
    zeros = dict.fromkeys((name for name, f in Cost.__dataclass_fields__.items() if f.type in (int, "int")), 0)
    counts = {
        "batch_size": 4, "micro_batch": 4, "macs_forward": 150, "macs_backward_input": 40, "macs_backward_weight": 150, "macs_compose": 7,
    }  # fmt: skip
    forward = Work(convolution_macs=100, recurrent_macs=40, product_macs=10, elementwise_bytes=20)
    backward = Work(convolution_backward_macs=100, recurrent_macs=70, product_macs=20, elementwise_bytes=20)
    compose = Work(product_macs=7, operations=9)
    once = StepWork(forward + backward, compose, forward, Work(operations=3), Work(update_bytes=400, operations=2))
    return Cost(**zeros | counts, work=once)


def step_costs(values: dict[str, float]) -> StepCosts:
    return StepCosts(**{key: figure(values.get(key, 0.0)) for key in StepCosts.model_fields} | {"error": figure(1.2)})


class Known:
    """A profile's rates with costs of kinds."""

    training_gmacs_per_s = figure(2.0)
    training_step = step_costs(
        {
            "convolution_ps_per_mac": 20,
            "convolution_backward_ps_per_mac": 22,
            "product_ps_per_mac": 25,
            "recurrent_ps_per_mac": 30,
            "elementwise_ps_per_byte": 2000,
            "update_ps_per_byte": 1000,
            "operation_us": 5,
        }
    )


def test_work_grows_with_samples_passes_and_updates():
    # 6 samples in 2 passes, so 2 updates; 3 samples forward only, in 1 pass: convolution 6·100 + 3·100 forward and 6·100 backward,
    # recurrent 6·110 + 3·40, products 6·30 + 2·7 + 3·10, operations 2·9 + 3 + 2·2.
    counts = handmade().work_of(6, 2, 2, 3)
    assert counts == Work(
        convolution_macs=900, convolution_backward_macs=600, recurrent_macs=780, product_macs=224, elementwise_bytes=6 * 40 + 3 * 20,
        update_bytes=800, operations=25,
    )  # fmt: skip
    assert counts.macs == handmade().macs_of(6, 2, 3)


def test_seconds_are_the_sum_over_kinds():
    expected = (900 * 20 + 600 * 22 + 224 * 25 + 780 * 30 + 300 * 2000 + 800 * 1000) * 1e-12 + 25 * 5e-6
    assert train_s(Known(), handmade(), 6, 2, 2, 3) == pytest.approx(expected, rel=1e-12)


def test_a_profile_without_costs_of_kinds_counts_macs_by_its_rate():
    class OneRate:
        training_gmacs_per_s = figure(3.7)
        training_step = None

    assert train_s(OneRate(), handmade(), 6, 2, 2, 3) == handmade().macs_of(6, 2, 3) / 3.7e9


def test_a_cost_without_kinds_counts_as_products():
    bare = replace(handmade(), work=StepWork())
    assert bare.work_of(6, 2, 2) == Work(product_macs=bare.macs_of(6, 2))


def test_a_network_drawn_each_step_does_a_share_of_every_kind():
    drawn = replace(handmade(), macs_drawn=170)  # half of 340 a sample
    assert drawn.work_of(6, 2, 2) == Work(
        convolution_macs=300, convolution_backward_macs=300, recurrent_macs=330, product_macs=90 + 14, elementwise_bytes=120,
        update_bytes=800, operations=22,
    )  # fmt: skip


def test_macs_of_every_reference_kind_add_up():
    from edgefl.calibrate.bench import Trained
    from edgefl.planning.network import architecture_of

    for name, kinds in (
        ("cnn-digits", (True, True, False)),
        ("lstm-shakespeare", (False, True, True)),
        ("mlp", (False, True, False)),
    ):
        cost = Trained(architecture_of(name), 4).cost
        work = cost.work_of(4, 1, 1)
        assert work.macs == cost.macs_train_step
        assert (work.convolution_macs > 0, work.product_macs > 0, work.recurrent_macs > 0) == kinds


def test_the_probes_do_every_kind_of_work():
    from edgefl.calibrate.bench import Trained
    from edgefl.calibrate.probes import probes

    found = [Trained(probe, probe.batch_size).cost for probe in probes()]
    assert all(cost.uncounted_ops == () for cost in found)
    total = sum((cost.work_of(8, 1, 1) for cost in found), Work())
    assert dict(zip(KINDS, map(bool, total.counts), strict=True)) == dict.fromkeys(KINDS, True)


def test_the_fit_finds_the_costs_that_made_the_steps():
    measured = [part for work in WORK.values() for part in step(work).parts]
    assert fit(measured, LIMITS) == pytest.approx(TRUE_COSTS, rel=1e-3)


def test_no_kind_costs_less_than_the_hardware_allows_however_noisy_the_steps():
    slower = (4.0, 0.3, 1.0, 0.5, 2.0, 0.7)
    noisy = [part for at, work in enumerate(WORK.values()) for part in step(work, slower[at % 6]).parts]
    for kind, cost in zip(KINDS, fit(noisy, LIMITS), strict=True):
        assert cost >= LIMITS.least(kind) * (1 - 1e-9)


# From measurements to a profile.


def test_a_quarter_of_the_repeats_decides():
    spread = Spread.of_seconds([4.0, 1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0])
    assert (spread.value, spread.median, spread.low, spread.high, spread.repeats) == (3.0, 5.0, 1.0, 9.0, 8)
    rate = spread.rate(36)
    assert (rate.value, rate.low, rate.high) == (12.0, 4.0, 36.0)


def test_the_training_rate_is_that_of_measured_steps(measured):
    wholes = [WORK[name].of(8, 1, 1) for name in REFERENCES]
    given = compute_of(measured)["training_gmacs_per_s"]
    assert given["value"] == pytest.approx(sorted(one.macs / one.seconds(TRUE_COSTS) / 1e9 for one in wholes)[1], rel=1e-3)
    assert all(name in given["note"] for name in REFERENCES)


def test_the_profile_predicts_the_steps_that_it_comes_from(measured):
    costs = Rates.of(measured).training_step
    for work in WORK.values():
        whole = work.of(8, 1, 1)
        assert whole.seconds(costs.seconds) == pytest.approx(whole.seconds(TRUE_COSTS), rel=0.01)
    assert costs.error.value == pytest.approx(1.0, abs=0.01)


def test_the_file_is_a_profile_with_marks_sources_and_spreads(measured, tmp_path):
    values = device_values(measured, "board", "wifi-pi4", load_device("flagship-phone"))
    (tmp_path / "board.toml").write_text(to_toml(values), encoding="utf-8")
    device = load_device(str(tmp_path / "board.toml"))
    assert (device.name, device.reference_hardware, device.link.name) == ("board", 'A "fast" board, Linux x86_64', "wifi-pi4")
    assert (device.training_bytes, device.memory.total_bytes.value) == (3e9, 4e9)
    assert device.compute.inference_gmacs_per_s.value == 24
    assert device.compute.inference_single_thread_gmacs_per_s.value == 20
    assert device.clock_error == device.compute.training_step.error.value
    for key, one in device.figures().items():
        if key.startswith(("power.", "thermal.")):
            assert one.mark == "assumed"
            assert "not measured by calibration: the figure of the flagship-phone profile" in one.source
        elif not key.startswith("link."):
            assert one.mark == "measured"
            assert one.source.startswith("edgefl calibrate on it")
    assert "vgg11 24 (median 24, 12 to 48, 7 repeats)" in device.compute.inference_gmacs_per_s.note
    assert "onnxruntime, batch of 1" in device.compute.inference_gmacs_per_s.note
    assert device.thermal is not None
    assert device.power.battery_wh is None
    assert values["compute"].keys() == Compute.model_fields.keys()


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

    some = calibrating.probes()[::3]
    monkeypatch.setattr(calibrating, "NETWORKS", ("cnn-digits",))
    monkeypatch.setattr(calibrating, "probes", lambda: some)
    found = calibrating.measure(seconds=0.5, threads=1)
    assert found.references == ("cnn-digits at batch 8", "cnn-digits at batch 32")
    assert set(found.references) < set(found.steps)
    assert all(len(repeats) >= 5 for repeats in found.steps.values())
    assert all(min(one.pass_s, one.update_s, one.forward_s) > 0 for repeats in found.steps.values() for one in repeats)
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
    monkeypatch.setattr(validating, "_TIERED", ())
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
    monkeypatch.setattr(validating, "_TIERED", ())
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
        validating.StepComparison(name, "", 16, 1000, predicted, 3.0, 1.0, 0.9, 1.5, 7, own)
        for name, predicted, own in (("cnn-digits", 1.1, True), ("mlp", 1.4, False), ("vgg16", 0.7, False))
    )
    monkeypatch.setattr(validating, "validate", lambda *_, **__: validating.Validation(rows, 0.25))
    done = run("devices", "--validate", "laptop")
    assert done.exit_code == 0
    assert "median error 30.0%, at most 12% wanted: not met; 90th percentile 38.0%" in done.stdout
    assert "35.0%; by one rate 200.0%" in done.stdout
    assert "other programs took 25%" in done.stdout
    assert "cnn-digits (calibrated on)" in done.stdout
    printed = json.loads(run("devices", "--validate", "laptop", "--json").stdout)
    assert printed["met"] is False
    assert [row["model"] for row in printed["models"]] == ["cnn-digits", "mlp", "vgg16"]


def test_tiers_of_one_network_are_compared_in_their_order():
    from edgefl.calibrate.validate import StepComparison, Validation

    def row(tier, predicted, measured, model="mlp"):
        return StepComparison(model, tier, 16, 1000, predicted, 3.0, measured, 0.9, 1.5, 7, False)

    rows = row("fedhm 1", 4.0, 4.0), row("fedhm 0.5", 2.0, 5.0), row("fedhm 0.25", 1.7, 6.0), row("heterofl 0.5", 1.0, 9.0)
    found = Validation((*rows, row("", 0.5, 8.0), row("fedhm 1", 9.0, 1.0, "vgg16")), 0.0)
    # 2.0 against 1.7 is closer than 1.25; other methods, networks and whole networks are not compared.
    assert [(fast.tier, slow.tier) for fast, slow in found.pairs] == [("fedhm 0.25", "fedhm 1"), ("fedhm 0.5", "fedhm 1")]
    assert found.inversions == ["mlp: fedhm 0.25 is not faster than fedhm 1", "mlp: fedhm 0.5 is not faster than fedhm 1"]
    assert found.to_json()["met"] is False


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
