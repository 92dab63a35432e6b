"""The devices of a fleet and their public keys: a TOML file that lists the devices with updates that count, and requests to be in it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgefl.errors import InputError, WireError
from edgefl.util.files import read_at_most, read_toml, storage_errors, write_bytes
from edgefl.util.keys import SIGNATURE_BYTES, PublicKey, decoded
from edgefl.util.validation import explain

NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")
_MAX_REQUEST_BYTES = 1 << 12
_WAIT_S = 10
_HEADING = (
    "Devices whose updates 'edgefl fed-round --keys' accepts. 'edgefl enroll' adds a device, 'edgefl revoke' ends its membership."
)


def _device_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"expected a device's name: 1 to 64 of 0-9 A-Z a-z . _ -, got {name[:100]!r}")
    return name


def _key_text(text: str) -> str:
    PublicKey.of_text(text)
    return text


_Name = Annotated[str, AfterValidator(_device_name)]
_Key = Annotated[str, AfterValidator(_key_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EnrolledDevice(_Strict):
    """A device: its public ``key``, and whether it was ``revoked``."""

    key: _Key
    revoked: bool = False


class _File(_Strict):
    format: Literal[1]
    devices: dict[_Name, EnrolledDevice] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _keys_differ(self) -> _File:
        seen: dict[str, str] = {}
        for name, device in self.devices.items():
            if seen.setdefault(device.key, name) != name:
                raise ValueError(f"devices: {seen[device.key]} and {name} have one key, expected one for each")
        return self


@dataclass(frozen=True)
class DeviceKeys:
    """The devices in the keys file at ``path``, by name.

    Example:
        >>> key = PublicKey(bytes(32))
        >>> fleet = DeviceKeys(Path("fleet.toml")).with_device("phone-7", key)
        >>> fleet.name_of(key)
        'phone-7'
        >>> fleet.without("phone-7").name_of(key)
        Traceback (most recent call last):
            ...
        edgefl.errors.WireError: key: phone-7 was revoked in fleet.toml
    """

    path: Path
    devices: Mapping[str, EnrolledDevice] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> DeviceKeys:
        """Return the content of a keys file; InputError, naming file and key, if it is missing or wrong."""
        values = read_toml(path, InputError)
        try:
            return cls(path, _File.model_validate(values).devices)
        except ValidationError as error:
            raise InputError("\n".join(f"{path}: {explain(problem)}" for problem in error.errors()[:20])) from None

    def name_of(self, key: PublicKey) -> str:
        """Return the name of the device with ``key``; WireError if there is none, or it was revoked."""
        for name, device in self.devices.items():
            if device.key == str(key):
                if device.revoked:
                    raise WireError(f"key: {name} was revoked in {self.path}")
                return name
        raise WireError(f"key: {key} is of no device in {self.path}; 'edgefl enroll' adds devices")

    def with_device(self, name: str, key: PublicKey) -> DeviceKeys:
        """Return these keys with another device; the same device again changes nothing. InputError if name or key is in use."""
        for other, device in self.devices.items():
            same_name, same_key = other == name, device.key == str(key)
            if same_name and same_key and not device.revoked:
                return self
            if (same_name or same_key) and device.revoked:
                remedy = "delete its table from the file to enrol it again"
                raise InputError(f"{self.path}: {other} was revoked, and has this {'key' if same_key else 'name'}; {remedy}")
            if same_name:
                raise InputError(f"{self.path}: {name}: another device has this name, with key {device.key}; give another --name")
            if same_key:
                raise InputError(f"{self.path}: this key is enrolled already, as {other}")
        return replace(self, devices={**self.devices, name: EnrolledDevice(key=str(key))})

    def without(self, device: str) -> DeviceKeys:
        """Return these keys with the device of this name or key revoked; InputError if there is none."""
        for name, known in self.devices.items():
            if device in (name, known.key):
                return replace(self, devices={**self.devices, name: known.model_copy(update={"revoked": True})})
        raise InputError(f"{self.path}: has no device {device!r}; it has {', '.join(sorted(self.devices)) or 'none'}")

    def write(self) -> None:
        """Write the file, sorted by name, whole or not at all."""
        tables = tomlkit.table(is_super_table=True)
        for name, device in sorted(self.devices.items()):
            tables[name] = {"key": device.key, **({"revoked": True} if device.revoked else {})}
        document = tomlkit.document()
        document.add(tomlkit.comment(_HEADING))
        document.update({"format": 1, "devices": tables})
        write_bytes(self.path.resolve(), tomlkit.dumps(document).encode())  # a link to the file stays one


@contextlib.contextmanager
def changing(path: Path) -> Iterator[DeviceKeys]:
    """Yield the keys in the file at ``path``, none if there is no file, while no other process changes them.

    Raises:
        InputError: the file is wrong, or another process holds it for more than ten seconds.
    """
    from filelock import FileLock, Timeout

    real = path.resolve()
    lock = real.with_name(f".{real.name}.lock")
    with storage_errors(lock):
        real.parent.mkdir(parents=True, exist_ok=True)
        file_lock = FileLock(lock)
        try:
            file_lock.acquire(timeout=_WAIT_S)
        except Timeout:
            raise InputError(f"{path}: another process is changing it; try again when it has ended") from None
    try:
        yield DeviceKeys.of(path) if path.exists() else DeviceKeys(path)
    finally:
        file_lock.release()


@dataclass(frozen=True)
class Enrolment:
    """A device's request to be enrolled: the name that it proposes, and its key."""

    name: str
    key: PublicKey

    @classmethod
    def of_file(cls, path: Path) -> Enrolment:
        """Return the request in a JSON file that a device wrote; WireError if it is malformed, or not signed with its own key."""
        content = read_at_most(path, _MAX_REQUEST_BYTES, WireError)
        try:
            request = _Request.model_validate(json.loads(content))
        except ValidationError as error:
            raise WireError("\n".join(f"{path}: {explain(problem)}" for problem in error.errors()[:20])) from None
        except (ValueError, RecursionError) as error:
            raise WireError(f"{path}: not a request that a device's enroll command wrote ({error})") from None
        key, signature = PublicKey.of_text(request.key), decoded(request.signature, SIGNATURE_BYTES) or b""
        if not key.verifies(signed_enrolment(request.name, key), signature):
            raise WireError(f"{path}: signature: not one of this request by its key; ask the device for another")
        return cls(request.name, key)


class _Request(_Strict):
    format: Literal["edgefl-enrolment"]
    version: Literal["1"]
    name: _Name
    key: _Key
    signature: str


def signed_enrolment(name: str, key: PublicKey) -> bytes:
    """Return the bytes that a device signs to show that a key is its own.

    >>> signed_enrolment("phone-7", PublicKey(bytes(32))).decode().splitlines()[:2]
    ['edgefl enrolment 1', 'name=phone-7']
    """
    return f"edgefl enrolment 1\nname={name}\nkey={key}\n".encode()
