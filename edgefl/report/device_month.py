"""What the days of a calendar take of the devices of a class: means of a month, the spread over devices, and who takes part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.report.results import Result

Json = Mapping[str, Any]

DAYS = 30
"""Days of a month."""


@dataclass(frozen=True)
class ClassUse(Result):
    """What the rounds of a policy took of all devices of a class together.

    Attributes:
        clients: devices of the class in the fleet.
        sessions: how many began; refused ones did not.
        updates: how many updates of the class the server used.
        energy_j: None if it is unknown.
        device_s: seconds of the devices.
        battery_j: the whole battery of one device; None: it has none.
        metered: whether the link of the class says that its bytes are paid for.
    """

    clients: int
    sessions: int
    updates: int
    download_bytes: int
    upload_bytes: int
    energy_j: float | None
    device_s: float
    battery_j: float | None = None
    metered: bool = False


@dataclass(frozen=True)
class ClassReach(Result):
    """How the single devices of a class took part in the first simulated days, at most a month.

    Attributes:
        days: how many days.
        trained: devices of which the server used an update.
        asked: devices that the server selected.
        lost: status → sessions of the class that ended with it, except trained ones.
        bytes_median, bytes_p90: of one device, devices without a session included.
        energy_j_median, energy_j_p90: the same; None if unknown.
        updates_days: days until the class has given as many useful updates as were asked for; None: it gives none.
    """

    days: float
    trained: int
    asked: int
    lost: Mapping[str, int]
    bytes_median: float | None
    bytes_p90: float | None
    energy_j_median: float | None
    energy_j_p90: float | None
    updates_days: float | None


@dataclass(frozen=True)
class DeviceMonth:
    """The mean of a class's devices in a month of 30 days; ``energy_j`` is None if it is unknown."""

    sessions: float
    updates: float
    bytes: float
    energy_j: float | None
    device_s: float


def rounds_per_day(row: Json) -> float | None:
    """Return how many rounds a day had under a policy; None without a calendar.

    >>> rounds_per_day({"rounds": 24, "days": 2.0})
    12.0
    """
    return row["rounds"] / row["days"] if row.get("days") else None


def device_months(row: Json) -> dict[str, DeviceMonth]:
    """Return device → the mean month of one device of its class under a policy; nothing without a calendar."""
    if not row.get("days"):
        return {}
    months = DAYS / row["days"]
    return {device: _month(use, months / use["clients"]) for device, use in row["uses"].items() if use["clients"]}


def _month(use: Json, factor: float) -> DeviceMonth:
    return DeviceMonth(
        sessions=use["sessions"] * factor,
        updates=use["updates"] * factor,
        bytes=(use["download_bytes"] + use["upload_bytes"]) * factor,
        energy_j=None if use["energy_j"] is None else use["energy_j"] * factor,
        device_s=use["device_s"] * factor,
    )
