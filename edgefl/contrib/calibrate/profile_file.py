"""The figures of a device profile with their sources, and the profile as TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit

from edgefl.contrib.calibrate.meters import MeterFigures
from edgefl.fleet.figures import Figure, Record
from edgefl.fleet.power import STATED_ERROR
from edgefl.fleet.profile import DeviceProfile
from edgefl.util.files import TomlTable

NOT_MEASURED = "not measured by calibration: the figure of the {title} profile, a placeholder"


def to_toml(values: TomlTable) -> str:
    """Return a profile's text: names first, then a table per group with one figure per line."""
    # Names stand before tables: TOML reads whatever follows a table's heading as part of it.
    ordered = sorted(values.items(), key=lambda item: isinstance(item[1], Mapping))
    return tomlkit.dumps({key: _item(value) for key, value in ordered})


def _item(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table() if "value" in value else tomlkit.table()
    for key, inner in value.items():
        table.add(key, _item(inner))
    return table


def _assumed_power(like: DeviceProfile, battery: bool) -> TomlTable:
    """Return the table ``power`` of a device whose watts are assumed to be those of ``like``, if these are known."""
    if like.power is None:
        return {}
    figures = assumed(like.power, like)
    error = figures.setdefault("error", {"mark": "assumed", "source": NOT_MEASURED.format(title=like.name)})
    error |= {"value": max(like.power.factor, STATED_ERROR), "note": "watts of another device"}
    return {"power": {key: value for key, value in figures.items() if battery or key != "battery_wh"}}


def power_of(watts: MeterFigures | None, like: DeviceProfile, battery: bool, source: str) -> TomlTable:
    """Return the table ``power``: with measured watts, ``load_w`` holds for all training, and has no shares; without, that of ``like``."""
    if watts is None:
        return _assumed_power(like, battery)
    note = f"{watts.title}: only {watts.part}, not the whole device" if watts.part else watts.title
    table = {key: figure(getattr(watts, key), source, note) for key in ("idle_w", "load_w")}
    if watts.part:
        table["error"] = {"value": STATED_ERROR, "mark": "assumed", "source": source, "note": f"the meter sees only {watts.part}"}
    if battery and like.power is not None and like.power.battery_wh is not None:
        table["battery_wh"] = assumed(like.power, like)["battery_wh"]
    return {"power": table}


def figure(value: float, source: str, note: str) -> TomlTable:
    """Return a measured figure, with four digits."""
    rounded = value if isinstance(value, int) else float(f"{value:.4g}")
    return {"value": rounded, "mark": "measured", "source": source, "note": note}


def assumed(record: Record, like: DeviceProfile) -> TomlTable:
    """Return the figures of a part of the profile ``like``, each marked as assumed."""
    source = NOT_MEASURED.format(title=like.name)
    return {
        key: {"value": entry.value, "mark": "assumed", "source": source, "note": f"there {entry.mark}: {entry.source}"}
        for key, entry in record
        if isinstance(entry, Figure)
    }
