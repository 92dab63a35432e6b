"""What a month of rounds takes of one device of each class: sessions, bytes, joules and hours."""

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
    """

    clients: int
    sessions: int
    updates: int
    download_bytes: int
    upload_bytes: int
    energy_j: float | None
    device_s: float


@dataclass(frozen=True)
class DeviceMonth:
    """The mean of a class's devices in a month of 30 days; ``energy_j`` is None if it is unknown."""

    sessions: float
    updates: float
    bytes: float
    energy_j: float | None
    device_s: float


def rounds_per_day(result: Json, row: Json) -> float | None:
    """Return how many rounds a day has under a policy: as many as were asked for, if they fit; None if none were asked for.

    >>> rounds_per_day({"rounds_per_day": 24}, {"rounds_per_hour": 0.5})
    12.0
    """
    asked, possible = result.get("rounds_per_day"), row["rounds_per_hour"]
    return None if asked is None or possible is None else min(asked, 24 * possible)


def device_months(result: Json, row: Json) -> dict[str, DeviceMonth]:
    """Return device → the month of one device of its class under a policy; nothing without rounds per day.

    The rounds of a month take what the simulated ones took in the mean, and all devices of a class are asked equally often.
    """
    daily = rounds_per_day(result, row)
    if daily is None:
        return {}
    months = DAYS * daily / result["rounds"]
    return {device: _month(use, months / use["clients"]) for device, use in row["uses"].items() if use["clients"]}


def _month(use: Json, factor: float) -> DeviceMonth:
    return DeviceMonth(
        sessions=use["sessions"] * factor,
        updates=use["updates"] * factor,
        bytes=(use["download_bytes"] + use["upload_bytes"]) * factor,
        energy_j=None if use["energy_j"] is None else use["energy_j"] * factor,
        device_s=use["device_s"] * factor,
    )
