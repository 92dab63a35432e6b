"""Watts that ``edgefl calibrate --power`` reads: files of sensors and logs of meters that are written here, with watts by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from command import edgefl

from edgefl.contrib.calibrate import calibrate as calibrating
from edgefl.contrib.calibrate import meters, sensors
from edgefl.contrib.calibrate.device import device_values
from edgefl.contrib.calibrate.meters import MeterFigures, MeterSpan, Sensor, meter_of
from edgefl.contrib.calibrate.profile_file import to_toml
from edgefl.errors import InputError
from edgefl.fleet.load import load_device

STEPS = "network,batch,seconds\nmlp,8,0.01\n"
RAILS = """ 3V7_WL_SW_A current(0)=0.50000000A
 VDD_CORE_A current(7)=2.00000000A
 3V7_WL_SW_V volt(8)=3.70000000V
 VDD_CORE_V volt(15)=0.80000000V
 EXT5V_V volt(24)=5.10000000V
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An empty folder instead of /sys; writes files of it."""
    monkeypatch.setattr(sensors, "SYS", tmp_path / "sys")

    def write(**folders):
        for folder, files in folders.items():
            home = tmp_path / "sys/class" / folder.replace("__", "/").replace("_rapl", "-rapl")
            home.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (home / name).write_text(f"{text}\n", encoding="ascii")
        return tmp_path / "sys/class"

    return write


def test_packages_are_added_and_counters_begin_again(system, monkeypatch):
    zone = {"max_energy_range_uj": 1000_000_000}
    root = system(
        **{
            "powercap__intel_rapl:0": {"name": "package-0", "energy_uj": 990_000_000, **zone},
            "powercap__intel_rapl:1": {"name": "package-1", "energy_uj": 5_000_000, **zone},
            "powercap__intel_rapl:0:0": {"name": "core", "energy_uj": 1, **zone},
        }
    )
    now = iter((10.0, 12.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    watts = sensors.SENSORS["rapl"].reader()
    (root / "powercap/intel-rapl:0/energy_uj").write_text("20000000")  # 30 J, across the end of the counter
    (root / "powercap/intel-rapl:1/energy_uj").write_text("9000000")
    assert watts() == pytest.approx((30 + 4) / 2)


def test_a_jetson_is_measured_at_its_input(system):
    cpu = {"in1_label": "VDD_CPU_GPU_CV", "in1_input": 5000, "curr1_input": 900}
    system(hwmon__hwmon0={"name": "cpu"}, hwmon__hwmon2={**cpu, "in2_label": "VDD_IN", "in2_input": 5040, "curr2_input": 1500})
    meter = meter_of("jetson")
    assert (meter.watts(), meter.part) == (pytest.approx(7.56), "")


def test_rails_of_a_raspberry_pi_5_are_added(tmp_path, monkeypatch):
    tool = tmp_path / "vcgencmd"
    tool.write_text(f"#!/bin/sh\ncat <<E\n{RAILS}E\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert meter_of("pi5").watts() == pytest.approx(0.5 * 3.7 + 2 * 0.8)


@pytest.mark.parametrize(
    ("files", "watts"),
    [({"power_now": 12_300_000}, 12.3), ({"current_now": -1_500_000, "voltage_now": 4_000_000}, 6.0)],
    ids=["watts", "amperes"],
)
def test_a_battery_tells_what_it_gives(files, watts, system):
    battery = {"type": "Battery", "status": "Discharging", **files}
    root = system(power_supply__AC={"type": "Mains"}, power_supply__BAT0=battery)
    assert meter_of("battery").watts() == pytest.approx(watts)
    (root / "power_supply/BAT0/status").write_text("Charging")
    with pytest.raises(InputError, match=r"power battery: .*\(it is charging: unplug the charger\)"):
        meter_of("battery")


@pytest.mark.parametrize("name", sensors.SENSORS)
def test_a_sensor_that_is_not_there_names_the_alternative(name, system, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=rf"^power {name}: no .* here \(.+\); give another sensor, or the CSV file of a meter$"):
        meter_of(name)


def test_a_sensor_that_may_not_be_read_says_so(monkeypatch):
    def refused():
        raise PermissionError(13, "Permission denied", "/sys/x")

    monkeypatch.setitem(sensors.SENSORS, "rapl", replace(sensors.SENSORS["rapl"], reader=refused))
    with pytest.raises(InputError, match="power rapl: /sys/x may not be read; let your account read it"):
        meter_of("rapl")


def test_a_sensor_is_read_while_a_machine_is_measured(measured, monkeypatch):
    doing = ["idle"]

    def timed(*_):
        doing[0] = "training"
        begun = time.time()
        while sum(at > begun for at, _ in meter.readings) < 5:
            time.sleep(0.005)
        return measured, MeterSpan("training", begun, time.time())

    meter = Sensor("a made meter", "", lambda: {"idle": 2.0, "training": 7.0}[doing[0]])
    monkeypatch.setattr(meters, "_EVERY_S", 0.01)
    monkeypatch.setattr(calibrating, "_LEAST_IDLE_S", 0.2)
    monkeypatch.setattr(calibrating, "_timed", timed)
    found = calibrating.measure(0.1, meter=meter)
    assert found == replace(measured, watts=MeterFigures(2.0, 7.0, "a made meter", ""))


@pytest.mark.parametrize(
    "lines",
    [
        ["time,watts", *(f"{1000 + at},{2 if at < 5 else 6}" for at in range(10))],
        [
            "time,volts,amperes",
            *(f"1970-01-01T00:{16 if at < 20 else 17}:{(40 + at) % 60:02}Z,5,{0.4 if at < 5 else 1.2}" for at in range(10)),
        ],
        [
            "state,watts,time",
            *(f"{'idle' if at < 5 else 'training'},{2 if at < 5 else 6},x" for at in range(10)),
            "charging,40,x",
        ],
    ],
    ids=["seconds", "dates", "states"],
)
def test_a_log_has_times_or_states(lines, tmp_path):
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8")
    log = meter_of(str(tmp_path / "log.csv"))
    found = MeterFigures.of(log, MeterSpan("idle", 1000, 1004.5), MeterSpan("training", 1004.9, 1020))
    assert (found.idle_w, found.load_w) == (pytest.approx(2), pytest.approx(6))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected the columns watts (or volts and amperes), and time or state; got an empty file"),
        ("time,volts\n1,5\n", "expected the columns"),
        ("time,watts\nyesterday,5\n", "line 2: time: expected seconds since 1970"),
        ("state,watts\nidle,nan\n", "line 2: watts: expected a number of at least 0, got 'nan'"),
        ("state,watts\nidle,-1\n", "line 2: watts: expected"),
        ("state,watts\nidle\n", "line 2: watts: expected"),
        ("state,watts\nidle,1\nidle,1\nidle,1\n", "0 readings while the device is training, expected at least 3"),
        ("time,watts\n1,1\n2,2\n3,3\n", "expected a column state, idle or training"),
        (
            "state,watts\n" + "idle,5\ntraining,4\n" * 3,
            "4 W while it trains, 5 W without work: is it this device's, and was it idle?",
        ),
    ],
)
def test_a_log_that_is_wrong_is_one_message(text, told, tmp_path, called):
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    steps, log, out = (str(tmp_path / name) for name in ("steps.csv", "log.csv", "x.toml"))
    status, _, errors = called("calibrate", "--from", steps, "--power", log, "--out", out)
    assert status == 2
    assert told in errors
    assert not (tmp_path / "x.toml").exists()


def test_steps_of_another_device_need_a_log(tmp_path, called, monkeypatch):
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    monkeypatch.setitem(sensors.SENSORS, "rapl", replace(sensors.SENSORS["rapl"], reader=lambda: lambda: 1.0))
    for power, told in (
        ("rapl", "rapl measures this machine; for steps of another one give the CSV"),
        ("nowhere.csv", "no file nowhere.csv"),
    ):
        status, _, errors = called("calibrate", "--from", str(tmp_path / "steps.csv"), "--power", power)
        assert (status, told in errors) == (2, True)


def test_the_profile_trains_with_the_watts_that_were_measured(tmp_path):
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    (tmp_path / "log.csv").write_text("state,watts\n" + "idle,1.5\ntraining,4.25\n" * 3, encoding="utf-8")
    given = ("--from", str(tmp_path / "steps.csv"), "--power", str(tmp_path / "log.csv"), "--like", "mid-range-phone")
    done = edgefl("calibrate", *given, "--out", str(tmp_path / "mine.toml"))
    assert done.returncode == 0, done.stderr
    device = load_device(str(tmp_path / "mine.toml"))
    assert (device.power.idle_w.value, device.power.load_w.value, device.power.load_w.mark) == (1.5, 4.25, "measured")
    assert (device.power.memory_bound_share, device.power.waiting_share, device.power.factor) == (None, None, 1.5)
    assert device.power.battery_wh.mark == "assumed"


def test_a_meter_that_sees_a_part_of_the_device_has_the_larger_error(measured, tmp_path):
    found = replace(measured, watts=MeterFigures(3.0, 11.0, "counter", "the processor"))
    (tmp_path / "x.toml").write_text(to_toml(device_values(found, "x", "wifi-world", load_device("laptop"))), encoding="utf-8")
    power = load_device(str(tmp_path / "x.toml")).power
    assert (power.idle_w.value, power.load_w.value, power.factor) == (3.0, 11.0, 3.0)
    assert "only the processor, not the whole device" in power.load_w.note
