"""Sensors of a machine that tell watts: files of Linux, and the tool of a Raspberry Pi 5."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")
_OF_PI_5 = "vcgencmd", "pmic_read_adc"
Watts = Callable[[], float]


@dataclass(frozen=True)
class SensorKind:
    """A kind of sensor.

    Attributes:
        title: what it is, for messages and sources.
        part: the only part of the device that it sees; "": it sees all of it.
        reader: returns what reads it; raises OSError or ValueError, as a reading does, if this machine has none.
    """

    title: str
    part: str
    reader: Callable[[], Watts]


def _number(path: Path) -> float:
    return float(_text(path))


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _rapl() -> Watts:
    """Return the watts of all packages since the last reading, from counters of microjoules that begin again at 0."""
    zones = sorted((SYS / "class/powercap").glob("intel-rapl:*"))
    counted = [zone for zone in zones if _text(zone / "name").startswith("package")]
    if not counted:
        raise FileNotFoundError(f"no package in {SYS / 'class/powercap'}")
    ranges = [_number(zone / "max_energy_range_uj") for zone in counted]

    def joules() -> list[float]:
        return [_number(zone / "energy_uj") for zone in counted]

    last = [time.monotonic(), *joules()]

    def watts() -> float:
        now = [time.monotonic(), *joules()]
        used = sum((b - a) % most for a, b, most in zip(last[1:], now[1:], ranges, strict=True)) / 1e6
        elapsed_s = max(now[0] - last[0], 1e-6)
        last[:] = now
        return used / elapsed_s

    return watts


def _jetson() -> Watts:
    """Return the watts at the input of a Jetson, by the INA3221 that measures it."""
    for label in sorted((SYS / "class/hwmon").glob("hwmon*/in*_label")):
        if _text(label) in ("VDD_IN", "POM_5V_IN"):
            channel = label.name.removeprefix("in").removesuffix("_label")
            volts, amperes = label.with_name(f"in{channel}_input"), label.with_name(f"curr{channel}_input")
            return lambda: _number(volts) * _number(amperes) / 1e6
    raise FileNotFoundError(f"no channel VDD_IN in {SYS / 'class/hwmon'}")


def _raspberry_pi_5() -> Watts:
    """Return the watts of all rails that the power chip of a Raspberry Pi 5 measures."""

    def watts() -> float:
        text = subprocess.run(_OF_PI_5, capture_output=True, text=True, check=True, timeout=5).stdout
        readings = {kind: dict(re.findall(rf"(\w+)_{kind} \w+\(\d+\)=([\d.]+)", text)) for kind in "AV"}
        rails = readings["A"].keys() & readings["V"].keys()
        if not rails:
            raise ValueError("vcgencmd pmic_read_adc names no rail")
        return sum(float(readings["A"][rail]) * float(readings["V"][rail]) for rail in rails)

    return watts


def _battery() -> Watts:
    """Return the watts that a battery gives while it discharges."""
    supplies = (SYS / "class/power_supply").glob("*")
    folder = next((supply for supply in sorted(supplies) if _text(supply / "type") == "Battery"), None)
    if folder is None:
        raise FileNotFoundError(f"no battery in {SYS / 'class/power_supply'}")

    def watts() -> float:
        if (state := _text(folder / "status")) != "Discharging":
            raise ValueError(f"it is {state.lower()}: unplug the charger")
        if (folder / "power_now").exists():
            return abs(_number(folder / "power_now")) / 1e6
        return abs(_number(folder / "current_now")) * _number(folder / "voltage_now") / 1e12

    return watts


SENSORS = {
    "rapl": SensorKind("counter of the processor's energy (RAPL)", "the processor", _rapl),
    "jetson": SensorKind("sensor at the input of a Jetson", "", _jetson),
    "pi5": SensorKind("power chip of a Raspberry Pi 5", "what its power chip feeds", _raspberry_pi_5),
    "battery": SensorKind("battery that discharges", "", _battery),
}
