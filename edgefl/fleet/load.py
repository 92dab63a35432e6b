"""Profiles from TOML files: by name from those that ship with edgefl, or by path from a user's own."""

import json
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from edgefl.errors import ProfileError, UnknownNameError
from edgefl.fleet.figures import Figure, Positive, Ratio, Record, Sourced
from edgefl.fleet.profile import DeviceProfile, Fleet, FleetClass, Link
from edgefl.util.files import TomlTable, is_profile_path, read_toml, shared
from edgefl.util.validation import explain

_FLEETS_OWN = frozenset(field.alias or name for name, field in Fleet.model_fields.items()) - set(DeviceProfile.model_fields)
_FIGURE = '{ value = …, mark = "measured", source = "…" }'


Kind = Literal["devices", "fleets", "links"]


def names(kind: Kind) -> list[str]:
    """Return the names of the profiles of a kind that ship with edgefl and with installed packages."""
    return sorted(_files(kind))


def _files(kind: Kind) -> dict[str, Path]:
    """Return name → file, also of packages that entry points ``edgefl.profiles`` name; ProfileError if two files have the same name."""
    files: dict[str, Path] = {}
    for folder in (shared("profiles"), *_packages()):
        for path in sorted((folder / kind).glob("*.toml")):
            if other := files.get(path.stem):
                raise ProfileError(
                    f"{kind.removesuffix('s')} {path.stem!r} is defined in {other} and again in {path}; rename one of them"
                )
            files[path.stem] = path
    return files


@cache
def _packages() -> tuple[Path, ...]:
    """Return the folders of the packages that entry points ``edgefl.profiles`` name, with folders devices, fleets and links."""
    folders = []
    for point in entry_points(group="edgefl.profiles"):
        try:
            package = find_spec(point.value)
        except (ImportError, ValueError):
            package = None
        if package is None or not package.submodule_search_locations:
            raise ProfileError(
                f"entry point edgefl.profiles, {point.name} = {point.value}: no such package; name one with a folder devices"
            )
        folders += list(map(Path, package.submodule_search_locations))
    return tuple(folders)


def load_link(name: str, beside: Path | None = None) -> Link:
    """Return a link by name, or by the path of a TOML file (relative to ``beside``)."""
    path = _find("links", name, beside)
    return _parse(Link, read_toml(path, ProfileError), path)


def load_device(name: str, beside: Path | None = None) -> DeviceProfile:
    """Return a device by name, or by the path of a TOML file (relative to ``beside``).

    Raises:
        UnknownNameError: no such name.
        ProfileError: the file is malformed; every problem is named with its key, value and expectation.

    >>> load_device("raspberry-pi-4").compute.training_gmacs_per_s.value
    8.54
    """
    return _load_device(name, beside)


def _load_device(name: str, beside: Path | None = None, shaped: tuple[Path, ...] = ()) -> DeviceProfile:
    """Return a device; ``shaped`` are the files with tables that take its shape."""
    path = _find("devices", name, beside)
    if path.resolve() in shaped:
        raise ProfileError(f"{path}: takes the shape of {shaped[-1].name}, which takes its own")
    return _device(read_toml(path, ProfileError), path, shaped)


def load_fleet(name: str) -> Fleet:
    """Return a fleet by name or by the path of a TOML file; a device is taken as a fleet of itself, without a deadline.

    >>> [(c.device.name, c.share) for c in load_fleet("phone").classes]
    [('flagship-phone', 0.15), ('mid-range-phone', 0.5), ('low-end-phone', 0.35)]
    """
    if is_profile_path(name) or name in names("fleets"):
        path = _find("fleets", name)
        values = read_toml(path, ProfileError)
        return _fleet(values, path) if _FLEETS_OWN & set(values) else _alone(_device(values, path))
    if name in names("devices"):
        return _alone(load_device(name))
    raise UnknownNameError("profile", name, names("fleets") + names("devices"))


