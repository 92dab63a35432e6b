"""What the days of a calendar take of the devices of a class: means of a month, the spread over devices, and who takes part."""

from __future__ import annotations

from dataclasses import dataclass

from edgefl.report.policies import ClassUse, PolicyOutcome

DAYS = 30
"""Days of a month."""


@dataclass(frozen=True)
class DeviceMonth:
    """The mean of a class's devices in a month of 30 days; ``energy_j`` is None if it is unknown."""

    sessions: float
    updates: float
    bytes: float
    energy_j: float | None
    device_s: float


def rounds_per_day(row: PolicyOutcome) -> float | None:
    """Return how many rounds a day had under a policy; None without a calendar."""
    return row.rounds / row.days if row.days else None


def device_months(row: PolicyOutcome) -> dict[str, DeviceMonth]:
    """Return device → the mean month of one device of its class under a policy; nothing without a calendar."""
    if not row.days:
        return {}
    months = DAYS / row.days
    return {device: _month(use, months / use.clients) for device, use in row.uses.items() if use.clients}


def _month(use: ClassUse, factor: float) -> DeviceMonth:
    return DeviceMonth(
        sessions=use.sessions * factor,
        updates=use.updates * factor,
        bytes=(use.download_bytes + use.upload_bytes) * factor,
        energy_j=None if use.energy_j is None else use.energy_j * factor,
        device_s=use.device_s * factor,
    )
