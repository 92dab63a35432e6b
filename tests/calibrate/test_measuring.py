"""Measurements of this machine, and the profile that they become: rates, marks, sources and spreads."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest
from made_measurements import REFERENCES, TRUE_COSTS, WORK

from edgefl.contrib.calibrate.device import MachineRates, MachineSpread, compute_of, device_values
from edgefl.contrib.calibrate.profile_file import to_toml
from edgefl.fleet.load import load_device
from edgefl.fleet.profile import Compute
from edgefl.util.machine import Others, this_machine


def test_a_quarter_of_the_repeats_decides():
    spread = MachineSpread.of_seconds([4.0, 1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0])
    assert (spread.value, spread.median, spread.low, spread.high, spread.repeats) == (3.0, 5.0, 1.0, 9.0, 8)
    rate = spread.rate(36)
    assert (rate.value, rate.low, rate.high) == (12.0, 4.0, 36.0)


def test_the_training_rate_is_that_of_measured_steps(measured):
    wholes = [WORK[name].of(8, 1, 1) for name in REFERENCES]
    given = compute_of(measured)["training_gmacs_per_s"]
    assert given["value"] == pytest.approx(sorted(one.macs / one.seconds(TRUE_COSTS) / 1e9 for one in wholes)[1], rel=1e-3)
    assert all(name in given["note"] for name in REFERENCES)


def test_the_profile_predicts_the_steps_that_it_comes_from(measured):
    costs = MachineRates.of(measured).training_step
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


def test_tasks_take_turns_and_the_first_turn_does_not_count():
    from edgefl.contrib.calibrate.bench import interleaved

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
    from edgefl.contrib.calibrate import calibrate as calibrating

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


def test_own_work_is_not_that_of_others():
    others = Others()
    assert 0 <= others.share() <= 1
    machine = this_machine()
    assert machine.processor
    assert machine.threads >= 1