def _alone(device: DeviceProfile) -> Fleet:
    mix = Sourced(mark="derived", source="a fleet of one class, made for a single device")
    only = FleetClass(device=device, share=1.0)
    return Fleet.model_validate({"name": device.name, "title": device.title, "mix": mix, "class": (only,)})


def template(name: str) -> str:
    """Return the text of a complete device file with comments, for a device of this name.

    >>> "[memory]" in template("my-board")
    True
    """
    return (shared("profiles") / "template.toml").read_text(encoding="utf-8").replace('"NAME"', json.dumps(name), 1)


class _Problems:
    """Collects the problems of the parts of one file, so that all are said at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def of(self, part: Callable[[], Any], otherwise: Any) -> Any:
        """Return ``part()``, or ``otherwise`` after a problem."""
        try:
            return part()
        except ProfileError as error:
            self.lines += str(error).splitlines()
            return otherwise

    def check(self) -> None:
        """Raise :class:`ProfileError` with every problem once."""
        if self.lines:
            raise ProfileError("\n".join(dict.fromkeys(self.lines)))


def _device(values: TomlTable, path: Path, shaped: tuple[Path, ...] = ()) -> DeviceProfile:
    link, problems = values.get("link"), _Problems()
    if isinstance(link, dict):
        own_link = problems.of(lambda: _parse(Link, link, path, "link."), None)
    else:
        what = "a link, or a table with a link's keys"
        own_link = problems.of(lambda: _referenced(load_link, link, path, "link", what), None)
    values = {**values, "link": own_link or load_link("wifi-world")}  # the other keys are checked too
    if isinstance(compute := values.get("compute"), dict):
        plain = {key: value for key, value in compute.items() if not (isinstance(value, dict) and "like" in value)}
        values["compute"] = problems.of(lambda: _of_family(compute, path, (*shaped, path.resolve())), plain)
    device = problems.of(lambda: _parse(DeviceProfile, values, path), None)
    problems.check()
    return cast(DeviceProfile, device)


class _Family(Record):
    """A table of costs that takes the shape of another device's: everything is ``speed`` times as fast there."""

    like: str
    speed: Positive
    error: Ratio


def _of_family(compute: object, path: Path, shaped: tuple[Path, ...]) -> object:
    """Return the table ``compute`` with the costs of the device that a table is ``like``."""
    if not isinstance(compute, dict):
        return compute
    tables = dict(compute)
    for key in ("training_step", "inference_step"):
        table = compute.get(key)
        if isinstance(table, dict) and "like" in table:
            where = f"compute.{key}.like"
            device = _referenced(partial(_load_device, shaped=shaped), table["like"], path, where, "a device")
            family = _parse(_Family, table, path, f"compute.{key}.")
            costs = getattr(cast(DeviceProfile, device).compute, key)
            if costs is None:
                raise ProfileError(
                    f"{path}: {where}: expected a device with a table compute.{key}, got {family.like!r}: it has none"
                )
            tables[key] = costs.scaled(family.speed, family.error, family.like)
    return tables


def _fleet(values: TomlTable, path: Path) -> Fleet:
    classes = values.get("class")
    if not isinstance(classes, list) or not classes or not all(isinstance(c, dict) for c in classes):
        entries = f"got {classes!r}" if "class" in values else "got none"
        raise ProfileError(f"{path}: class: expected tables [[class]] with device and share, {entries}")
    problems, named = _Problems(), []
    for number, entry in enumerate(classes):
        load = partial(_device_of_class, entry, number, path)
        # In the place of a device that cannot be read, another one of a name of its own: the other keys are checked too.
        device = problems.of(load, None) or load_device("raspberry-pi-4").model_copy(update={"name": f"class.{number}"})
        trace = entry.get("trace")
        where = {"trace": str(path.parent / trace)} if isinstance(trace, str) else {}
        named.append({**{key: value for key, value in entry.items() if key not in ("link", "name")}, **where, "device": device})
    fleet = problems.of(lambda: _parse(Fleet, {**values, "class": named}, path), None)
    problems.check()
    return cast(Fleet, fleet)


