"""Profiles from TOML files: by name from those that ship with edgefl, or by path from a user's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from edgefl.errors import ProfileError, UnknownNameError
from edgefl.fleet.figures import Figure, Record
from edgefl.fleet.profile import DeviceProfile, Fleet, FleetClass, Link, Mix
from edgefl.util.files import read_toml, shared
from edgefl.util.validation import explain

_FLEETS_OWN = frozenset(field.alias or name for name, field in Fleet.model_fields.items()) - set(DeviceProfile.model_fields)
_FIGURE = '{ value = …, mark = "measured", source = "…" }'


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
        return _fleet(values, path) if _FLEETS_OWN & set(values) else _alone(_device(values, path))
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
    if isinstance(link, dict):
        values = {**values, "link": _parse(Link, link, path, "link.")}
    else:
        values = {**values, "link": _referenced(load_link, link, path, "link", "a link, or a table with a link's keys")}
    return _parse(DeviceProfile, values, path)


def _fleet(values: dict[str, Any], path: Path) -> Fleet:
    classes = values.get("class")
    if not isinstance(classes, list) or not classes or not all(isinstance(c, dict) for c in classes):
        found = f"got {classes!r}" if "class" in values else "got none"
        raise ProfileError(f"{path}: class: expected tables [[class]] with device and share, {found}")
    named = [
        {**entry, "device": _referenced(load_device, entry.get("device"), path, f"class.{number}.device", "a device")}
        for number, entry in enumerate(classes)
    ]
    return _parse(Fleet, {**values, "class": named}, path)


def _referenced(load: Callable[[str, Path], Record], name: object, path: Path, key: str, what: str) -> Record:
    """Return what the file at ``path`` refers to under ``key``; a name or file that does not exist is an error of that key."""
    expected = f"expected the name or the path of {what}"
    if not isinstance(name, str):
        raise ProfileError(f"{path}: {key}: " + (f"missing; {expected}" if name is None else f"{expected}, got {name!r}"))
    if _is_path(name) and not (path.parent / name).is_file():
        raise ProfileError(f"{path}: {key}: {expected}, got {name!r}: {path.parent / name}: no such file")
    try:
        return load(name, path.parent)
    except UnknownNameError as error:
        raise ProfileError(f"{path}: {key}: {error}") from None


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
        problems = [f"{prefix}{_explain(kind, problem)}" for problem in error.errors()]
        raise ProfileError("\n".join(f"{path}: {problem}" for problem in problems)) from None


def _explain(kind: Any, problem: ErrorDetails) -> str:
    """Return one line for one pydantic error: key, what was expected, what was found."""
    key = ".".join(str(part) for part in problem["loc"])
    found, last = problem.get("input"), str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        known = _keys_at(kind, problem["loc"][:-1])
        with_unit = " or ".join(repr(k) for k in known if k.startswith(f"{last}_"))
        if with_unit:
            return f"{key}: unknown key; did you mean {with_unit}? The key of a figure ends in its unit; got {found!r}"
        return explain(problem, known)
    if problem["type"] == "missing":
        return f"{key}: missing; expected {_form(kind, problem['loc'])}"
    if problem["type"] == "model_type" and not isinstance(found, dict):
        return f"{key}: expected {_FIGURE if isinstance(found, (int, float)) else _form(kind, problem['loc'])}, got {found!r}"
    return explain(problem)


def _form(kind: Any, location: tuple[Any, ...]) -> str:
    """Return what stands under a key, in the words of an error."""
    field = _field(_kind_at(kind, location[:-1]), location[-1])
    expected = None if field is None else _record_in(field)
    return _FIGURE if expected is Figure else "a value" if expected is None else f"a table with {', '.join(_keys(expected))}"


def _keys_at(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys of the table at ``location`` of a record type."""
    found = _kind_at(kind, location)
    return [] if found is None else _keys(found)


def _kind_at(kind: Any, location: tuple[Any, ...]) -> Any:
    for part in location:
        if isinstance(part, str):
            field = _field(kind, part)
            if field is None or (kind := _record_in(field)) is None:
                return None
    return kind


def _field(kind: Any, key: Any) -> Any:
    fields = {} if kind is None else kind.model_fields
    return next((field for name, field in fields.items() if key in (name, field.alias)), None)


def _record_in(field: Any) -> Any:
    found = re.findall(r"\w+", str(field.annotation))
    return next((k for k in Record.__subclasses__() if k.__name__ in found), None)


def _keys(kind: Any) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]
