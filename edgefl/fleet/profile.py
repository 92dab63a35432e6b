"""Device, link and fleet profiles: TOML files in which every figure carries its unit, a mark and a source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgefl.errors import ProfileError, UnknownNameError, nearest
from edgefl.files import shared

Mark = Literal["measured", "vendor", "derived", "assumed"]


class Record(BaseModel):
    """A frozen table of a profile; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figure(Record):
    """One number: in the unit of its key, with how it is known and where it comes from."""

    value: float = Field(ge=0)
    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


def _positive(figure: Figure) -> Figure:
    if figure.value <= 0:
        raise ValueError(f"expected a value above 0, got {figure.value:g}")
    return figure


def _share(figure: Figure) -> Figure:
    if not 0 < figure.value <= 1:
        raise ValueError(f"expected a share in (0, 1], got {figure.value:g}")
    return figure


Positive = Annotated[Figure, AfterValidator(_positive)]
Share = Annotated[Figure, AfterValidator(_share)]


class Link(Record):
    """A class of network connection, as a typical client of it sees it."""

    name: str
    title: str
    download_mbps: Positive
    upload_mbps: Positive
    rtt_ms: Figure
    download_nj_per_byte: Figure
    upload_nj_per_byte: Figure
    spread_sigma: Figure

    @property
    def download_bytes_per_s(self) -> float:
        """Bytes per second towards the client."""
        return self.download_mbps.value * 1e6 / 8

    @property
    def upload_bytes_per_s(self) -> float:
        """Bytes per second from the client."""
        return self.upload_mbps.value * 1e6 / 8

    @property
    def rtt_s(self) -> float:
        """Round-trip time in seconds."""
        return self.rtt_ms.value / 1e3

    @property
    def download_j_per_byte(self) -> float:
        """Joules that the device spends on a byte received."""
        return self.download_nj_per_byte.value * 1e-9

    @property
    def upload_j_per_byte(self) -> float:
        """Joules that the device spends on a byte sent."""
        return self.upload_nj_per_byte.value * 1e-9


class Memory(Record):
    """Random-access memory: all of it, and what an application that trains may hold."""

    total_bytes: Positive
    training_bytes: Positive


class Compute(Record):
    """Rates of dense float32 multiply-accumulates, in 10⁹ per second."""

    inference_gmacs_per_s: Positive
    inference_single_thread_gmacs_per_s: Positive
    training_gmacs_per_s: Positive
    memory_bandwidth_gb_per_s: Positive | None = None


class Thermal(Record):
    """How long the full rate lasts, and the share of it that remains."""

    burst_s: Figure
    sustained_share: Share


class Power(Record):
    """Power and energy of the whole device."""

    idle_w: Figure
    load_w: Positive
    energy_pj_per_mac: Positive
    battery_wh: Positive | None = None


class DeviceProfile(Record):
    """One class of device; quantities without their marks are properties in SI units."""

    name: str
    title: str
    reference_hardware: str
    link: Link
    memory: Memory
    compute: Compute
    power: Power
    thermal: Thermal | None = None

    @property
    def training_bytes(self) -> float:
        """Bytes that an application that trains may hold."""
        return self.memory.training_bytes.value

    @property
    def training_macs_per_s(self) -> float:
        """MACs per second of a training step, before throttling."""
        return self.compute.training_gmacs_per_s.value * 1e9

    @property
    def inference_macs_per_s(self) -> float:
        """MACs per second of an inference on all threads."""
        return self.compute.inference_gmacs_per_s.value * 1e9

    @property
    def burst_s(self) -> float:
        """Seconds at the full rate; infinite where the device does not throttle."""
        return self.thermal.burst_s.value if self.thermal else float("inf")

    @property
    def sustained_share(self) -> float:
        """Share of the full rate that remains after the burst."""
        return self.thermal.sustained_share.value if self.thermal else 1.0

    @property
    def idle_w(self) -> float:
        """Watts without work."""
        return self.power.idle_w.value

    @property
    def joules_per_mac(self) -> float:
        """Joules of one multiply-accumulate, the whole device counted."""
        return self.power.energy_pj_per_mac.value * 1e-12

    def figures(self) -> dict[str, Figure]:
        """Return every figure by its dotted key, the link's included."""
        return _figures(self, "")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Dotted keys of figures that nobody publishes: to be calibrated on the user's own device."""
        return tuple(key for key, figure in self.figures().items() if figure.mark == "assumed")


def _figures(record: Record, prefix: str) -> dict[str, Figure]:
    found = {}
    for key in type(record).model_fields:
        value = getattr(record, key)
        if isinstance(value, Figure):
            found[prefix + key] = value
        elif isinstance(value, Record):
            found |= _figures(value, f"{prefix}{key}.")
    return found


class FleetBudget(Record):
    """Limits of a round; none is set by default.

    ``round_deadline_ratio`` is a multiple of what the fastest class needs for a round with the full model.
    """

    round_deadline_s: float | None = Field(None, gt=0)
    round_deadline_ratio: float | None = Field(None, gt=0)
    download_bytes: float | None = Field(None, gt=0)
    upload_bytes: float | None = Field(None, gt=0)
    energy_j: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_deadline(self) -> FleetBudget:
        if self.round_deadline_s is not None and self.round_deadline_ratio is not None:
            raise ValueError("expected round_deadline_s or round_deadline_ratio, got both")
        return self


class FleetClass(Record):
    """One class of a fleet: its device, its share of the clients, and limits of its own."""

    device: DeviceProfile
    share: float = Field(gt=0, le=1)
    budget: FleetBudget = FleetBudget()


class Mix(Record):
    """How the shares of a fleet are known."""

    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


class Fleet(Record):
    """A mix of device classes and the limits of a round."""

    name: str
    title: str
    mix: Mix
    budget: FleetBudget = FleetBudget()
    classes: tuple[FleetClass, ...] = Field(alias="class", min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Fleet:
        total = sum(c.share for c in self.classes)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"class: shares must sum to 1, got {total:g}")
        return self


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
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise ProfileError(f"{path}, {f'line {line[1]}' if line else 'at its end'}: not valid TOML: {error}") from None


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
    if problem["type"] == "missing":
        return f"{key}: missing"
    if problem["type"] == "model_type" and not isinstance(found, dict):
        form = '{ value = …, mark = "measured", source = "…" }' if isinstance(found, (int, float)) else "a table"
        return f"{key}: expected {form}, got {found!r}"
    message = re.sub(r"^(Value error, |Input should be )", "", problem["msg"])
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: expected {message}, got {found!r}"


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
