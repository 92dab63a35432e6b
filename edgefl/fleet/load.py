"""Profiles from TOML files: by name from those that ship with edgefl, or by path from a user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgefl.config import explain
from edgefl.errors import ProfileError, UnknownNameError, nearest
from edgefl.files import read_toml, shared
from edgefl.fleet.profile import DeviceProfile, Fleet, FleetClass, Link, Mix, Record


def device_names() -> list[str]:
    """Return the names of the device profiles that ship with edgefl."""
    return _names("devices")


def fleet_names() -> list[str]:
    """Return the names of the fleets that ship with edgefl."""
    return _names("fleets")


def link_names() -> list[str]:
    """Return the names of the links that ship with edgefl."""
    return _names("links")


def _names(kind: str) -> list[str]:
    return sorted(path.stem for path in (shared("profiles") / kind).glob("*.toml"))


def load_link(name: str, beside: Path | None = None) -> Link:
    """Return a link by name, or by the path of a TOML file (relative to ``beside``)."""
    path = _find("link", name, "links", beside)
    return _parse(Link, _read(path), path)


def load_device(name: str, beside: Path | None = None) -> DeviceProfile:
    """Return a device by name, or by the path of a TOML file (relative to ``beside``).

    Raises:
        UnknownNameError: no such name.
        ProfileError: the file is malformed; every problem is named with its key, value and expectation.

    >>> load_device("raspberry-pi-4").training_macs_per_s
    3700000000.0
    """
    path = _find("device", name, "devices", beside)
    return _device(_read(path), path)


def load_fleet(name: str) -> Fleet:
    """Return a fleet by name or by the path of a TOML file; a device is taken as a fleet of itself, without a deadline.

    >>> [(c.device.name, c.share) for c in load_fleet("phone").classes]
    [('flagship-phone', 0.15), ('mid-range-phone', 0.5), ('low-end-phone', 0.35)]
    """
    if _is_path(name):
        path = Path(name)
        values = _read(path)
        return _fleet(values, path) if "class" in values else _alone(_device(values, path))
    if name in fleet_names():
        path = shared("profiles") / "fleets" / f"{name}.toml"
        return _fleet(_read(path), path)
    if name in device_names():
        return _alone(load_device(name))
    raise UnknownNameError("profile", name, fleet_names() + device_names())


def _alone(device: DeviceProfile) -> Fleet:
    mix = Mix(mark="derived", source="a fleet of one class, made for a single device")
    only = FleetClass(device=device, share=1.0)
    return Fleet.model_validate({"name": device.name, "title": device.title, "mix": mix, "class": (only,)})


def _device(values: dict[str, Any], path: Path) -> DeviceProfile:
    link = values.get("link")
    if isinstance(link, str):
        values = {**values, "link": load_link(link, path.parent)}
    elif isinstance(link, dict):
        values = {**values, "link": _parse(Link, link, path, "link.")}
    return _parse(DeviceProfile, values, path)


def _fleet(values: dict[str, Any], path: Path) -> Fleet:
    classes = values["class"]
    if not isinstance(classes, list) or not all(isinstance(c, dict) for c in classes):
        raise ProfileError(f"{path}: class: expected tables [[class]] with device and share, got {classes!r}")
    for number, entry in enumerate(classes):
        if isinstance(name := entry.get("device"), str):
            try:
                entry["device"] = load_device(name, path.parent)
            except UnknownNameError as error:
                raise ProfileError(f"{path}: class.{number}.device: {error}") from None
    return _parse(Fleet, values, path)


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name


def _find(kind: str, name: str, folder: str, beside: Path | None) -> Path:
    if _is_path(name):
        return (beside or Path()) / name
    if name not in _names(folder):
        raise UnknownNameError(kind, name, _names(folder))
    return shared("profiles") / folder / f"{name}.toml"


def _read(path: Path) -> dict[str, Any]:
    return read_toml(path, ProfileError)


def _parse(kind: Any, values: dict[str, Any], path: Path, prefix: str = "") -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [f"{prefix}{_explain(kind, dict(problem))}" for problem in error.errors()]
        raise ProfileError("\n".join(f"{path}: {problem}" for problem in problems)) from None


def _explain(kind: Any, problem: dict[str, Any]) -> str:
    """Return one line for one pydantic error: key, what was expected, what was found."""
    key = ".".join(str(part) for part in problem["loc"])
    found = problem.get("input")
    if problem["type"] == "extra_forbidden":
        known = _keys_at(kind, problem["loc"][:-1])
        return f"{key}: unknown key;{nearest(str(problem['loc'][-1]), known) or ' known: ' + ', '.join(known)}"
    if problem["type"] == "model_type" and not isinstance(found, dict):
        form = '{ value = …, mark = "measured", source = "…" }' if isinstance(found, (int, float)) else "a table"
        return f"{key}: expected {form}, got {found!r}"
    return explain(problem)


def _keys_at(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys of the table at ``location`` of a record type."""
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for name, f in kind.model_fields.items() if part in (name, f.alias)), None)
        if field is None:
            return []
        found = re.findall(r"\w+", str(field.annotation))
        kind = next((k for k in Record.__subclasses__() if k.__name__ in found), kind)
    return [field.alias or name for name, field in kind.model_fields.items()]