def _device_of_class(entry: TomlTable, number: int, path: Path) -> DeviceProfile:
    """Return the device of a class, with the link and the name that the class has for itself."""
    device: Any = _referenced(load_device, entry.get("device"), path, f"class.{number}.device", "a device")
    own: TomlTable = {}
    if "link" in entry:
        link: Any = _referenced(load_link, entry["link"], path, f"class.{number}.link", "a link")
        own = {"link": link, "name": f"{device.name}-{link.name}", "title": f"{device.title}, {link.title}"}
    if "name" in entry:
        if not isinstance(name := entry["name"], str) or not name:
            raise ProfileError(f"{path}: class.{number}.name: expected a name of the class, such as 'night-phone', got {name!r}")
        own |= {"name": name, "title": f"{device.title} ({name})"}
    return cast(DeviceProfile, device.model_copy(update=own))


def _referenced(load: Callable[[str, Path], Record], name: object, path: Path, key: str, what: str) -> Record:
    """Return what the file at ``path`` refers to under ``key``; a name or file that does not exist is an error of that key."""
    expected = f"expected the name or the path of {what}"
    if not isinstance(name, str):
        raise ProfileError(f"{path}: {key}: " + (f"missing; {expected}" if name is None else f"{expected}, got {name!r}"))
    if is_profile_path(name) and not (path.parent / name).is_file():
        raise ProfileError(f"{path}: {key}: {expected}, got {name!r}: {path.parent / name}: no such file")
    try:
        return load(name, path.parent)
    except UnknownNameError as error:
        raise ProfileError(f"{path}: {key}: {error}") from None


def _find(kind: Kind, name: str, beside: Path | None = None) -> Path:
    if is_profile_path(name):
        return (beside or Path()) / name
    if name not in (known := _files(kind)):
        raise UnknownNameError(kind.removesuffix("s"), name, known)
    return known[name]


def _parse(kind: Any, values: TomlTable, path: Path, prefix: str = "") -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors()
        within = {problem["loc"][:-depth] for problem in errors for depth in range(1, len(problem["loc"]))}
        # Of a list whose entries are wrong, pydantic also says that it is too short.
        real = [problem for problem in errors if problem["type"] != "too_short" or problem["loc"] not in within]
        problems = [f"{prefix}{_explain(kind, problem)}" for problem in real]
        raise ProfileError("\n".join(f"{path}: {problem}" for problem in problems)) from None


def _explain(kind: type[Record], problem: ErrorDetails) -> str:
    """Return one line for one pydantic error: key, what was expected, what was found."""
    location, value = problem["loc"], problem.get("input")
    key = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known = list(_fields(_kind_at(kind, location[:-1])))
        with_unit = " or ".join(repr(k) for k in known if k.startswith(f"{location[-1]}_"))
        if with_unit:
            return f"{key}: unknown key; did you mean {with_unit}? The key of a figure ends in its unit; got {value!r}"
        return explain(problem, known)
    of_kind = _kind_at(kind, location)
    form = _FIGURE if of_kind is Figure else f"a table with {', '.join(_fields(of_kind))}" if of_kind else "a value"
    if problem["type"] == "missing":
        return f"{key}: missing; expected {form}"
    if problem["type"] == "model_type" and not isinstance(value, dict):
        return f"{key}: expected {_FIGURE if isinstance(value, (int, float)) else form}, got {value!r}"
    return explain(problem)


def _kind_at(kind: type[Record] | None, location: tuple[int | str, ...]) -> type[Record] | None:
    """Return the type of the table at ``location`` of a record type, None if there is no table."""
    for key in location:
        if isinstance(key, str):
            kind = _record_in(_fields(kind).get(key))
    return kind


def _fields(kind: type[Record] | None) -> dict[str, Any]:
    """Return key → annotation."""
    return {field.alias or name: field.annotation for name, field in kind.model_fields.items()} if kind else {}


def _record_in(annotation: Any) -> type[Record] | None:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation
    return next((record for part in get_args(annotation) if (record := _record_in(part))), None)
